"""List segments and blocks in the format of `torch.cuda.memory._snapshot()`.

The lists of stack frames are empty here; `history` fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .blocks import HELD, LIVE, UNMAPPED, Block

_STATES = {LIVE: "active_allocated", HELD: "active_pending_free"}


def segments(heads: Iterable[Block], *, device: int, expandable: bool) -> list[dict[str, Any]]:
    """Return an entry for every segment, by address; of an expandable one, for every mapped stretch."""
    ordered = sorted(heads, key=lambda block: block.address)
    return [_entry(blocks, device, expandable) for head in ordered for blocks in _mapped(head)]


def _mapped(head: Block) -> Iterator[list[Block]]:
    stretch: list[Block] = []
    block: Block | None = head
    while block is not None:
        if block.state != UNMAPPED:
            stretch.append(block)
        elif stretch:
            yield stretch
            stretch = []
        block = block.next
    if stretch:
        yield stretch


def _entry(blocks: list[Block], device: int, expandable: bool) -> dict[str, Any]:
    pool, live = blocks[0].pool, [block for block in blocks if block.state == LIVE]
    allocated = sum(block.size for block in live)
    held = [block for block in blocks if block.state == HELD]
    return {
        "device": device,
        "address": blocks[0].address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": allocated,
        "active_size": allocated + sum(block.size for block in held),
        "requested_size": sum(block.requested for block in (*live, *held)),
        "stream": pool.stream,
        "segment_type": "small" if pool.small else "large",
        "segment_pool_id": pool.id,
        "is_expandable": expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested if block.state in _STATES else 0,
                "state": _STATES.get(block.state, "inactive"),
                "frames": [],
            }
            for block in blocks
        ],
    }
