"""The check of a run that goes on: a twin that was never interrupted, on one virtual GPU or two, to the bit."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from ...virtual.scope.in_force import backing
from .. import settings
from ..base import OPTIMIZERS, SAVING, Trial
from ..contract import Clause, Contract, Facts
from ..measure import virtual_gpu
from ..scenes import Scene
from ..wording import show, text_of
from .sections import SAME

BATCHES, ROWS, WIDTH, NEXT_STEPS = 3, 4, 4, 2
PARTS = ("model", "optimizer", "scheduler", "scaler")
METHODS = "methods that are missing"
KIND, STAYS, READ = "what state_dict() returns", "what changes in it later", "torch.load(weights_only=True)"
KEPT = "what changes in it when it has been loaded"
LIVE, LOADED, NEXT = "what saving changes in the run", "loading a state whose tensors lie on a GPU", "the next steps"
OWN, HELD = "run's own objects", "parameters of the model that the optimizer steps"
WEIGHTS, BUFFERS, MOMENTS, GROUPS = "weights", "buffers", "the optimizer's state", "the optimizer's groups"
SCHEDULE, SCALER, PLACE, ORDER = "the schedule", "the scaler", "epoch and place", "order"
PYTHON, NUMPY, CPU, GPUS = (
    f"the generator of {name}" for name in ("Python", "NumPy", "PyTorch on the CPU", "each GPU")
)
AS_SAVED, NOTHING = "as saved", "nothing"
CLAUSES = [
    Clause(quote, facts, summary, likely, SAME)
    for quote, facts, summary, likely in (
        ("with the two methods", [METHODS], "a method is missing", "state_dict() and load_state_dict(state)"),
        ("a dictionary", [KIND], "state_dict() returns no dictionary", "return one, with a name for each part"),
        (
            "torch.load(path, weights_only=True) reads it",
            [READ],
            "what was saved cannot be read",
            "tensors, numbers, lists",
        ),
        ("It stays what it is while run goes on", [STAYS], "the state changes while the run goes on", "a copy"),
        ("also when it has been loaded", [KEPT], "a state that has been loaded changes", "load a copy of it"),
        ("run itself goes on as if nobody had looked", [LIVE], "saving disturbs the run", ""),
        ("on whichever device", [LOADED], "a state on the GPU is not loaded", "cpu()"),
        ("stay the same objects", [OWN], "one of run's objects is another one now", "load_state_dict, in place"),
        ("steps the model's own parameters", [HELD], "the optimizer steps what the model does not use", ""),
        ("run.model,", [WEIGHTS, BUFFERS], "the model is not as saved", "its state_dict() has weights and buffers"),
        ("run.optimizer,", [MOMENTS, GROUPS], "the optimizer is not as saved", "moments, counts and groups"),
        ("run.scheduler", [SCHEDULE], "the schedule is not as saved", "it has a state_dict() of its own"),
        ("run.scaler", [SCALER], "the scaler is not as saved", "its scale, and how many good steps it has counted"),
        ("epochs that are done, and batches of the one that is not", [PLACE], "the run goes on at another place", ""),
        ("the order of this epoch's data", [ORDER], "the rest of the epoch comes in another order", ""),
        ("generators of Python", [PYTHON], "Python's random numbers go on elsewhere", "random.getstate()"),
        ("NumPy", [NUMPY], "NumPy's random numbers go on elsewhere", "np.random.get_state()"),
        ("PyTorch on the CPU", [CPU], "PyTorch's random numbers go on elsewhere", "torch.get_rng_state()"),
        ("each GPU", [GPUS], "a GPU's random numbers go on elsewhere", "torch.cuda.get_rng_state_all()"),
        ("those of the run that was saved, to the bit", [NEXT], "the next steps are others", ""),
    )
]
FIRST, START, MIDDLE = "the very beginning", "the start of an epoch", "the middle of an epoch"
DONE = {FIRST: (0,), START: (BATCHES,), MIDDLE: (BATCHES - 1, BATCHES + 1)}  # steps: one of these numbers
EDGES = {
    "at": (FIRST, START, MIDDLE),
    "dropout": (0.5, 0.0),
    "gpus": (2, 1),
    "overflow": (True, False),
    "schedule": ("step", "epoch"),
    "kept": ("in a file, loaded to the CPU", "in a file, loaded to a GPU", "in memory"),
}


class Net(nn.Module):
    """A half on the first of these devices, another on the last; both draw."""

    def __init__(self, devices: list[str], dropout: float) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Dropout(dropout)).to(devices[0])
        self.last = nn.Sequential(nn.Dropout(dropout), nn.Linear(6, 3)).to(devices[-1])
        self.devices = devices

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.to(self.devices[0])).to(self.devices[-1])
        out: torch.Tensor = self.last(x)
        return out


class Run:
    """A run as the exercise has it; all generators are seeded first."""

    def __init__(self, scene: Scene, seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.model = Net([f"cuda:{i}" for i in range(scene.gpus)], scene.dropout)
        groups: list[dict[str, Any]] = [
            {"params": self.model.first.parameters(), "weight_decay": 0.1},
            {"params": self.model.last.parameters()},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=8.0, growth_interval=3)
        self.epoch = self.place = 0
        self.order: Any = None
        self._scene = scene
        self.log: list[tuple[float, ...]] = []  # of each step: loss, scale, learning rates

    def step(self) -> None:
        if self.place == 0:
            self.order = torch.randperm(BATCHES * ROWS)
        rows = self.order[ROWS * self.place : ROWS * (self.place + 1)]
        x = (rows[:, None] + torch.arange(WIDTH)).sin() + torch.randn(ROWS, WIDTH)
        x = x * (random.gauss(1, 0.3) + np.random.normal(1, 0.3))  # of two such numbers each generator keeps the second
        loss = F.cross_entropy(self.model(x), (rows % 3).to(self.model.devices[-1]))
        bad = self._scene.overflow and (self.epoch, self.place) == (
            0,
            1,
        )  # an epoch that the loaded run has left behind
        self.optimizer.zero_grad()
        self.scaler.scale(loss * float("inf") if bad else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.place += 1
        if self.place == BATCHES:
            self.epoch, self.place = self.epoch + 1, 0
        if self._scene.schedule == "step" or self.place == 0:
            self.scheduler.step()
        self.log.append(
            (float(loss.detach()), self.scaler.get_scale(), *(group["lr"] for group in self.optimizer.param_groups))
        )


def beside_of(run: Run) -> dict[str, Any]:
    """What else saving leaves alone."""
    parameters = [*run.model.parameters()]
    return {
        "training mode": [module.training for module in run.model.modules()],
        "devices of the weights": [str(p.device) for p in parameters],
        "what is trained": [p.requires_grad for p in parameters],
        "gradients": [None if p.grad is None else p.grad.nan_to_num() for p in parameters],
    }


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    if isinstance(value, list | tuple) and whole(value):
        return
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from leaves(item)


def whole(values: Sequence[Any]) -> bool:
    """Whether they are whole numbers, as the 625 of Python's generator: these are looked at together."""
    return set(map(type, values)) == {int}


