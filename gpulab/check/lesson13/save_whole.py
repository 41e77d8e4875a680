"""The check of one file from a sharded model: real ranks, a virtual GPU for each, and a path of its own."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ..contract import Clause, Contract, Facts, holds
from ..lesson12.common import group
from ..scenes import Scene
from .sections import PRACTICE, SAVED

SAVES, NAMES, KIND = "ranks that have saved", "names in the file", "kind of the values"
LOADS = "torch.load(path)"
WEIGHTS, BUFFERS = "the weights", "the buffers"
MOST, AFTER, GROUP = "whole tensors on the fullest GPU at once", "the model afterwards", "the process group"
CLAUSES = [
    Clause(
        "which rank 0 alone writes",
        [SAVES],
        "it is not rank 0 alone that saves",
        "all call; if rank == 0: saves",
        SAVED,
    ),
    Clause(
        "under the names that it had before it was cut",
        [NAMES],
        "the names in the file are others",
        "state_dict() has the weights and the buffers",
        SAVED,
    ),
    Clause(
        "whole, plain tensors on the CPU",
        [KIND],
        "what is in the file is not a plain tensor on the CPU",
        "full_tensor() gathers a DTensor, and cpu() brings it to the host",
        PRACTICE,
    ),
    Clause(
        "torch.load(path) gives",
        [LOADS],
        "torch.load(path) gives nothing",
        "it reads tensors and plain containers alone, since a pickle may run any code",
        SAVED,
    ),
    Clause(
        "The weights have the values",
        [WEIGHTS],
        "the weights in the file are others",
        "to_local() is this rank's rows, full_tensor() all of them",
        PRACTICE,
    ),
    Clause("so have the buffers", [BUFFERS], "the buffers in the file are others", "they are not cut", PRACTICE),
    Clause(
        "on no GPU more than one of them is whole at a time",
        [MOST],
        "several whole tensors lie on a GPU at once",
        "bring each to the host before the next is gathered",
        SAVED,
    ),
    Clause(
        "The model stays cut",
        [AFTER],
        "the model is no longer as it was",
        "only copies of its parts are gathered and moved",
        SAVED,
    ),
    Clause("the process group open", [GROUP], "the process group is closed", "the script goes on with it", SAVED),
]
EDGES = {"ranks": (2, 3), "rows": ("even", "uneven"), "norm": (False, True), "cut": ("by block", "as one")}
BLOCKS, THOSE = 3, "those of the model"


def cut(model: nn.Module, by_block: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    for block in model if by_block and isinstance(model, nn.Sequential) else ():
        fully_shard(block)
    fully_shard(model)


def parts(model: nn.Module) -> list[str]:
    """What this rank has of each parameter, and where."""
    own = [(type(p.data).__name__, getattr(p, "to_local", lambda p=p: p)()) for p in model.parameters()]
    return [f"{kind} {tuple(local.shape)} {local.device}" for kind, local in own]


def on_rank(student: Callable[..., Any], model: nn.Module, by_block: bool, path: str) -> dict[str, Any]:
    """What the call does here."""
    import torch.distributed as dist

    with group() as device:
        largest = max(p.nbytes for p in model.parameters())
        cut(model.to(device), by_block)
        before = parts(model)
        one = peak(lambda: max(model.parameters(), key=torch.numel).full_tensor())  # type: ignore[attr-defined]
        most = peak(lambda: student(model, path))
        more = int((most - one) / largest + 0.1)  # beside the one: pieces of a tensor are not a whole one
        opened = dist.is_initialized()
        kept: Any = None
        loads = "nothing"
        if os.path.exists(path):
            with suppress(Exception):  # whatever the file is
                kept = torch.load(path, weights_only=False)
            try:
                loads = "a dictionary" if isinstance(torch.load(path), dict) else "no dictionary"
            except Exception as error:
                loads = type(error).__name__
        named = isinstance(kept, dict) and all(map(torch.is_tensor, kept.values()))
        return {
            "saved": bool(os.listdir(Path(path).parent)),
            "names": [*map(str, kept)] if named else [f"of a {type(kept).__name__}"],
            "kinds": sorted(
                {f"{type(v).__name__} on {v.device.type}{', with gradients' * v.requires_grad}" for v in kept.values()}
            )
            if named
            else [],
            "values": {n: v.detach().cpu().flatten().tolist() for n, v in kept.items()}
            if named and plain(kept)
            else {},
            "loads": loads,
            "most": ("one", "two", "several")[max(0, min(2, more))],
            "after": "as it was" if parts(model) == before else "another",
            "open": "open" if opened else "closed",
        }


def peak(function: Callable[[], Any]) -> int:
    """The most bytes on this GPU in the call, beside what lay there."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def plain(kept: dict[str, Any]) -> bool:
    return all(type(value.data) is torch.Tensor for value in kept.values())


