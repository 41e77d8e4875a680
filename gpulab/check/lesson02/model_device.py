"""The check of a function that insists that a whole model is on one device: buffers, numbers, the current GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import show, text_of
from .machines import without_gpu
from .sections import MISTAKES, MODEL, NONE, SEE, SEVERAL


class Net(nn.Module):
    """Parameters at two depths, one of them tied, a parameter and a buffer that are None, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("window", torch.ones(4), persistent=False)
        self.register_buffer("cache", None)


class Deep(nn.Module):
    """Many layers, each with a weight and a bias of one number."""

    def __init__(self) -> None:
        super().__init__()
        for name in _LAYERS:
            self.add_module(name, nn.Linear(1, 1))


@dataclass(frozen=True)
class Case:
    """A model, what is asked of it, and the answer: `elsewhere` names the tensors that are not there."""

    about: str
    place: str
    wanted: Any
    elsewhere: dict[str, str] = field(default_factory=dict)
    likely: str = ""
    read: str = SEE
    current: int = 0
    left: tuple[str, ...] = ()  # of its tensors, on the CPU
    build: Callable[[], nn.Module] = Net
    put_in_force: Callable[[], AbstractContextManager[object]] = nullcontext


_SAME = "devices with and without a number are not equal, nor is a text equal to a device: make a torch.device of the"
_SAME += " argument, and give it the current GPU's number where it has none"
_ZERO = "“cuda” is the current GPU, which need not be number 0: torch.cuda.current_device() tells"
_NO_GPU = "torch.cuda.current_device() raises where there is no GPU: ask for it only when a GPU is meant"
_EMPTY = "next() of nothing raises StopIteration: a model may have no parameters at all"
_FIRST = "next(model.parameters()) is one tensor; a model has many, and each has a device of its own"
_BUFFERS = "buffers are not in parameters(): go through named_buffers() too, which batch norms and masks need"
_DEPTH = "named_buffers() goes down to every depth; the model's own _buffers, and named_buffers(recurse=False), do not"
_STATE = "state_dict() leaves out buffers with persistent=False: go through named_buffers()"
_KIND = "only the kind of device is compared: every GPU is “cuda”, and each has memory of its own"

_PARAMETERS = ("first.weight", "first.bias", "block.0.weight", "block.1.weight", "block.1.bias", "last.bias")
_NORM = ("block.1.running_mean", "block.1.running_var")
_ALL = (*_PARAMETERS, *_NORM, "block.1.num_batches_tracked", "mask", "window")
_LAYERS = [f"{letter}_layer" for letter in "abcdefghijklmno"]
_DEEP = tuple(f"{layer}.{part}" for layer in _LAYERS for part in ("weight", "bias"))
_DEEP_LEFT = ("e_layer.bias", "k_layer.weight")


def _but_for(names: tuple[str, ...], likely: str, read: str, wanted: Any = "cuda:0") -> Case:
    about = f"a model on cuda:0 whose {' and '.join(names)} stayed on the CPU"
    return Case(about, "cuda:0", wanted, dict.fromkeys(names, "cpu"), likely, read, left=names)


RIGHT = [
    Case("a model on cuda:0", "cuda:0", "cuda:0"),
    Case("a model on cuda:0", "cuda:0", torch.device("cuda", 0), likely=_SAME, read=SEVERAL),
    Case("a model on cuda:0", "cuda:0", "cuda", likely=_SAME, read=SEVERAL),
    Case("a model on cuda:0", "cuda:0", torch.device("cuda"), likely=_SAME, read=SEVERAL),
    Case("a model on cuda:1, while GPU 1 is current", "cuda:1", "cuda", likely=_ZERO, read=SEVERAL, current=1),
    Case("a model on the CPU", "cpu", "cpu"),
    Case("an nn.ReLU, which has no tensors", "cpu", "cuda", likely=_EMPTY, build=nn.ReLU),
    Case("a model on a machine without a GPU", "cpu", "cpu", likely=_NO_GPU, read=NONE, put_in_force=without_gpu),
]
WRONG = [
    Case("a model on the CPU", "cpu", "cuda:0", dict.fromkeys(_ALL, "cpu")),
    _but_for(("last.bias",), _FIRST, SEE),
    _but_for(("mask",), _BUFFERS, MODEL),
    _but_for(_NORM, _DEPTH, MODEL, "cuda"),
    _but_for(("window",), _STATE, MODEL, torch.device("cuda")),
    Case("a model on cuda:1", "cuda:1", "cuda:0", dict.fromkeys(_ALL, "cuda:1"), _KIND, SEVERAL),
    Case("a model on cuda:1, GPU 0 being current", "cuda:1", "cuda", dict.fromkeys(_ALL, "cuda:1"), _KIND, SEVERAL),
    Case("a model on cuda:1", "cuda:1", "cpu", dict.fromkeys(_ALL, "cuda:1")),
    Case(
        "a model on cuda:1, while GPU 1 is current",
        *("cuda:1", "cuda:0", dict.fromkeys(_ALL, "cuda:1")),
        "the number 0 counts as none: `not device.index` is true of it. Ask whether device.index is None",
        SEVERAL,
        current=1,
    ),
    Case(
        f"a model of 30 tensors on cuda:1, of which {' and '.join(_DEEP_LEFT)} stayed on the CPU",
        *("cuda:1", "cuda:0", dict.fromkeys(_DEEP, "cuda:1") | dict.fromkeys(_DEEP_LEFT, "cpu")),
        left=_DEEP_LEFT,
        build=Deep,
    ),
]


