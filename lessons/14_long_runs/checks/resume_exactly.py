"""Checks a resumed run, bit for bit, against one that was never interrupted, on one virtual GPU or two."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise import settings
from gpulab.exercise.base import OPTIMIZERS, SAVING
from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, text_of
from virtualgpu.scope.in_force import backing

from .common import is_class

SAME = "The same run, to the bit"
PARTS = ("model", "optimizer", "scheduler", "scaler")
BATCHES, ROWS, WIDTH, NEXT_STEPS = 3, 4, 4, 2
KIND, READ, NEXT = "what state_dict() returns", "torch.load(weights_only=True)", "the next steps"
STAYS, KEPT = "what changes in it later", "what changes in it when it has been loaded"
LIVE, LOADED = "what saving changes in the run", "loading a state whose tensors lie on a GPU"
OWN, HELD = "objects of run that are others now", "parameters of the model that the optimizer steps"
ORDER = "order"
PYTHON, NUMPY, CPU, GPUS = (f"generator of {name}" for name in ("Python", "NumPy", "PyTorch on the CPU", "each GPU"))
CLAUSES = [
    Clause(quote, facts, summary, rule, SAME)
    for facts, quote, summary, rule in (
        ([KIND], "a dictionary", "state_dict() does not return a dictionary", "the dictionary itself"),
        ([READ], "torch.load(path, weights_only=True) reads it", "what was saved cannot be read",
         "it reads tensors, numbers, strings, None, lists, tuples and dictionaries"),
        ([STAYS], "It does not change while run continues", "the state changes while the run goes on",
         "the tensors in a part's state_dict() are the live ones"),
        ([KEPT], "even after it has been loaded", "a state that has been loaded changes",
         "it may be loaded a second time"),
        ([LIVE], "Calling it does not affect run", "saving disturbs the run", "state_dict() must only read"),
        ([LOADED], "on whichever device", "a state on the GPU is not loaded",
         "torch.load(…, map_location=…) moves every tensor of the state"),
        ([OWN], "stay the same objects", "one of run's objects has been replaced", "other objects refer to them too"),
        ([HELD], "steps the model's own parameters", "the optimizer steps what the model does not use", ""),
        (["weights", "buffers"], "run.model,", "the model is not as saved", "it includes weights and buffers"),
        (["the optimizer's state", "the optimizer's groups"], "run.optimizer,",
         "the optimizer is not as saved", "it includes moments, counts and groups"),
        (["the schedule"], "run.scheduler", "the schedule is not as saved", "it has a state of its own"),
        (["the scaler"], "run.scaler", "the scaler is not as saved", "it includes a scale, and a count of good steps"),
        (["epoch and place"], "the epochs done, and the batches done in the current one",
         "the run continues at the wrong place", ""),
        ([ORDER], "the order of this epoch's data", "the rest of the epoch comes in the wrong order", ""),
        ([PYTHON], "generators of Python", "Python's random numbers do not continue", "random has a state"),
        ([NUMPY], "NumPy", "NumPy's random numbers do not continue", "np.random has a state of its own"),
        ([CPU], "PyTorch on the CPU", "PyTorch's random numbers do not continue", "torch has one on the CPU"),
        ([GPUS], "each GPU", "a GPU's random numbers do not continue", "each GPU has one of its own"),
        ([NEXT], "those of the run that was saved, to the bit", "the next steps differ", ""),
    )
]  # fmt: skip
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
        out: torch.Tensor = self.last(self.first(x.to(self.devices[0])).to(self.devices[-1]))
        return out


class Run:
    """A run as the exercise has it; all generators are seeded first."""

    def __init__(self, scene: Scene, seed: int) -> None:
        seed_all(seed)
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
        self.log: list[list[float]] = []  # of each step: loss, scale, learning rates

    def step(self) -> None:
        if self.place == 0:
            self.order = torch.randperm(BATCHES * ROWS)
        rows = self.order[ROWS * self.place : ROWS * (self.place + 1)]
        x = (rows[:, None] + torch.arange(WIDTH)).sin() + torch.randn(ROWS, WIDTH)
        x = x * (random.gauss(1, 0.3) + np.random.normal(1, 0.3))  # of two such numbers each generator keeps the second
        loss = F.cross_entropy(self.model(x), (rows % 3).to(self.model.devices[-1]))
        bad = self._scene.overflow and self.epoch == 0 and self.place == 1  # the loaded run has left that epoch behind
        self.optimizer.zero_grad()
        self.scaler.scale(loss * float("inf") if bad else loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.epoch, self.place = divmod(BATCHES * self.epoch + self.place + 1, BATCHES)
        if self._scene.schedule == "step" or self.place == 0:
            self.scheduler.step()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.log.append([float(loss.detach()), self.scaler.get_scale(), *rates])

    def next_steps(self) -> str:
        """Make them; what they raise, in words."""
        try:
            for _ in range(NEXT_STEPS):
                self.step()
        except Exception as error:  # whatever a student's methods have left undone
            return f"raise {type(error).__name__}: {text_of(error, 80)}"
        return ""


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    for number, generator in enumerate(torch.cuda.default_generators):
        generator.manual_seed(seed + number)  # no two GPUs draw the same


def pieces(run: Any) -> dict[str, Any]:
    """Copies of what the next steps depend on; and what else saving leaves alone."""
    parameters = [*run.model.parameters()]
    scaler, numpy = run.scaler.state_dict(), np.random.get_state()
    with backing, torch.no_grad():  # the values themselves: a copy to the host for each would take as long as a step
        tensors = {
            "weights": [p.clone() for p in parameters],
            "buffers": [b.clone() for b in run.model.buffers()],
            "the optimizer's state": [
                {k: v.clone() for k, v in run.optimizer.state.get(p, {}).items()} for p in parameters
            ],
        }
    return tensors | {
        "the optimizer's groups": [
            {k: v for k, v in group.items() if k != "params"} for group in run.optimizer.param_groups
        ],
        "the schedule": [run.scheduler.last_epoch, *run.scheduler.get_last_lr()],
        "the scaler": [scaler["scale"], scaler["_growth_tracker"]],
        "epoch and place": [run.epoch, run.place],
        ORDER: copy.copy(run.order),
        PYTHON: random.getstate(),
        NUMPY: numpy,
        CPU: torch.get_rng_state(),
        GPUS: torch.cuda.get_rng_state_all(),
        "training mode": [module.training for module in run.model.modules()],
        "devices of the weights": [str(p.device) for p in parameters],
        "what is trained": [p.requires_grad for p in parameters],
        "gradients": [None if p.grad is None else p.grad.nan_to_num() for p in parameters],
    }


def equal(a: Any, b: Any) -> bool:
    """To the bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.device == b.device and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(type(a) is type(b) and a == b)