def copied(value: Any) -> Any:
    """Of a state what is looked at: entries, tensors, numbers and texts."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [*value] if whole(value) else [*map(copied, value)]
    return value if isinstance(value, int | float | str) else None


def changes(old: Any, state: Any) -> str:
    """What of the state is no longer as in its copy."""
    now = copied(state)
    pairs = [*zip(leaves(old), leaves(now), strict=False)]
    others = sum(not equal(a, b) for a, b in pairs)
    return NOTHING if equal(old, now) else f"{others} tensors" if others else "its entries"


def pieces(run: Any) -> dict[str, Any]:
    """Copies of what the next steps depend on."""
    state = [run.optimizer.state.get(p, {}) for p in run.model.parameters()]
    groups = [{k: v for k, v in group.items() if k != "params"} for group in run.optimizer.param_groups]
    scaler = run.scaler.state_dict()
    numpy: Any = np.random.get_state()
    with backing, torch.no_grad():  # the values themselves: a copy to the host for each would take as long as a step
        weights = [p.clone() for p in run.model.parameters()]
        buffers = [b.clone() for b in run.model.buffers()]
        moments = [{k: v.clone() for k, v in of.items()} for of in state]
    return {
        WEIGHTS: weights,
        BUFFERS: buffers,
        MOMENTS: moments,
        GROUPS: groups,
        SCHEDULE: [run.scheduler.last_epoch, *run.scheduler.get_last_lr()],
        SCALER: [scaler["scale"], scaler["_growth_tracker"]],
        PLACE: [run.epoch, run.place],
        ORDER: run.order if run.order is None else run.order.clone(),
        PYTHON: [str(part) for part in random.getstate()],
        NUMPY: (numpy[1].tobytes(), *numpy[2:]),
        CPU: torch.get_rng_state(),
        GPUS: torch.cuda.get_rng_state_all(),
    }


def steps(run: Run) -> str:
    """Make the next steps of this run; what they raise, in words."""
    try:
        for _ in range(NEXT_STEPS):
            run.step()
    except Exception as error:  # whatever a student's methods have left undone
        return f"raise {type(error).__name__}: {text_of(error, 80)}"
    return ""


def equal(a: Any, b: Any) -> bool:
    """To the bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.device == b.device and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        if not isinstance(b, list | tuple) or len(a) != len(b):
            return False
        return [*a] == [*b] if whole(a) and whole(b) else all(map(equal, a, b))
    return bool(type(a) is type(b) and a == b)


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    gpus = "one GPU" if scene.gpus == 1 else "two GPUs"
    facts = Facts(f"saved at {scene.at}, {gpus}, dropout {scene.dropout}, the state {scene.kept}")
    seed, seen, done = random.randrange(10**6), SimpleNamespace(), random.choice(DONE[scene.at])

    def through(make: Callable[..., Any]) -> None:
        live = Run(scene, seed)
        made = make(live)  # once, and asked later, at a checkpoint
        for _ in range(done):
            live.step()
        saved, beside = pieces(live), beside_of(live)
        missing = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(made, name, None))]
        facts.add(METHODS, missing, [])
        if missing:
            return
        state = made.state_dict()
        facts.add(KIND, "a dictionary" if isinstance(state, dict) else show(state, 40), "a dictionary")
        if not facts.hold():
            return
        changed = [name for name, value in pieces(live).items() if not equal(value, saved[name])]
        changed += [name for name, value in beside_of(live).items() if not equal(value, beside[name])]
        facts.add(LIVE, ", ".join(changed) or NOTHING, NOTHING)
        if scene.kept != "in memory":
            try:
                torch.save(state, file := io.BytesIO())
                file.seek(0)
                where = "cuda:0" if "GPU" in scene.kept else "cpu"
                state = torch.load(file, weights_only=True, map_location=where)
                facts.add(READ, "read", "read")
            except Exception as error:
                facts.add(READ, type(error).__name__, "read")
                return
        then = copied(state)
        if raised := steps(live):
            facts.add(LIVE, f"the next steps {raised}", NOTHING)
            return
        wanted = live.log[done:], pieces(live)
        facts.add(STAYS, changes(then, state), NOTHING)
        if not facts.hold():
            return
        run = Run(scene, seed + 1)
        run.step()
        own, before = [getattr(run, part) for part in PARTS], pieces(run)
        loaded = make(run)
        try:
            loaded.load_state_dict(state)
        except Exception as error:
            if "to a GPU" not in scene.kept:
                raise
            facts.add(LOADED, f"{type(error).__name__}: {text_of(error, 80)}", "loaded")
            return
        facts.add(LOADED, "loaded", "loaded") if "to a GPU" in scene.kept else None
        seen.__dict__.update(run=run, own=own, before=before, saved=saved, wanted=wanted)
        judge(facts, seen)
        if facts.hold() and scene.kept == "in memory":
            facts.add(KEPT, changes(then, state), NOTHING)

    def with_states(make: Callable[..., Any]) -> None:
        states = settings.random_states()
        try:
            through(make)
        finally:
            settings.put_back_random(states)  # of seeds that are not the student's nobody has to ask

    with virtual_gpu(count=scene.gpus):
        torch.cuda.init()
        call(through=with_states)
    return facts