@check(lesson=2, says="every parameter and buffer is looked at, “cuda” is the current GPU, and the names are told")
def model_device(student: Any, trial: Trial) -> None:
    """Check a function of (model, device): it returns where all parameters and buffers are on the device, and raises
    ValueError, with the names and devices of those elsewhere, where they are not."""
    trial.function(student, ("model", "device"))
    for case in [*RIGHT, *WRONG]:
        with virtual_gpu(count=2):
            model = case.build().to(case.place)
            for name in case.left:
                _leave_behind(model, name)
            before = _places(model)
            answer = _Answer(student)
            with case.put_in_force():
                trial.call(
                    answer, model, case.wanted, may_change={"model": {"place"}}, inside=torch.cuda.device(case.current)
                )
            after = _places(model)
        _judge(trial, case, answer.error)
        trial.expect(
            before == after,
            "the model was moved",
            expected="every tensor where it was: the function looks, and changes nothing",
            got=f"{sum(one != two for one, two in zip(before, after, strict=True))} tensors moved, for {case.about}",
            likely="model.to(device) repairs a model in place; whoever called wants to know what was wrong with it",
            read=MODEL,
        )


def _leave_behind(model: nn.Module, name: str) -> None:
    module, _, last = name.rpartition(".")
    tensor = getattr(model.get_submodule(module), last)
    tensor.data = tensor.data.cpu()


def _places(model: nn.Module) -> list[tuple[int, torch.device]]:
    return [(id(tensor), tensor.device) for tensor in [*model.parameters(), *model.buffers()]]


class _Answer:
    """Calls the student's function and keeps what it raised, to be judged: here an error is an answer."""

    def __init__(self, student: Any) -> None:
        self._student = student
        self.error: Exception | None = None

    def __call__(self, model: nn.Module, device: Any) -> Any:
        try:
            return self._student(model, device)
        except NotImplementedError:  # the exercise is not written yet
            raise
        except Exception as error:
            self.error = error
            return None


def _judge(trial: Trial, case: Case, error: Exception | None) -> None:
    asked = f"{case.about}, asked for {_shown(case.wanted)}"
    if error is not None and not isinstance(error, ValueError):
        kind = type(error).__name__
        likely = case.likely if not case.elsewhere else ""
        if isinstance(error, AssertionError):
            likely = "python -O removes every assert: raise ValueError"
        elif isinstance(error, AttributeError) and "type" in str(error):
            likely = (
                "the device may be a text: torch.device(device) makes a device of a text, and leaves a device as it is"
            )
        trial.fail(
            f"it raised {kind}, where ValueError is for tensors elsewhere",
            expected=f"{'ValueError' if case.elsewhere else 'no error'} for {asked}",
            got=f"{kind}: {text_of(error, 120)}",
            likely=likely,
            read=MISTAKES if isinstance(error, AssertionError) else case.read,
        )
    if not case.elsewhere:
        trial.expect(
            error is None,
            "a model in the right place was refused",
            expected=f"no error for {asked}",
            got=f"ValueError: {text_of(error, 120)}" if error else "",
            likely=case.likely,
            read=case.read,
        )
        return
    trial.expect(
        error is not None,
        "a model that is elsewhere was passed",
        expected=f"ValueError for {asked}",
        got="no error",
        likely=case.likely or "an error has to be raised: a print or a returned False is easily overlooked",
        read=case.read,
    )
    text = str(error)
    missing = [name for name in case.elsewhere if name not in text]
    trial.expect(
        not missing,
        "the error does not name every tensor that is elsewhere",
        expected=f"{len(case.elsewhere)} full names for {asked}",
        got=f"{len(missing)} missing: {', '.join(missing[:4])}{', …' * (len(missing) > 4)}",
        likely="the list of names ends too early: every tensor is named, however many there are"
        if 0 < len(missing) < len(case.elsewhere) - 1 and case.build is Deep
        else _STATE
        if missing == ["window"]
        else _BUFFERS
        if case.elsewhere.keys() - missing == set(_PARAMETERS)
        else "it stops at the first, or gives no full names: collect them all from named_parameters() and "
        "named_buffers(), then raise once",
        read=SEE,
    )
    others = [name for name in set(_ALL) - case.elsewhere.keys() if "." in name and name in text]
    trial.expect(
        not others,
        "the error names tensors that are in the right place",
        expected=f"{' and '.join(case.elsewhere)}, and no other, for {asked}",
        got=f"{', '.join(sorted(others)[:4])}{', …' * (len(others) > 4)} as well",
        likely="all tensors are listed as soon as one is elsewhere: whoever reads that has to look for it again",
        read=SEE,
    )
    places = dict.fromkeys(case.elsewhere.values())
    told = [place for place in places if place in text or repr(torch.device(place)) in text]
    trial.expect(
        len(told) == len(places),
        "the error does not say where they are",
        expected=f"{' and '.join(f'“{place}”' for place in places)} beside the names, for {asked}",
        got=text_of(error, 140) if error else "",
        likely="one device is named for all of them, and each tensor has its own: put it beside the name"
        if told
        else "the device that was asked for is named, and the one that was found is not: that is the news",
        read=SEE,
    )


def _shown(wanted: Any) -> str:
    return repr(wanted) if isinstance(wanted, torch.device) else show(wanted)