def unlike(now: dict[str, Any], then: dict[str, Any]) -> str:
    return ", ".join(name for name, value in now.items() if not equal(value, then[name])) or "nothing"


def changes(state: dict[str, Any], then: dict[str, Any]) -> str:
    """What of a state is no longer as it was."""
    if equal(state, then):
        return "nothing"
    return "its values" if state.keys() == then.keys() else "its entries"


def story(make: Callable[..., Any], scene: Scene, facts: Facts) -> Iterator[None]:
    """Two runs, each with an object that is made once; it ends at the first `yield` where a fact does not hold."""
    seed, done = random.randrange(10**6), random.choice(DONE[scene.at])
    run = Run(scene, seed + 1)
    run.step()
    loaded, live = make(run), Run(scene, seed)
    made, given = make(live), list[tuple[Any, Any]]()
    for count in (0, done):  # asked twice, as at two checkpoints
        for _ in range(count):
            live.step()
        saved, state = pieces(live), made.state_dict()
        facts.add(KIND, "a dictionary" if isinstance(state, dict) else brief(state, 40), "a dictionary")
        facts.add(LIVE, unlike(pieces(live), saved), "nothing")
        yield
        given.append((state, copy.deepcopy(state)))
    (kept, then), to_gpu = given[1], "to a GPU" in scene.kept
    if scene.kept != "in memory":
        told = "read"
        try:
            torch.save(state, file := io.BytesIO())
            file.seek(0)
            kept = torch.load(file, weights_only=True, map_location="cuda:0" if to_gpu else "cpu")
        except Exception as error:
            told = type(error).__name__
        facts.add(READ, told, "read")
        yield
    raised = live.next_steps()
    facts.add(LIVE, f"the next steps {raised}" if raised else "nothing", "nothing")
    later = [changes(old, its) for old, its in given]
    facts.add(STAYS, later[1] if later[0] == "nothing" else later[0], "nothing")
    yield
    log, after = live.log[done:], pieces(live)
    seed_all(seed + 1)
    own, before = [getattr(run, part) for part in PARTS], pieces(run)
    try:
        loaded.load_state_dict(kept)
    except Exception as error:
        if not to_gpu:
            raise
        facts.add(LOADED, f"{type(error).__name__}: {text_of(error, 80)}", "loaded")
        return
    if to_gpu:
        facts.add(LOADED, "loaded", "loaded")
    facts.add(OWN, [part for part, old in zip(PARTS, own, strict=True) if getattr(run, part) is not old], [])
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    mine = [*run.model.parameters()]
    facts.add(HELD, sum(id(p) in held for p in mine), len(mine))
    yield
    judged = {fact for clause in CLAUSES for fact in clause.facts}
    if run.epoch and not run.place:  # the next step draws another order
        judged.remove(ORDER)
    for name, value in pieces(run).items():
        if name in judged:
            left = "as before loading" if equal(value, before[name]) else "others"
            facts.add(name, "as saved" if equal(value, saved[name]) else left, "as saved")
    yield
    run.log.clear()
    told = run.next_steps()
    if not told:
        others = unlike(pieces(run), after) if run.log == log else "losses, scales or learning rates"
        told = "to the bit" if others == "nothing" else f"other {others}"
    facts.add(NEXT, told, "to the bit")
    yield
    if kept is state:
        facts.add(KEPT, changes(kept, then), "nothing")


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    gpus = "one GPU" if scene.gpus == 1 else "two GPUs"
    facts = Facts(f"saved at {scene.at}, {gpus}, dropout {scene.dropout}, the state {scene.kept}")

    def through(make: Callable[..., Any]) -> None:
        states = settings.random_states()
        try:
            next((None for _ in story(make, scene, facts) if not facts.hold()), None)
        finally:
            settings.restore_random(states)  # of seeds that are not the student's nobody has to ask

    with virtual_gpu(count=scene.gpus):
        torch.cuda.init()
        call(through=through)
    return facts


EXERCISE = Contract(
    __file__,
    says="the same steps as without the interruption, to the bit",
    imports=[SAVING, OPTIMIZERS],
    parameters=("run",),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    accept=is_class,
    errors=dict.fromkeys(["'state_dict'", "'load_state_dict'"], "two methods: one saves, the other loads"),
)
