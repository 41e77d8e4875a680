"""Judges the turns of lesson 14: the rest of an epoch, what is damage, a training's price, what a run suffers from."""

from __future__ import annotations

import errno
import math
import pickle
import random
import zipfile
import zlib
from typing import Any

import torch

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief


class _Samples:
    """Samples that are their own indices; it notes which of them are read."""

    def __init__(self, length: int) -> None:
        self._all, self.read = torch.arange(length), set[int]()

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, rows: Any) -> torch.Tensor:
        found = self._all[rows]
        self.read |= set(found.flatten().tolist())
        return found


Given = list[list[int]]


def _given(answer: Any, length: int, epoch: int, size: int, done: int) -> tuple[Given, set[int], bool]:
    """The batches that came, which samples were read, and whether PyTorch's generator has been seeded."""
    torch.manual_seed(random.randrange(2**31))  # another state at each call, as in another process
    data, before = _Samples(length), torch.initial_seed()
    came = answer(data, epoch, size, done)
    try:
        batches = [batch.tolist() for batch in came]
    except (AttributeError, TypeError):
        likely = "there is neither yield nor return" if came is None else "yield data[rows] for the rows of each batch"
        raise NotYet(f"{brief(came)} came back", expected="batches of samples", likely=likely) from None
    return batches, data.read, torch.initial_seed() != before


def _flat(batches: Given) -> list[int]:
    return [sample for batch in batches for sample in batch]


@turn("the rest of the epoch in its original order, and nothing else is read")
def rest_of_epoch(answer: Any) -> None:
    """A function (data, epoch, size, done) that yields the batches of an epoch after `done` of them."""
    size, epoch = random.randint(4, 6), random.randint(3, 9)
    length = 6 * size + random.randint(1, size - 1)  # the last batch is shorter
    done = random.randint(2, 4)
    whole, _, seeded = _given(answer, length, epoch, size, 0)
    again, *_ = _given(answer, length, epoch, size, 0)
    rest, skipped, _ = _given(answer, length, epoch, size, done)
    if whole != again:
        if len(rest) == len(whole):
            raise AsGiven("each call draws a new order and begins at the first batch")
        raise NotYet(
            "two calls for the same epoch give different orders",
            expected="the same order in another process",
            likely="use a separate generator, seeded with the epoch: torch.Generator().manual_seed(epoch)",
        )
    if sorted(_flat(whole)) != list(range(length)) or len(whole) != 7:
        raise NotYet(
            f"with done=0 there are {len(whole)} batches of {len(_flat(whole))} samples",
            expected=f"7 batches with all of {length}",
            likely="the last, shorter batch belongs to the epoch",
        )
    if seeded:
        raise NotYet(
            "the order is right, but PyTorch's global generator has been seeded",
            expected="the random numbers of dropout and augmentation are not affected",
            likely="torch.manual_seed() is global: use a torch.Generator()",
        )
    other, *_ = _given(answer, length, epoch + 1, size, 0)
    if other == whole:
        raise NotYet(
            f"epochs {epoch} and {epoch + 1} have the same order",
            expected="a new order in each epoch",
            likely="the seed does not depend on epoch, or nothing is shuffled",
        )
    if rest != whole[done:]:
        told = f"{len(rest)} batches for done={done}"
        likely = "done counts batches, not samples: split first, then [done:]"
        if _flat(rest) != _flat(whole)[done:]:
            likely = "only skip batches; change neither the order nor the number of the others"
        raise NotYet(told, expected=f"the last {7 - done} of the whole epoch's 7", likely=likely)
    if extra := len(skipped - set(_flat(rest))):
        raise NotYet(
            f"{extra} samples are read that are in no batch",
            expected=f"the samples of the {7 - done} batches that are left",
            likely="skip rows, before data[rows]",
        )


_DAMAGED: dict[type[BaseException], str] = {
    zipfile.BadZipFile: "the file does not end as a zip archive does: it is cut off, or empty",
    zlib.error: "the bytes cannot be decompressed: some are wrong",
    RuntimeError: "PytorchStreamReader has found the archive, but not a file that it lists",
    EOFError: "the pickle in it ends too early",
}
_HEALTHY: dict[BaseException, str] = {
    OSError(
        errno.ESTALE, "Stale file handle"
    ): "the file server was unavailable for a moment; the bytes may be all right",
    PermissionError(errno.EACCES, "Permission denied"): "the bytes were never read",
    pickle.UnpicklingError("Weights only load failed"): "the bytes are what was saved; this load does not accept them",
    FileNotFoundError(errno.ENOENT, "No such file"): "there is no file",
    MemoryError(): "the host was full; the bytes may be all right",
    KeyboardInterrupt(): "somebody has pressed Ctrl-C",
}


@turn("a damaged file is set aside, and every other error is raised")
def damage(answer: Any) -> None:
    """A function that returns the types of errors for `except`."""
    got = answer()
    types = got if isinstance(got, (tuple, list, set, frozenset)) else (got,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in types):
        raise NotYet(
            f"{brief(got)} came back", expected="types of errors", likely="types such as (EOFError,), not strings"
        )
    if tuple(types) == (Exception,):
        raise AsGiven("every error sets the file aside, even when the file server is unavailable")
    for healthy, why in _HEALTHY.items():
        if isinstance(healthy, tuple(types)):
            told = f"{type(healthy).__name__} sets a file aside"
            raise NotYet(told, expected="it is raised", likely=why)
    for kind, why in _DAMAGED.items():
        if not issubclass(kind, tuple(types)):
            told = f"{kind.__name__} is raised, and the run does not start"
            raise NotYet(told, expected="the file is set aside, and the one before it is used", likely=why)


