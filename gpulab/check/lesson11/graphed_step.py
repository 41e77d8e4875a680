"""The check of a training step as a CUDA graph: the same numbers as the plain step, in a third of its time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ...virtual.scope.in_force import backing
from ..audit import ANYTHING
from ..base import OPTIMIZERS
from ..contract import Clause, Contract, Facts, Near
from ..measure import virtual_gpu
from ..races import Race, races
from ..scenes import Scene
from .sections import LAUNCHES, MISTAKES

WIDTH, BATCH, CLASSES, STEPS = 16, 8, 4, 3
KIND, LOSS, FAST = "what came back", "what step returns", "at most a third of the time"
UNREADY = "another stream uses what the caller's may still be writing"
UNFINISHED = "the caller's stream uses what another may still be writing"
IN_STEP = "in step, a stream uses what another may still be using"
KEPT = "losses that later steps change"
LOSSES, OTHERS = "losses", "losses from a batch of another shape on"
ONE = "what a batch of one sample raises, which BatchNorm refuses"
MADE = {
    name: f"{name} when the step is made" for name in ("parameters", "buffers", "moments and counts", "step counts")
}
AFTER = {name: f"{name} after the steps" for name in ("parameters", "buffers", "moments and counts")}
CLAUSES = [
    Clause(
        "a function step(x, y)", [KIND], "what came back is no function", "return step, without calling it", LAUNCHES
    ),
    Clause("returns its loss", [LOSS], "step returns no loss", "a tensor of one number, without a graph", LAUNCHES),
    Clause(
        "Making the step trains nothing",
        list(MADE.values()),
        "making the step has trained",
        "the warm-up trains: keep clones before, and copy them back in place",
        LAUNCHES,
    ),
    Clause(
        "Streams that use the same tensors wait for each other",
        [UNREADY, UNFINISHED, IN_STEP],
        "a stream does not wait for another",
        "what two streams were given may run at one time: before the warm-up side.wait_stream(current), and after it "
        "current.wait_stream(side)",
        LAUNCHES,
    ),
    Clause(
        "In step, losses, parameters, buffers and moments are those of the plain step",
        [LOSSES, *AFTER.values()],
        "the step is not the plain one",
        "",
        LAUNCHES,
    ),
    Clause(
        "A batch of another shape is trained as well",
        [OTHERS, ONE],
        "a batch of another shape goes wrong",
        "",
        LAUNCHES,
    ),
    Clause(
        "stays what it was in later steps", [KEPT], "a loss changes later", "each replay writes there: clone", LAUNCHES
    ),
    Clause("at most a third of the time", [FAST], "it is not three times as fast", "", MISTAKES),
]
EDGES = {
    "norm": ("BatchNorm", "LayerNorm"),
    "steps_before": (0, 2),
    "other": ("no batch of another shape", "a smaller one at the end", "a larger one between"),
}
DEPTH = {"BatchNorm": 3, "LayerNorm": 2}


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


class State:
    """Copies of what a step changes, by kind. Moments that do not exist are as good as zeros."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.cuda.current_stream().synchronize()
        with backing, torch.no_grad():  # the values themselves: as operations of the GPU these take longer than a step
            self.parameters = torch.cat([p.flatten() for p in model.parameters()])
            self.buffers = torch.cat([b.flatten().float() for b in model.buffers()] or [torch.zeros(1)])
            moments, counts = [], []
            for parameter in model.parameters():
                state = optimizer.state.get(parameter, {})
                moments += [state.get(key, torch.zeros_like(parameter)).flatten() for key in ("exp_avg", "exp_avg_sq")]
                counts.append(float(state.get("step", 0.0)))
            self.moments, self.counts = torch.cat(moments), sorted(set(counts))


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    depth = DEPTH[scene.norm]
    facts = Facts(f"{scene.norm}, {depth} layers, {scene.steps_before} steps before, {scene.other}")
    with virtual_gpu("A100-80") as gpu:
        norm = {"BatchNorm": nn.BatchNorm1d, "LayerNorm": nn.LayerNorm}[scene.norm]
        # A bias before BatchNorm has no gradient but rounding, which AdamW makes whole steps of.
        layers = [
            make() for _ in range(depth) for make in (lambda: nn.Linear(WIDTH, WIDTH, bias=False), lambda: norm(WIDTH))
        ]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)
        batches = [batch_of(BATCH) for _ in range(STEPS + 1)]
        for x, y in batches[: scene.steps_before]:
            plain_step(model, optimizer, x, y)
        twin = copy.deepcopy(model)
        twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01, capturable=True)
        if scene.steps_before:
            twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        before = State(model, optimizer)
        rest = batches[1:]
        small, large = batch_of(3), batch_of(11)
        order = {
            "no batch of another shape": rest,
            "a smaller one at the end": [*rest, small],
            "a larger one between": [*rest[:2], large, *rest[2:]],
        }[scene.other]
        seen = dict[str, Any]()
        callers = torch.cuda.current_stream().cuda_stream
        timed = order is rest
        streams = scene.other == "a smaller one at the end" and scene.steps_before  # of one scene at least

        def through(student: Callable[..., Any], model: Any, optimizer: Any, x: Any, y: Any) -> Any:
            watching: AbstractContextManager[list[Race]] = races() if streams else nullcontext([])
            with watching as seen["races"]:
                step = student(model, optimizer, x, y)
                seen["made"], seen["in making"] = State(model, optimizer), len(seen["races"])
                if not callable(step):
                    return step
                seen["returned"] = returned = []
                seen["losses"] = losses = []
                for x, y in order:
                    returned.append(step(x, y))
                    losses.append(float(returned[-1]) if is_loss(returned[-1]) else None)
                seen["after"] = State(model, optimizer)
            if timed:
                seen["seconds"] = took(gpu, lambda: step(*rest[0]))
            if scene.norm == "BatchNorm":
                seen["of one"] = raised(lambda: step(small[0][:1], small[1][:1]))
            return step

        trained = {"model": ANYTHING, "optimizer": ANYTHING}
        got = call(model, optimizer, *batches[0], through=through, may_change=trained, besides={"the batches": order})
        wanted = [float(plain_step(twin, twin_optimizer, x, y)) for x, y in order]
        true = State(twin, twin_optimizer)
        seconds = took(gpu, lambda: plain_step(twin, twin_optimizer, *rest[0])) if timed else 0.0
        facts.add(KIND, "a function" if callable(got) else type(got).__name__, "a function")
        if not callable(got):
            return facts
        losses, returned, made, after = seen["losses"], seen["returned"], seen["made"], seen["after"]
        if streams:
            uses = {race.stream for race in seen["races"][: seen["in making"]] if not race.freed}
            facts.add(UNREADY, bool(uses - {callers}), False)
            facts.add(UNFINISHED, callers in uses, False)
            facts.add(IN_STEP, any(not race.freed for race in seen["races"][seen["in making"] :]), False)
        facts.add(LOSS, "a loss" if None not in losses else kind_of(returned), "a loss")
        facts.add(MADE["parameters"], made.parameters, Near(before.parameters, 1e-5))
        facts.add(MADE["buffers"], made.buffers, Near(before.buffers, 1e-5))
        facts.add(MADE["moments and counts"], made.moments, Near(before.moments, 1e-4))
        facts.add(MADE["step counts"], made.counts, before.counts)
        if facts.hold():
            usual = 2 if scene.other == "a larger one between" else STEPS  # so many before the other one
            facts.add(LOSSES, losses[:usual], Near(wanted[:usual], 1e-3))
        if facts.hold() and order is not rest:
            facts.add(OTHERS, losses[usual:], Near(wanted[usual:], 1e-3))
        if facts.hold():
            facts.add(AFTER["parameters"], after.parameters, Near(true.parameters, 1e-2))
            facts.add(AFTER["buffers"], after.buffers, Near(true.buffers, 1e-2))
            facts.add(AFTER["moments and counts"], after.moments, Near(true.moments, 3e-2))
        if facts.hold() and scene.norm == "BatchNorm":
            facts.add(ONE, seen["of one"], "ValueError")
        if None not in losses:
            later = [float(one) for one in returned]
            facts.add(KEPT, sum(a != b for a, b in zip(later, losses, strict=True)), 0)
        if timed and facts.hold():
            facts.add(FAST, 3 * seen["seconds"] <= seconds, True)
            facts.seen["times as fast"] = round(seconds / seen["seconds"], 1)
    return facts