def names_of(got: Sequence[str], wanted: Collection[str]) -> str:
    """How these names differ from those of the model."""
    missing, more = [name for name in wanted if name not in got], [name for name in got if name not in wanted]
    told = [f"{len(names)} {word}, as {names[0]}" for names, word in ((missing, "missing"), (more, "more")) if names]
    return "; ".join(told) or THOSE


def alike(values: dict[str, list[float]], whole: dict[str, list[float]], names: Collection[str]) -> str:
    """What the file has of these tensors."""
    unlike = [(values[name], whole[name]) for name in sorted(names) if values[name] != whole[name]]
    if not unlike:
        return THOSE
    got, wanted = unlike[0]
    if len(got) != len(wanted):
        return "fewer numbers" if len(got) < len(wanted) else "more numbers"
    if math.dist(got, wanted) < 0.01 * math.hypot(*wanted):
        return "rounded"
    return "others" if any(got) else "zeros"


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    width = 4 * scene.ranks * random.randint(2, 3) - (scene.rows == "uneven")
    blocks = [  # two large tensors one after the other: who holds the first too long has both
        nn.Sequential(
            nn.Linear(width, width, bias=False), nn.Linear(width, width), *[nn.BatchNorm1d(width)] * scene.norm
        )
        for _ in range(BLOCKS)
    ]
    model = nn.Sequential(*blocks).double()
    model.register_buffer("positions", torch.arange(3.0), persistent=False)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(1, 2)
    whole = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        homes = [Path(folder, f"rank{rank}") for rank in range(scene.ranks)]
        for home in homes:
            home.mkdir()
        found = call(on_rank, *[(model, scene.cut == "by block", str(home / "model.pt")) for home in homes])
    facts = Facts(f"{scene.ranks} ranks, matrices of {width} rows, cut {scene.cut}")
    facts.add(SAVES, [rank for rank, told in enumerate(found) if told["saved"]], [0])
    facts.add(NAMES, names_of(found[0]["names"], whole), THOSE)
    facts.add(KIND, found[0]["kinds"], ["Tensor on cpu"])
    if holds(facts, KIND):
        facts.add(LOADS, found[0]["loads"], "a dictionary")
    values, weights = found[0]["values"], {name for name, _ in model.named_parameters()}
    if values.keys() == whole.keys():
        facts.add(WEIGHTS, alike(values, whole, weights), THOSE)
        if scene.norm:
            facts.add(BUFFERS, alike(values, whole, whole.keys() - weights), THOSE)
    facts.add(MOST, [told["most"] for told in found], ["one"] * scene.ranks)
    facts.add(AFTER, [told["after"] for told in found], ["as it was"] * scene.ranks)
    facts.add(GROUP, [told["open"] for told in found], ["open"] * scene.ranks)
    return facts


EXERCISE = Contract(
    __file__,
    says="one file has the whole model, for any program, and nobody held it whole on a GPU",
    parameters=("model", "path"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": {"parameters", "parts", "place", "buffers", "hooks"}},  # judged: whole, or on the host
)
