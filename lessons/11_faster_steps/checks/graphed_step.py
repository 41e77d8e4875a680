"""Checks exercise 11.3, "three times as fast": a step as a CUDA graph with the same numbers, in a third of the time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.audit import ANYTHING
from gpulab.exercise.base import OPTIMIZERS
from gpulab.exercise.contract import Clause, Contract, Facts, Near
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.races import Race, races
from gpulab.exercise.scenes import Scene
from virtualgpu.scope.in_force import backing

WIDTH, BATCH, CLASSES, STEPS = 16, 8, 4, 3
DEPTH = {"BatchNorm": 3, "LayerNorm": 2}
KIND, LOSS, FAST = "what came back", "what step returns", "at most a third of the time"
UNREADY = "another stream uses what the caller's may still be writing"
UNFINISHED = "the caller's stream uses what another may still be writing"
IN_STEP, KEPT = "in step, a stream uses what another may still be using", "losses that later steps change"
LOSSES, OTHERS, BESIDE = "losses", "losses from a batch of another shape on", "losses of a step that is made beside it"
ONE = "what a batch of one sample raises, which BatchNorm refuses"
TRAINED = ("parameters", "buffers", "moments and counts")
MADE, AFTER = "{} when the step is made", "{} after the steps"
LAUNCHES = "Fewer launches"
RATE = "a step at a learning rate of 0 moves the parameters"
CLAUSES = [
    Clause(quote, facts, summary, rule, read)
    for facts, quote, summary, rule, read in (
        ([KIND], "a function step(x, y)", "what was returned is not a function", "return step, without calling it",
         LAUNCHES),
        ([LOSS], "returns its loss", "step returns no loss", "a tensor of one number, without a graph", LAUNCHES),
        ([MADE.format(name) for name in (*TRAINED, "step counts")], "Making the step trains nothing",
         "making the step has trained", "the warm-up trains: keep clones from before it, and copy them back in place",
         LAUNCHES),
        ([UNREADY, UNFINISHED, IN_STEP], "Streams that use the same tensors wait for each other",
         "a stream does not wait for another",
         "work in two streams may run at the same time: before the warm-up side.wait_stream(current), and after it "
         "current.wait_stream(side)", LAUNCHES),
        ([LOSSES, BESIDE, *map(AFTER.format, TRAINED)],
         "After each batch, loss, parameters, buffers and moments are those of the plain step",
         "the step is not the plain one", "", LAUNCHES),
        ([OTHERS, ONE], "A batch of another shape is trained as well",
         "a batch of another shape is not trained correctly", "",
         LAUNCHES),
        ([KEPT], "does not change in later steps", "a loss changes later", "each replay writes there: clone",
         LAUNCHES),
        ([RATE], "A learning rate that is changed between two steps applies from the next step on",
         "the learning rate of the capture stays", "a replay repeats a number: make each group's lr a tensor before it",
         "What else is frozen"),
        ([FAST], "at most a third of the time", "it is not three times as fast", "", "Common mistakes"),
    )
]  # fmt: skip
EDGES = {
    "norm": tuple(DEPTH),
    "steps_before": (0, 2),
    "other": ("no batch of another shape", "smaller ones at the end", "larger ones between"),
}


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copies of what a step changes, by kind. Moments that do not exist are as good as zeros."""
    torch.cuda.current_stream().synchronize()
    with backing, torch.no_grad():  # the values themselves: as operations of the GPU these take longer than a step
        moments, counts = [], set()
        for p in model.parameters():
            state = optimizer.state.get(p, {})
            moments += [state.get(key, torch.zeros_like(p)).flatten() for key in ("exp_avg", "exp_avg_sq")]
            counts.add(float(state.get("step", 0.0)))
        return {
            "parameters": torch.cat([p.flatten() for p in model.parameters()]),
            "buffers": torch.cat([b.flatten().float() for b in model.buffers()] or [torch.zeros(1)]),
            "moments and counts": torch.cat(moments),
            "step counts": sorted(counts),
        }


def trainer(norm: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    layer = {"BatchNorm": nn.BatchNorm1d, "LayerNorm": nn.LayerNorm}[norm]
    # A bias before BatchNorm has no gradient but rounding, which AdamW makes whole steps of.
    layers = [part for _ in range(DEPTH[norm]) for part in (nn.Linear(WIDTH, WIDTH, bias=False), layer(WIDTH))]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)


def twin_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    twin = copy.deepcopy(model)
    its_optimizer = torch.optim.AdamW(twin.parameters(), lr=0.01, capturable=True)
    if optimizer.state:
        its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return twin, its_optimizer


