"""The check of a comparison of precisions: the same start, a clock that waits, a peak of its own, and a true fp32.

The model it hands out says what it is run with: it sleeps on the GPU for a time that depends on the precision and is
much longer in the warm-up, so that a wrong clock shows; its bytes are compared with those of a reference run.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..base import OPTIMIZERS, CheckFailed, Trial, check
from ..lesson02.machines import on_the_cpu
from ..measure import virtual_gpu
from ..wording import as_float, is_finite, is_number, is_whole, show
from .sections import AUTOCAST, SAVES, SCALER, TF32

PARAMETERS = ("make_model", "loss_fn", "x", "y", "steps", "warm_up")
KEYS = ("ms", "peak_bytes", "losses", "skipped")
NAMES = {None: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
WIDTH, ROWS, STEPS, WARM_UP, LR = 256, 512, 3, 2, 0.01
CYCLES = {"fp32": 800_000_000, "fp16": 400_000_000, "bf16": 500_000_000}  # about half a second and less on a T4
SLOW = 8  # times as long in the warm-up
ENOUGH, SLACK = 2**18, 2**20  # bytes: less than a model has; what the optimizer's way of stepping may add


@dataclass
class Log:
    """What the model saw: by precision the calls, the first weights, TF32 while it ran, and where the loss was."""

    calls: dict[str, int] = field(default_factory=dict)
    starts: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    tf32: set[str] = field(default_factory=set)
    loss_outside: set[str] = field(default_factory=set)
    losses: dict[str, list[float]] = field(default_factory=dict)  # when each was computed, in seconds
    other_data: set[str] = field(default_factory=set)
    evaluating: set[str] = field(default_factory=set)
    x: torch.Tensor | None = None
    precision: str = ""

    def __deepcopy__(self, memo: Any) -> Log:
        return self  # of a copied model too


class Probe(nn.Module):
    """A small network that notes how it is run, and takes its time."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        # 2 MiB and 3: what a model that should be gone takes, and what only its gradients take
        self.table = nn.Parameter(torch.randn(512, 1024) * 0.01)
        self.register_buffer("ballast", torch.zeros(3 * 2**18))
        self.log, self.fresh = log, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        log, kind = self.log, x.device.type
        name = NAMES.get(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None, "fp32")
        log.precision = name
        if self.fresh:
            self.fresh = False
            start = torch.cat([p.detach().flatten() for p in self.parameters()]).cpu()
            log.starts.setdefault(name, []).append(start)
        if (
            log.x is not None
            and x.data_ptr() != log.x.data_ptr()
            and not torch.equal(x.detach().float().to(log.x.device), log.x)
        ):
            log.other_data.add(name)  # looked at only where it is another tensor: to look is to wait
        if name == "fp32":
            backends: Any = torch.backends
            kinds = {"products": backends.cuda.matmul, "convolutions": backends.cudnn.conv}
            log.tf32 |= {what for what, backend in kinds.items() if backend.fp32_precision == "tf32"}
        if not self.training:
            log.evaluating.add(name)
        log.calls[name] = log.calls.get(name, 0) + 1
        if kind == "cuda":
            torch.cuda._sleep(CYCLES[name] * (SLOW if log.calls[name] <= WARM_UP else 1))
        h = self.first(x)
        for _ in range(8):
            h = h.relu()  # 16-bit under autocast, and each keeps its result
        outputs: torch.Tensor = self.last(h) + self.table.mean(0)[:10]
        return outputs


def loss_fn_for(log: Log) -> Callable[..., torch.Tensor]:
    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        log.losses.setdefault(log.precision, []).append(time.perf_counter())
        if log.precision != "fp32" and not torch.is_autocast_enabled(outputs.device.type):
            log.loss_outside.add(log.precision)
        return 140.0 * F.cross_entropy(outputs, targets)  # large enough for the first scale of fp16 to overflow

    return loss_fn


@dataclass(frozen=True)
class Run:
    """What one precision comes to; `peaks` by how gradients are cleared, all of them right."""

    ms: float
    peaks: tuple[float, ...]
    losses: list[float]
    skipped: int
    model_bytes: int


