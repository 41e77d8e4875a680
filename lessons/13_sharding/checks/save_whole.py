"""Checks that a sharded model is saved to one file: real ranks, each with a virtual GPU and a path of its own."""

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

from gpulab.exercise.contract import Clause, Contract, Facts, holds
from gpulab.exercise.groups import group
from gpulab.exercise.scenes import Scene

PRACTICE, SAVED = "fully_shard in practice", "Saved on two, loaded on one and on three"
SAVES, NAMES, KIND = "ranks that have saved", "names in the file", "kind of the values"
LOADS, WEIGHTS, BUFFERS = "torch.load(path)", "the weights", "the buffers"
MOST, AFTER, GROUP = "memory at most on each GPU, in whole tensors", "the model afterwards", "the process group"
CLAUSES = [
    Clause(quote, [fact], summary, rule, read)
    for read, fact, quote, summary, rule in (
        (SAVED, SAVES, "which rank 0 alone writes", "it is not rank 0 alone that saves", "at each call"),
        (SAVED, NAMES, "under the names that they had before sharding", "the names in the file are wrong",
         "state_dict() has both weights and buffers"),
        (PRACTICE, KIND, "whole, plain tensors on the CPU",
         "the file has something other than plain tensors on the CPU",
         "the program that loads it may have no GPU and no process group"),
        (SAVED, LOADS, "torch.load(path) returns", "torch.load(path) does not read the file",
         "it reads only tensors and plain containers, because a pickle can run any code"),
        (PRACTICE, WEIGHTS, "The weights have their current values", "the weights in the file are wrong",
         "save all rows, with their values at this call"),
        (PRACTICE, BUFFERS, "so do the buffers", "the buffers in the file are wrong", "they are not sharded"),
        (SAVED, MOST, "on no GPU is more than one weight whole at a time", "a GPU has held more than one whole tensor",
         "beside it there is room only for a shard"),
        (SAVED, AFTER, "The model stays sharded", "the model has changed",
         "each rank must keep its rows where they were"),
        (SAVED, GROUP, "the process group open", "the process group is closed", "the script continues to use it"),
    )
]  # fmt: skip
EDGES = {"ranks": (2, 3), "rows": ("even", "uneven"), "norm": (False, True), "cut": ("by block", "as one")}
EDGES |= {"again": (False, True)}  # a second call, with other weights
BLOCKS, THOSE, ONE = 3, "those of the model", "one and a part"


def cut(model: nn.Module, by_block: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    for block in model if by_block and isinstance(model, nn.Sequential) else ():
        fully_shard(block)
    fully_shard(model)


def parts(model: nn.Module) -> list[str]:
    """What this rank has of each parameter, and where."""
    own = [(type(p.data).__name__, getattr(p, "to_local", lambda p=p: p)()) for p in model.parameters()]
    return [f"{kind} {tuple(local.shape)} {local.device}" for kind, local in own]


def on_rank(student: Callable[..., Any], model: nn.Module, scene: Scene, path: str) -> dict[str, Any]:
    """What the call does here: one of several, as of a run that saves now and then."""
    import torch.distributed as dist

    with group() as device:
        largest = max(p.nbytes for p in model.parameters())
        cut(model.to(device), scene.cut == "by block")
        before, calls, most = parts(model), 0, 0
        one = peak(lambda: max(model.parameters(), key=torch.numel).full_tensor())  # type: ignore[attr-defined]
        while calls <= scene.again and parts(model) == before and dist.is_initialized():
            with torch.no_grad():
                for p in model.parameters() if calls else ():
                    p.mul_(2)
            most = peak(lambda: student(model, path))
            calls += 1
        more = int((most - one) / largest + 0.1)  # pieces of a tensor are not a whole one
        opened, loads, kept = dist.is_initialized(), "nothing", None
        if os.path.exists(path):
            with suppress(Exception):  # whatever the file is
                kept = torch.load(path, weights_only=False)
            try:
                loads = "a dictionary" if isinstance(torch.load(path), dict) else "no dictionary"
            except Exception as error:
                loads = type(error).__name__
        named = kept if isinstance(kept, dict) and all(map(torch.is_tensor, kept.values())) else {}
        kinds = {f"{type(v).__name__} on {v.device.type}{', with gradients' * v.requires_grad}" for v in named.values()}
        plain = all(type(value.data) is torch.Tensor for value in named.values())
        return {
            "calls": calls,
            "saved": bool(os.listdir(Path(path).parent)),
            "names": [*map(str, named)] or [f"of a {type(kept).__name__}"],
            "kinds": sorted(kinds),
            "values": {n: v.detach().cpu().flatten().tolist() for n, v in named.items()} if plain else {},
            "loads": loads,
            "most": (ONE, "as much as two", "as much as several")[max(0, min(2, more))],
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
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(1, 2)  # no number that has room in fewer bits
    with TemporaryDirectory() as folder:
        homes = [Path(folder, f"rank{rank}") for rank in range(scene.ranks)]
        for home in homes:
            home.mkdir()
        found = call(on_rank, *[(model, scene, str(home / "model.pt")) for home in homes])
    values, weights = found[0]["values"], {name for name, _ in model.named_parameters()}
    twice = {name: 1 + (found[0]["calls"] == 2 and name in weights) for name in model.state_dict()}
    whole = {name: (value * twice[name]).flatten().tolist() for name, value in model.state_dict().items()}
    facts = Facts(f"{scene.ranks} ranks, matrices of {width} rows, cut {scene.cut}{', the second call' * scene.again}")
    facts.add(SAVES, [rank for rank, told in enumerate(found) if told["saved"]], [0])
    facts.add(NAMES, names_of(found[0]["names"], whole), THOSE)
    facts.add(KIND, found[0]["kinds"], ["Tensor on cpu"])
    if holds(facts, KIND):
        facts.add(LOADS, found[0]["loads"], "a dictionary")
    if values.keys() == whole.keys():
        facts.add(WEIGHTS, alike(values, whole, weights), THOSE)
        if scene.norm:
            facts.add(BUFFERS, alike(values, whole, whole.keys() - weights), THOSE)
    facts.add(MOST, [told["most"] for told in found], [ONE] * scene.ranks)
    facts.add(AFTER, [told["after"] for told in found], ["as it was"] * scene.ranks)
    facts.add(GROUP, [told["open"] for told in found], ["open"] * scene.ranks)
    return facts


EXERCISE = Contract(
    __file__,
    says="one file has the whole model, for any program, and no GPU ever held it whole",
    parameters=("model", "path"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    ranks=3,
    may_change={"model": {"parameters", "parts", "place", "buffers", "hooks"}},  # judged: whole, or on the host
)