def batch_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, WIDTH, device="cuda"), torch.randint(CLASSES, (rows,), device="cuda")


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    facts = Facts(f"{scene.norm}, {DEPTH[scene.norm]} layers, {scene.steps_before} steps before, {scene.other}")
    with virtual_gpu("A100-80") as gpu:
        model, optimizer = trainer(scene.norm)
        first, *rest = [batch_of(BATCH) for _ in range(STEPS + 1)]
        for x, y in [first, *rest][: scene.steps_before]:
            plain_step(model, optimizer, x, y)
        twin, another = twin_of(model, optimizer), None
        before = state_of(model, optimizer)
        small, large = [batch_of(3) for _ in range(2)], [batch_of(11) for _ in range(2)]
        orders = [*rest], [*rest, *small], [*rest[:2], *large, *rest[2:]]
        order = orders[EDGES["other"].index(scene.other)]
        usual = 2 if "between" in scene.other else STEPS  # so many before the others
        timed = scene.other == "no batch of another shape"
        if timed and scene.norm == "LayerNorm":  # of one scene at least
            another = trainer(scene.norm)
            its_twin = twin_of(*another)
        streams = "at the end" in scene.other and scene.steps_before  # of one scene at least
        seen, callers = dict[str, Any](), torch.cuda.current_stream().cuda_stream

        def through(student: Callable[..., Any], model: Any, optimizer: Any, x: Any, y: Any) -> Any:
            watching: AbstractContextManager[list[Race]] = races() if streams else nullcontext([])
            with watching as seen["races"]:
                step = student(model, optimizer, x, y)
                seen["made"], seen["in making"] = state_of(model, optimizer), len(seen["races"])
                if not callable(step):
                    return step
                beside = student(*another, x, y) if another else None
                seen.update(returned=(returned := []), losses=(losses := []), beside=[])
                for x, y in order:
                    returned.append(step(x, y))
                    losses.append(float(returned[-1]) if is_loss(returned[-1]) else None)
                    if beside and losses[-1] is not None:
                        seen["beside"].append(float(beside(x, y)))
                seen["after"] = state_of(model, optimizer)
            if timed:
                seen["seconds"] = took(gpu, lambda: step(*rest[0]))
            if scene.norm == "BatchNorm":
                seen["of one"] = raised(lambda: step(small[0][0][:1], small[0][1][:1]))
            seen["at rate 0"] = moves_at_rate_zero(model, optimizer, lambda: step(*rest[0]))
            return step

        trained = {"model": ANYTHING, "optimizer": ANYTHING}
        got = call(model, optimizer, *first, through=through, may_change=trained, besides={"the batches": order})
        wanted = [float(plain_step(*twin, x, y)) for x, y in order]
        true = state_of(*twin)
        seconds = took(gpu, lambda: plain_step(*twin, *rest[0])) if timed else 0.0
        facts.add(KIND, "a function" if callable(got) else type(got).__name__, "a function")
        if not callable(got):
            return facts
        losses, returned = seen["losses"], seen["returned"]
        if streams:
            uses = {race.stream for race in seen["races"][: seen["in making"]] if not race.freed}
            facts.add(UNREADY, bool(uses - {callers}), False)
            facts.add(UNFINISHED, callers in uses, False)
            facts.add(IN_STEP, any(not race.freed for race in seen["races"][seen["in making"] :]), False)
        facts.add(LOSS, "a loss" if None not in losses else kind_of(returned), "a loss")
        for name, within in zip(TRAINED, (1e-5, 1e-5, 1e-4), strict=True):
            facts.add(MADE.format(name), seen["made"][name], Near(before[name], within))
        facts.add(MADE.format("step counts"), seen["made"]["step counts"], before["step counts"])
        if facts.hold():
            facts.add(LOSSES, losses[:usual], Near(wanted[:usual], 1e-3))
        if facts.hold() and another:
            facts.add(BESIDE, seen["beside"], Near([float(plain_step(*its_twin, x, y)) for x, y in order], 1e-3))
        if facts.hold() and not timed:
            facts.add(OTHERS, losses[usual:], Near(wanted[usual:], 1e-3))
        if facts.hold():
            for name, within in zip(TRAINED, (1e-2, 1e-2, 3e-2), strict=True):
                facts.add(AFTER.format(name), seen["after"][name], Near(true[name], within))
        if facts.hold() and scene.norm == "BatchNorm":
            facts.add(ONE, seen["of one"], "ValueError")
        if facts.hold():
            facts.add(RATE, seen["at rate 0"], False)
        if None not in losses:
            facts.add(KEPT, sum(float(one) != loss for one, loss in zip(returned, losses, strict=True)), 0)
        if timed and facts.hold():
            facts.add(FAST, 3 * seen["seconds"] <= seconds, True)
            facts.seen["times as fast"] = round(seconds / seen["seconds"], 1)
    return facts


def took(gpu: Any, function: Callable[[], Any], calls: int = 2) -> float:
    """Virtual seconds of some calls."""
    torch.cuda.synchronize()
    begin = gpu.clock.host
    for _ in range(calls):
        function()
    torch.cuda.synchronize()
    return float(gpu.clock.host - begin)


def moves_at_rate_zero(model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> bool:
    """Set the learning rate as PyTorch's schedulers do, make a step, and tell whether it moves a parameter."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(0.0)
        else:
            group["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    step()
    return not all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


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