def reference(model: nn.Module, x: torch.Tensor, y: torch.Tensor, name: str, held: int, *others: str) -> Run:
    """A right run in one precision, on a GPU where the caller holds `held` bytes; and the peaks of `others`."""
    peaks, on_gpu = [], x.device.type == "cuda"
    for clear, steps in (*((other, 2) for other in others), ("early", WARM_UP + STEPS)):
        before = torch.cuda.memory_allocated() if on_gpu else 0  # what nobody has collected yet is in it
        run = _one(copy.deepcopy(model).to(x.device), x, y, name, clear, steps)
        peaks.append(float(torch.cuda.max_memory_allocated() - before + held) if on_gpu else 0.0)
    size = sum(value.nbytes for value in model.state_dict().values())
    return Run(run[0], tuple(peaks), run[1], run[2], size)


def _one(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, name: str, clear: str, steps: int
) -> tuple[float, list[float], int]:
    """Milliseconds, losses and skipped steps. The gradients are cleared `early`, before the forward pass, or `late`,
    after it; or they are set to `zeros`, which keeps them in memory."""
    kind, dtype = x.device.type, {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, torch.bfloat16)
    if kind == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    optimizer, done = torch.optim.SGD(model.parameters(), lr=LR), []
    optimizer.register_step_post_hook(lambda *_: done.append(1))
    scaler = torch.amp.GradScaler(kind, enabled=name == "fp16")
    loss_fn, losses, ms = loss_fn_for(Log()), [], 0.0
    for i in range(steps):
        if i == WARM_UP and kind == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
        if clear != "late":
            optimizer.zero_grad(set_to_none=clear != "zeros")
        with torch.autocast(kind, dtype=dtype, enabled=name != "fp32"):
            loss = loss_fn(model(x), y)
        if clear == "late":
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    if kind == "cuda" and steps > WARM_UP:
        end.record()
        torch.cuda.synchronize()
        ms = start.elapsed_time(end) / STEPS
    return ms, [float(value) for value in losses[WARM_UP:]], len(losses) - len(done)


@check(
    lesson=7,
    says="the same start for each precision, true fp32, its own peak, a clock that waits, every skip counted",
    imports=[OPTIMIZERS],
)
def precision_comparison(student: Any, trial: Trial) -> None:
    """Check a function of (make_model, loss_fn, x, y, steps, warm_up) that trains the same network in several
    precisions and returns for each `ms`, `peak_bytes`, `losses` and `skipped`."""
    trial.function(student, PARAMETERS)
    with _tf32(True):
        with virtual_gpu(count=2) as gpu, torch.cuda.device(1):
            gpu.clock.ignores_own = True  # the steps are the GPU's; this machine may have other things to do
            x, y = torch.randn(ROWS, WIDTH).to("cuda"), torch.randint(0, 10, (ROWS,)).to("cuda")
            _try(student, trial, x, y, ("fp32", "fp16", "bf16"))
        small = 64
        for where in on_the_cpu(), virtual_gpu():  # the data are on the CPU, where there is a GPU too
            with where, _tf32(False):
                _try(student, trial, torch.randn(small, WIDTH), torch.randint(0, 10, (small,)), ("fp32", "bf16"))
        with virtual_gpu():
            for error in Stop, Other:
                x, y = torch.randn(small, WIDTH).to("cuda"), torch.zeros(small).long().to("cuda")
                _try_raising(student, trial, x, y, error)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """TF32 for products and convolutions, so that a baseline that is not looked after is TF32; or for neither, so that
    who switches it on afterwards has changed it. Both are set the older way, which sets the newer settings too, so that
    student's code may use either; the check puts the newer ones back, and this the older flags, without which these
    could not be read any more."""
    backends: Any = torch.backends
    cudnn = backends.cudnn
    try:
        before = cudnn.allow_tf32
    except RuntimeError:  # the notebook has mixed the two
        before = None
    backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        if before is not None:
            cudnn.allow_tf32 = before


class Stop(RuntimeError):
    """What a loss function raises, on its way to the caller."""


class Other(Exception):
    """The same, of another kind than errors of PyTorch's."""