def batch_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, WIDTH, device="cuda"), torch.randint(CLASSES, (rows,), device="cuda")


def took(gpu: Any, function: Callable[[], Any], calls: int = 2) -> float:
    """Virtual seconds of some calls."""
    torch.cuda.synchronize()
    begin = gpu.clock.host
    for _ in range(calls):
        function()
    torch.cuda.synchronize()
    return float(gpu.clock.host - begin)


def raised(function: Callable[[], Any]) -> str:
    try:
        function()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__
    return "nothing"


def is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad


def kind_of(returned: list[Any]) -> str:
    worst = next(value for value in returned if not is_loss(value))
    if isinstance(worst, torch.Tensor):
        return "a tensor with a graph" if worst.requires_grad else f"a tensor of shape {tuple(worst.shape)}"
    return type(worst).__name__


GRAPHS = "torch.cuda._graph_node_callbacks"  # what PyTorch imports for the first capture, where it has that
EXERCISE = Contract(
    __file__,
    says="the plain step's numbers, from the same start, in a third of its time",
    imports=[OPTIMIZERS, *([GRAPHS] if find_spec(GRAPHS) else [])],
    parameters=("model", "optimizer", "x", "y"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    alike=0.03,  # AdamW makes whole steps of small gradients, in which processors differ
)