@turn("6ND divided by the GPU's FLOP/s, then hours, then dollars")
def dollars(answer: Any) -> None:
    """A function (parameters, tokens, tflops, mfu, price) that returns dollars."""
    parameters, tokens = random.uniform(1e9, 70e9), random.uniform(0.1e12, 2e12)
    tflops, mfu, price = random.choice([312.0, 989.0]), random.uniform(0.25, 0.55), random.uniform(1.5, 4.0)
    got = answer(parameters, tokens, tflops, mfu, price)
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise NotYet(f"{brief(got)} came back", expected="a number of dollars", likely="return …")
    hours = 6 * parameters * tokens / (tflops * 1e12 * mfu) / 3600
    right = hours * price
    if math.isclose(got, right * mfu, rel_tol=1e-6):
        raise AsGiven("it assumes the GPU's peak, which no training reaches")
    likely = {
        right * mfu**2: "a lower MFU takes longer: divide by it",
        right / 3: "2ND is forward alone; backward takes twice as much",
        right * 3600: "seconds: an hour has 3,600 of them",
        right * 60: "minutes: 60 of them are an hour",
        hours: "these are GPU-hours; multiply by the price",
        right * 1e12: "tflops are 10¹² operations a second",
        right / 100: "mfu is a share, such as 0.4, not a percentage",
    }
    if not math.isclose(got, right, rel_tol=1e-6):
        known = [why for value, why in likely.items() if math.isclose(got, value, rel_tol=1e-6)]
        job = f"{parameters / 1e9:.1f}B parameters, {tokens / 1e12:.2f}T tokens, {tflops:.0f} TFLOP/s at {mfu:.0%}"
        told = f"${got:,.0f} for {job}, ${price:.2f} an hour"
        raise NotYet(told, expected=f"${right:,.0f}", likely=known[0] if known else "6ND, tflops · 10¹², mfu, 3,600")


Means = dict[str, float]

_LIKELY = {
    "overflow": "every step is skipped, so the loss stops falling, and the scale halves each time: check it first",
    "diverged": "the loss is higher than at the beginning, or nan, which no `>` finds; the scale does not fall",
    "leak": "memory grows, and nothing else is wrong",
    "data": "most of the step is a wait for data, whether it has become longer or not",
    "throttled": "the step is slower without a wait for data; check both, since a healthy run does not wait either",
    "healthy": "nothing is wrong: as fast as before, and the loss falls",
}


def _cases() -> dict[str, list[tuple[Means, Means]]]:
    """Runs of which everybody would say the same; means of the first and of the last ten steps."""
    cases: dict[str, list[tuple[Means, Means]]] = {name: [] for name in _LIKELY}
    for name, found in cases.items():
        for _ in range(6):
            found.append(_case(name))
    return cases


def _case(name: str) -> tuple[Means, Means]:
    draw = random.uniform
    step = draw(20, 400)
    early = {"loss": draw(0.9, 7), "scale": 2.0 ** random.randint(12, 17), "memory": draw(500, 40_000)}
    early |= {"wait": step * draw(0, 0.1), "step": step}
    late = {
        "loss": early["loss"] * draw(0.2, 0.7),
        "scale": early["scale"] * random.choice([0.5, 1, 2]),
        "memory": early["memory"] * draw(1, 1.03),
        "step": step * draw(0.95, 1.05),
    }
    late["wait"] = late["step"] * draw(0, 0.1)
    if name == "overflow":
        late |= {"scale": early["scale"] / 2.0 ** random.randint(10, 40), "loss": early["loss"] * draw(0.9, 1.1)}
    elif name == "diverged":
        late["loss"] = random.choice([math.nan, early["loss"] * draw(1.5, 20)])
    elif name == "leak":
        late["memory"] = early["memory"] * draw(1.4, 3)
    elif name == "throttled":
        late["step"] *= draw(1.6, 4)
    elif name == "data":
        early["wait"], late["wait"] = early["step"] * draw(0.6, 0.9), late["step"] * draw(0.6, 0.9)
    return early, late


@turn("check the scale first, then the loss, then memory and time")
def illness(answer: Any) -> None:
    """A function (early, late) that returns one of six words."""
    cases = _cases()
    got = {name: [answer(dict(early), dict(late)) for early, late in found] for name, found in cases.items()}
    if got == {n: ["diverged" if late["loss"] > 1 else "data" for _, late in found] for n, found in cases.items()}:
        raise AsGiven("every high loss counts as diverged, and everything else is blamed on the data")
    for said in (one for answers in got.values() for one in answers):
        if said not in cases:
            likely = "one case has no return" if said is None else "another word"
            raise NotYet(f"{brief(said)} came back", expected=f"one of {', '.join(cases)}", likely=likely)
    for name, found in cases.items():
        for (early, late), said in zip(found, got[name], strict=True):
            if said != name:
                shown = ", ".join(f"{what} {early[what]:.4g} to {late[what]:.4g}" for what in early)
                raise NotYet(f'"{said}" for {shown}', expected=f'"{name}"', likely=_LIKELY[name])