def _try_raising(student: Any, trial: Trial, x: torch.Tensor, y: torch.Tensor, error: type[Exception]) -> None:
    """The loss function raises in the fp32 run: its exception comes out, and TF32 is as before."""
    log = Log()

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if log.precision == "fp32":
            raise error("this loss_fn raises in the fp32 run, to see what is left behind")
        return F.cross_entropy(outputs, targets)

    def run() -> bool:
        try:
            student(lambda: Probe(log), loss_fn, x, y, STEPS, WARM_UP)
        except error:
            return True
        return False

    with _words_for_tf32("the TF32 settings stay changed when loss_fn raises"):
        raised = trial.call(run, besides={"x": x, "y": y}, may_seed=True, explain=_explain)
    trial.expect(
        raised,
        "the exception of loss_fn does not come out",
        expected="loss_fn raises, and so does the comparison, with TF32 as before",
        got="an answer, as if nothing had happened",
        likely="an `except` ends it, or a `return` in `finally`: `try` and `finally` alone let it pass",
        read=TF32,
    )


@contextlib.contextmanager
def _words_for_tf32(summary: str = "") -> Iterator[None]:
    """Where nothing but TF32 was left changed: the flags that a student knows, and how to put them back."""
    try:
        yield
    except CheckFailed as failed:
        got = failed.rows["got"].removesuffix(" (put back now)").split("; ")
        tf32 = all("fp32_precision at" in part or "float32 matmul precision at" in part for part in got)
        if not failed.args[0].endswith("left a setting changed") or not tf32:
            raise
        flags = {"matmul": "torch.backends.cuda.matmul.allow_tf32", "cudnn": "torch.backends.cudnn.allow_tf32"}
        named = [flag for key, flag in flags.items() if any(key in part for part in got)]
        again = CheckFailed(
            failed.check,
            summary or failed.args[0],
            expected="the TF32 settings as they were before the call",
            got=f"changed: {' and '.join(named or got)} (put back now)",
            likely="they are put back after the runs, and an exception passes that by: put them back in `finally`"
            if summary
            else "it was off before: keep the old value and put that back, whatever it was"
            if any(" at tf32" in part or " at high," in part for part in got)
            else "TF32 was switched off for fp32 and stayed so: keep the old value, and put it back in `finally`",
            read=failed.rows["read"],
        )
        raise again from None


def _try(student: Any, trial: Trial, x: torch.Tensor, y: torch.Tensor, names: tuple[str, ...]) -> None:
    on_gpu = x.device.type == "cuda"
    log = Log(x=x)
    where = "on a GPU" if on_gpu else "on the CPU"
    held = 0
    if on_gpu:
        torch.ones(64 * 2**20, dtype=torch.uint8, device="cuda")  # an old peak, which is nobody's
        held = torch.cuda.memory_allocated()
    with _words_for_tf32():
        got = trial.call(
            student,
            *(lambda: Probe(log), loss_fn_for(log), x, y, STEPS, WARM_UP),
            may_seed=True,  # one way to give each run the same model
            explain=_explain,
            inside=torch.cuda.device(x.device) if on_gpu else contextlib.nullcontext(),
        )
    _judge_form(trial, got, names, where)
    _judge_runs(trial, log, names)
    left = _left(held) if on_gpu else 0
    model = Probe(Log())
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(log.starts["fp32"][0].clone(), model.parameters())

    def references(*others: str) -> dict[str, Run]:
        return {name: reference(model, x, y, name, held, *others) for name in names}

    wants = references()
    for name in names:
        _judge_losses(trial, got[name], wants[name], name, where)
    if on_gpu:
        _judge_times(trial, got, wants)
    else:
        _judge_times_on_the_cpu(trial, got, log)
    for name in names:
        near = not on_gpu or _is_peak(got[name]["peak_bytes"], wants[name])
        _judge_peak(trial, got, wants if near else references("late", "zeros"), name, on_gpu)
    trial.expect(
        left < ENOUGH,
        "something stays on the GPU when the comparison is over",
        expected="the memory that was allocated before the call",
        got=f"{left / 2**20:.2f} MiB more",
        likely="a model, an optimizer or losses are kept, in what is returned or in a variable outside",
        read=SAVES,
    )


def _left(held: int) -> int:
    """Bytes beyond `held`. Collecting garbage takes half a second in a notebook, so only where it matters."""
    if torch.cuda.memory_allocated() - held >= ENOUGH:
        gc.collect()
    return torch.cuda.memory_allocated() - held


