"""The ranks of a job, real or imagined, and the topology that joins their GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..clock.links import MACHINES, Topology, topology

PER_NODE = 8


@dataclass(frozen=True)
class World:
    """`size` ranks of which this process is `rank`; with `imagined` it is the only one that runs.

    `topology` has the number of GPUs per machine, and their links.
    """

    size: int
    rank: int
    imagined: bool
    topology: Topology

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that torchrun would set for this rank."""
        per_node = self.topology.per_node
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.rank % per_node),
            "LOCAL_WORLD_SIZE": str(per_node),
            "GROUP_RANK": str(self.rank // per_node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }


def imagined_world(
    gpu: str,
    ranks: int,
    rank: int = 0,
    *,
    link: str | None = None,
    nodes: int | None = None,
    adapters: int | str | None = None,
) -> World:
    """Return a world of `ranks` ranks of which only `rank` runs; raises ValueError for impossible numbers.

    Without `nodes` there are as few machines as possible, with at most eight GPUs each.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= 65536:
        raise ValueError(f"ranks must be a whole number of GPUs from 1 to 65536, not {ranks!r}")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
        raise ValueError(f"rank must be a whole number from 0 to {ranks - 1}, one of the existing ranks, not {rank!r}")
    if nodes is None:
        nodes = next(n for n in range(1, ranks + 1) if ranks % n == 0 and ranks // n <= PER_NODE)
    return World(ranks, rank, True, topology(gpu, ranks=ranks, link=link, nodes=nodes, adapters=adapters))


def machine_world(name: str, rank: int = 0) -> World:
    """Return the world of all GPUs of a usual machine (`clock.links.MACHINES`)."""
    return World(MACHINES[name].topology.ranks, rank, True, MACHINES[name].topology)


def real_world(gpu: str, size: int, rank: int, *, link: str | None = None, adapters: int | str | None = None) -> World:
    """Return the world of `size` processes, spread over machines by torchrun's environment (one without it)."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
    nodes = max(1, size // local) if size % local == 0 else 1
    return World(size, rank, False, topology(gpu, ranks=size, link=link, nodes=nodes, adapters=adapters))


def members(global_ranks: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the ranks of a group; in PyTorch an empty list means all of them."""
    return tuple(global_ranks) or tuple(range(size))