def judge(facts: Facts, seen: SimpleNamespace) -> None:
    """What the run is after it was loaded, part by part; then its steps."""
    run, now = seen.run, pieces(seen.run)
    mine = [*run.model.parameters()]
    others = [part for part, old in zip(PARTS, seen.own, strict=True) if getattr(run, part) is not old]
    facts.add(OWN, ", ".join(others) or "the same", "the same")
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    facts.add(HELD, sum(id(p) in held for p in mine), len(mine))
    if not facts.hold():
        return
    for name, value in now.items():
        if name == ORDER and run.epoch and not run.place:
            continue  # the next step draws another one
        left = "as before loading" if equal(value, seen.before[name]) else "others"
        facts.add(name, AS_SAVED if equal(value, seen.saved[name]) else left, AS_SAVED)
    if not facts.hold():
        return
    run.log.clear()
    if raised := steps(run):
        facts.add(NEXT, raised, "to the bit")
        return
    log, after = seen.wanted
    others = ["losses, scales or learning rates"] if run.log != log else []
    others += [name for name, value in pieces(run).items() if not equal(value, after[name])]
    facts.add(NEXT, f"other {others[0]}" if others else "to the bit", "to the bit")


def accept(student: Any, trial: Trial) -> Callable[..., Any]:
    """What makes the object with two methods: a class, or a function of a run."""
    trial.expect(
        callable(student) and (isinstance(student, type) or not hasattr(student, "run")),
        "this is not a class",
        expected="a class with the methods state_dict and load_state_dict",
        got=show(student),
        likely="an object came: pass the class itself, without calling it",
    )
    make: Callable[..., Any] = student
    return make


EXERCISE = Contract(
    __file__,
    says="the steps that would have come without the interruption, to the bit",
    imports=[SAVING, OPTIMIZERS],
    parameters=("run",),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    accept=accept,
)