def _judge_form(trial: Trial, got: Any, names: tuple[str, ...], where: str) -> None:
    wanted = f"a dict with {', '.join(names)}, each a dict with {', '.join(KEYS)}"
    trial.expect(
        isinstance(got, Mapping),
        "the result is not a dict",
        expected=wanted,
        got=show(got),
        likely="the function ends without a return" if got is None else "",
    )
    extra = [name for name in ("fp16",) if name in got and name not in names]
    trial.expect(
        not extra,
        "fp16 runs on the CPU",
        expected=f"{wanted}, {where}",
        got=", ".join(map(str, got)),
        likely="the exercise asks for fp32 and bf16 there: ask x.device.type",
        read=AUTOCAST,
    )
    missing = [name for name in names if name not in got]
    trial.expect(
        not missing,
        "a precision is missing",
        expected=f"{wanted}, {where}",
        got=", ".join(map(str, got)) or "nothing",
        read=AUTOCAST,
    )
    for name in names:
        row = got[name]
        lacks = [key for key in KEYS if not isinstance(row, Mapping) or key not in row]
        trial.expect(
            not lacks, f"the row of {name} is incomplete", expected=wanted, got=f"no {', '.join(lacks)}", read=SAVES
        )


def _judge_runs(trial: Trial, log: Log, names: tuple[str, ...]) -> None:
    trial.expect(
        bool(log.losses),
        "the loss function that was passed in is not used",
        expected="loss_fn(outputs, targets)",
        got="no call of it",
    )
    silent = [name for name in names if not log.calls.get(name)]
    trial.expect(
        not silent,
        f"the run of {silent[0] if silent else ''} is not in that precision",
        expected=f"model and loss under autocast for {' and '.join(name for name in names if name != 'fp32')}",
        got=", ".join(f"{count} forward passes in {name}" for name, count in log.calls.items()) or "no forward pass",
        likely="autocast on a GPU is float16 unless dtype= says otherwise"
        if "bf16" in silent
        else "a row with this name came back, and the model never ran in it",
        read=AUTOCAST,
    )
    trial.expect(
        not log.loss_outside,
        "the loss is not under autocast",
        expected="model and loss in the autocast block",
        got=f"autocast was off at the loss of {' and '.join(sorted(log.loss_outside))}",
        likely="the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits",
        read=AUTOCAST,
    )
    trial.expect(
        not log.evaluating,
        "the model is trained in evaluation mode",
        expected="training mode, as make_model() gives it",
        got=f"training off in the forward passes of {' and '.join(sorted(log.evaluating))}",
        likely="eval() is for measuring a trained model: dropout and BatchNorm do something else in it",
        read=SAVES,
    )
    trial.expect(
        not log.tf32,
        "the fp32 baseline is secretly TF32",
        expected="fp32 means fp32: TF32 off for products and for convolutions",
        got=f"TF32 was allowed for {' and '.join(sorted(log.tf32))} while fp32 ran",
        likely="the caller had allowed it for products, and for convolutions it is the default: switch both off, and "
        "back afterwards",
        read=TF32,
    )
    trial.expect(
        not log.other_data,
        "the precisions see different data",
        expected="the batch x that was passed in, for every run",
        got=f"other inputs for {' and '.join(sorted(log.other_data))}",
        likely="converted or drawn anew: autocast casts for itself",
        read=AUTOCAST,
    )
    for name in names:
        trial.expect(
            log.calls[name] == WARM_UP + STEPS,
            f"{name} runs for another number of steps",
            expected=f"{WARM_UP + STEPS} forward passes: warm_up = {WARM_UP} and steps = {STEPS}",
            got=str(log.calls[name]),
            likely="the warm-up is missing"
            if log.calls[name] == STEPS
            else "warm_up further steps come before those that count",
        )
    first = log.starts["fp32"][0]
    for name in names:
        same = name in log.starts and torch.equal(log.starts[name][0], first)
        trial.expect(
            same,
            "the runs start from different weights",
            expected="the same first weights in every precision",
            got=f"{name} starts elsewhere than fp32",
            likely="make_model() draws new weights each time, and a run changes the model it is given: copy one model "
            "for each run, or seed before each make_model()",
            read=SAVES,
        )


def _judge_losses(trial: Trial, row: Mapping[str, Any], want: Run, name: str, where: str) -> None:
    listed = list(row["losses"]) if isinstance(row["losses"], list | tuple) else []
    trial.expect(
        not any(isinstance(value, torch.Tensor) for value in (row["losses"], *listed)),
        f"losses of {name} are tensors",
        expected=f"a list of {STEPS} floats",
        got=show(row["losses"]),
        likely="call .item() on each after the last step: a tensor keeps memory on the GPU",
        read=SAVES,
    )
    losses = [as_float(value) for value in listed if is_number(value)]
    losses = losses if len(losses) == len(listed) else []
    trial.expect(
        len(losses) == STEPS,
        f"losses of {name} are not one float for each counted step",
        expected=f"{STEPS} numbers, without the warm-up",
        got=show(row["losses"]),
        likely="those of the warm-up are in it" if len(losses) == STEPS + WARM_UP else "",
    )
    skipped = row["skipped"]
    trial.expect(
        is_whole(skipped) and skipped == want.skipped,
        f"skipped of {name} is not the number of steps that the scaler skipped",
        expected=f"{want.skipped} of {WARM_UP + STEPS}, warm-up included",
        got=show(skipped),
        likely=_why_skipped(skipped, want, name),
        read=SCALER,
    )
    pairs = list(zip(losses, want.losses, strict=True))
    right = all(math.isclose(a, b, rel_tol=0.03, abs_tol=0.1) for a, b in pairs)
    ratios = [a / max(b, 0.1) for a, b in pairs]
    # the scale may fall from one step to the next, but is a power of two in each
    scaled = name == "fp16" and all(math.isfinite(r) and r > 10 and abs(math.log2(r) % 1 - 0.5) > 0.35 for r in ratios)
    trial.expect(
        right,
        f"the losses of {name} are other ones",
        expected=f"{_numbers(want.losses)} {where}: SGD with lr = {LR}",
        got=_numbers(losses),
        likely="the loss times the scale: keep the loss from before scaler.scale()"
        if scaled
        else "another optimizer or learning rate, gradients that are not cleared, or steps that never happen",
        read=SCALER,
    )


def _why_skipped(skipped: Any, want: Run, name: str) -> str:
    if name != "fp16" or not isinstance(skipped, int):
        return "only fp16 has a scaler" if name != "fp16" else ""
    if skipped == 0:
        return (
            "fp16 without a scaler, or one that is never asked: a skipped step shows as a scale that falls in "
            "update(), or as optimizer.step() that does not run; or the warm-up's skips were left out"
        )
    return "a step is skipped where the scale falls; count those of the warm-up too" if skipped < want.skipped else ""


def _judge_times(trial: Trial, got: Mapping[str, Any], wants: Mapping[str, Run]) -> None:
    ratios = {}
    for name, want in wants.items():
        ms = got[name]["ms"]
        number = is_finite(ms)
        trial.expect(number, f"ms of {name} is no number", expected="milliseconds per step, a float", got=show(ms))
        ratios[name] = ms / want.ms
    seconds = all(_near(1000 * ratio) for ratio in ratios.values())
    for name, ratio in ratios.items():
        if not _near(ratio):
            _fail_time(trial, got[name]["ms"], wants[name], name, ratio, seconds)


def _judge_times_on_the_cpu(trial: Trial, got: Mapping[str, Any], log: Log) -> None:
    """Only its unit: this machine's own time may be anything."""
    for name, row in got.items():
        ms, times = row["ms"], log.losses[name]
        right = (times[-1] - times[WARM_UP - 1]) * 1000 / STEPS
        trial.expect(
            is_number(ms) and right / 100 < ms < right * 100,
            f"ms of {name} on the CPU is not the milliseconds of a step",
            expected=f"about {right:.3g}, a float",
            got=show(ms),
            likely="seconds: multiply by 1000"
            if is_number(ms) and ms > 0
            else "a clock of the host alone is right there: time.perf_counter()",
            read=SAVES,
        )


def _near(ratio: float) -> bool:
    return 0.85 <= ratio <= 1.2


def _fail_time(trial: Trial, ms: float, want: Run, name: str, ratio: float, seconds: bool) -> None:
    likely = "the clock and the loop do not belong together"
    summary = f"the time of {name} is not that of a step"
    if seconds:
        likely = "seconds: multiply by 1000"
    elif ratio < 0.7:
        summary = f"the time of {name} is that of the launches, not of the work"
        likely = "the GPU was still running when the clock was read: torch.cuda.synchronize() before, or events"
    elif abs(ratio - STEPS) < 0.4:
        summary, likely = f"the time of {name} is that of all steps", "divide by the number of counted steps"
    elif ratio > 1.2:
        summary = f"the warm-up is in the time of {name}"
        likely = (
            "it is counted, or it still ran when the clock started: synchronize before the clock starts, and count "
            "only the steps after it"
        )
    trial.fail(
        summary,
        expected=f"about {want.ms:,.0f} ms per step (virtual), warm-up not counted",
        got=f"{ms:,.4g} ms, {ratio:.3g} times that",
        likely=likely,
        read=SAVES,
    )


def _judge_peak(trial: Trial, got: Mapping[str, Any], wants: Mapping[str, Run], name: str, on_gpu: bool) -> None:
    peak, want = got[name]["peak_bytes"], wants[name]
    if not on_gpu:
        trial.expect(
            peak is None,
            "peak_bytes on the CPU is not None",
            expected="None: PyTorch does not count the CPU's memory",
            got=show(peak),
            likely="torch.cuda answers 0 for a GPU that is not used, which reads as “no memory”",
            read=SAVES,
        )
        return
    number = is_number(peak)
    trial.expect(number, f"peak_bytes of {name} is no number", expected="bytes, an int", got=show(peak), read=SAVES)
    if _is_peak(peak, want):
        return
    low, high = min(want.peaks), max(want.peaks)
    ratio = peak / low
    others = [right for other in wants if other != name for right in wants[other].peaks]
    summary, likely = f"the peak of {name} is another one", "read it after the run, and before anything else is made"
    if peak == 0:
        summary, likely = (
            f"the peak of {name} is that of another GPU",
            "x is on the current GPU, which need not be the first",
        )
    elif ratio < 0.01:
        summary, likely = f"the peak of {name} is not in bytes", "give bytes as they are, not MB or MiB"
    elif peak >= 60 * 2**20:
        summary = f"the peak of {name} is an older one"
        likely = "the counter holds the highest value since it was last reset: torch.cuda.reset_peak_memory_stats()"
    elif peak <= low - ENOUGH:
        summary = f"the peak of {name} is too low"
        likely = "memory_allocated after the run is what is left, not the peak; or a baseline was subtracted"
    elif any(abs(peak - other) < SLACK for other in others):
        summary = f"the peak of {name} is that of another precision"
        likely = "reset the peak before each run, not once"
    elif peak > low + 0.8 * want.model_bytes:
        summary = f"something of an earlier run is alive in the run of {name}"
        likely = "the model before, with its gradients, or the original of a copy: let it go, or keep it on the CPU"
    trial.fail(
        summary,
        expected=f"about {high / 2**20:.1f} MiB (virtual)",
        got=f"{peak / 2**20:.4g} MiB",
        likely=likely,
        read=SAVES,
    )


def _is_peak(peak: Any, want: Run) -> bool:
    return is_number(peak) and min(want.peaks) - ENOUGH < peak < max(want.peaks) + SLACK


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _explain(error: str) -> str:
    if "unscale FP16" in error:
        return "the model was converted to half; under autocast it stays float32"
    if "Expected a cuda device" in error:
        return "x is on the CPU, though there is a GPU: ask x.device.type, not torch.cuda.is_available()"
    if "on the same device" in error:
        return "make_model() gives a model on the CPU, and x says where to train: move the model to x.device"
    if "must have the same dtype" in error or "should be the same" in error:
        return "only one of data and model was converted: with autocast convert neither"
    if any(part in error for part in ("NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs")):
        return "on the CPU there is no GPU to ask or to wait for: ask x.device.type first"
    if "mix of the legacy and new APIs" in error:
        return "fp32_precision was set, and allow_tf32 is read: use one of the two"
    return ""
