"""The check of a function that takes a nested batch to a device: every tensor moves, everything else stays itself."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ...virtual.gpu import VirtualGPU
from ..audit import Kind
from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import show
from .sections import MAKE, SEVERAL, TENSOR, TOGETHER

Pair = namedtuple("Pair", ["images", "labels"])
Nothing = namedtuple("Nothing", [])
EARLIER = 1000.0  # seconds of work before the way back: what does not wait for its copies is done long before them


@dataclass(eq=False)
class Record:
    """Something of the caller's that is no container, though one can iterate over it: it comes back as it is."""

    tensor: torch.Tensor = field(default_factory=lambda: torch.ones(2))

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([self.tensor])


def draw() -> dict[Any, Any]:
    """A batch as collate functions give them, with one of everything."""
    return {
        "x": torch.randn(2, 3),
        "tokens": [torch.randint(0, 9, (4,)), torch.randint(0, 9, (2,))],
        "boxes": (torch.rand(2, 4), {"area": torch.rand(2), "crowd": False}),
        "pair": Pair(torch.rand(2, 1, 4, 4), torch.randint(0, 9, (2,))),
        "weight": torch.rand(()),
        "nothing": torch.rand(0, 4),
        "learned": torch.rand(2, requires_grad=True),
        "parameter": nn.Parameter(torch.rand(2)),
        "kinds": [torch.tensor([0, 1, 1]).to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.bool)],
        "names": ["seven", "nine"],
        "mask": None,
        "epoch": 3,
        "rate": 0.1,
        "raw": b"seven",
        "array": np.arange(1, 4),
        "number": np.float32(0.1),
        "record": Record(),
        "empty": [[], {}, (), Nothing()],
        7: torch.rand(1),
    }


@check(lesson=2, says="every tensor at every depth moves, containers keep their types, and the rest is left alone")
def move_batch(student: Any, trial: Trial) -> None:
    """Check a function of (batch, device): the batch with every tensor on the device, in containers of the same types;
    whatever is no tensor and no container comes back as it is, and the caller's batch stays."""
    trial.function(student, ("batch", "device"))
    for place in ("cuda:0", torch.device("cuda", 1), "cpu"):
        with virtual_gpu(count=2) as gpu:
            batch = draw()
            before = _Picture(batch)
            got = trial.call(student, batch, place, may_change=JUDGED, explain=_explain)
            _compare(trial, batch, got, torch.device(place), "batch")
            _judge_caller(trial, before, batch)
            _judge_new(trial, batch, got, "batch")
            if place == "cuda:0":
                _judge_what_is_there(trial, student, got, place)
                _judge_alone(trial, student, place)
                _judge_way_back(trial, student, got, gpu)


# What `_judge_caller` compares itself, in its own words.
JUDGED: dict[str, set[Kind]] = {"batch": {"items", "values", "place"}}


class _Picture:
    """A batch as it was: its containers by identity, and of its tensors the devices and the values."""

    def __init__(self, batch: Any) -> None:
        self.parts: list[tuple[str, Any, Any]] = []
        self._look("batch", batch)

    def _look(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.parts.append((name, id(value), (value.device, value.detach().cpu().clone())))
        elif isinstance(value, dict):
            self.parts.append((name, id(value), list(value)))
            for key, item in value.items():
                self._look(f"{name}[{key!r}]", item)
        elif isinstance(value, list | tuple):
            self.parts.append((name, id(value), len(value)))
            for place, item in enumerate(value):
                self._look(f"{name}[{place}]", item)
        elif isinstance(value, Record):
            self._look(f"{name}.tensor", value.tensor)

    def changed(self, other: _Picture) -> str:
        """The first part that is not as in `other`; "" where all are."""
        for (name, one, what), (_, another, now) in zip(self.parts, other.parts, strict=False):
            if isinstance(what, tuple):
                if one != another or what[0] != now[0] or not torch.equal(what[1], now[1]):
                    return name
            elif one != another or what != now:
                return name
        return "" if len(self.parts) == len(other.parts) else "batch"


def _judge_caller(trial: Trial, before: _Picture, batch: Any) -> None:
    name = before.changed(_Picture(batch))
    trial.expect(
        not name,
        "the caller's batch was changed",
        expected="a new batch; the old one, its containers too, as it was",
        got=f"something else in {name}",
        likely="an object that is no container stays as it is, and so do its attributes: setattr changes the caller's"
        if name.endswith(".tensor")
        else "the moved tensors were put into the caller's own dict or list: build new ones",
        read=TENSOR,
    )


def _judge_new(trial: Trial, old: Any, new: Any, name: str) -> None:
    """Each container but tuples, which nobody can change, is another one."""
    if not isinstance(old, dict | list | tuple):
        return
    trial.expect(
        new is not old or isinstance(old, tuple),
        "a container came back as the same object",
        expected=f"a new {type(old).__name__} in {name}",
        got="the caller's own",
        likely="what is put into one of them later would be in both; an empty one is a container too",
        read=TENSOR,
    )
    for key in old if isinstance(old, dict) else range(len(old)):
        _judge_new(trial, old[key], new[key], f"{name}[{key!r}]")


def _compare(trial: Trial, old: Any, new: Any, place: torch.device, name: str) -> None:
    """Fail where `new` is not `old` with its tensors on `place`."""
    if isinstance(old, torch.Tensor):
        _compare_tensor(trial, old, new, place, name)
    elif isinstance(old, dict | list | tuple):
        _compare_container(trial, old, new, name)
        pairs = [(f"[{key!r}]", value, new[key]) for key, value in old.items()] if isinstance(old, dict) else []
        if not isinstance(old, dict):
            pairs = [(f"[{i}]", value, new[i]) for i, value in enumerate(old)]
        for key, value, moved in pairs:
            _compare(trial, value, moved, place, f"{name}{key}")
    else:
        trial.expect(
            new is old or (type(new) is type(old) and isinstance(old, bool | int | float | str) and new == old),
            "something that is no tensor did not come back as it was",
            expected=f"{show(old)} in {name}, the same object",
            got=show(new),
            likely=_about_rest(old, new),
            read=TENSOR,
        )


def _compare_tensor(trial: Trial, old: torch.Tensor, new: Any, place: torch.device, name: str) -> None:
    trial.expect(
        isinstance(new, torch.Tensor) and new.dtype == old.dtype and new.shape == old.shape,
        "a tensor came back as something else",
        expected=f"{show(old)} in {name}",
        got=show(new),
        likely="float64 and bfloat16 are floats too, and whoever put them there wants them: the device changes, the "
        "dtype stays"
        if isinstance(new, torch.Tensor) and old.is_floating_point() and new.is_floating_point()
        else "only the device changes; dtype and shape stay",
        read=TENSOR,
    )
    if new.device != place:
        depth = name.count("[")
        likely = "the result of .to was thrown away: tensor.to(device) leaves the tensor as it is"
        if place.index == 1 and new.device.type == "cuda":
            likely = "a GPU is named in the code, or the number got lost: give .to the device as it came"
        elif place.type == "cpu":
            likely = "the way back counts too: .to(device) for any device, the CPU as well"
        elif name == "batch['weight']":
            likely = "a tensor without dimensions is a tensor too"
        elif name == "batch['nothing']":
            likely = "a tensor without elements is a tensor too, and has a device"
        elif name == "batch['parameter']":
            likely = "an nn.Parameter is a tensor too: isinstance(x, torch.Tensor), where type(x) is that of a subclass"
        elif name == "batch[7]":
            likely = "keys of a dict need not be texts"
        elif name.startswith("batch['pair']"):
            likely = "a namedtuple is a tuple: go through it, and build it anew with type(x)(*items)"
        elif name.startswith("batch['boxes']"):
            likely = "containers in containers: let the function call itself for every item"
            likely = "a tuple is a container too" if depth == 2 else likely
        elif depth > 1:
            likely = "a list in the dict was not entered: let the function call itself for every item"
        trial.fail(
            "a tensor stayed behind",
            expected=f"{name} on {place}",
            got=f"it is on {new.device}",
            likely=likely,
            read=SEVERAL if place.index == 1 and new.device.type == "cuda" else TOGETHER,
        )
    cut = new is not old and old.requires_grad and new.is_leaf
    trial.expect(
        new.requires_grad == old.requires_grad and not cut,
        "a tensor is no longer part of the graph",
        expected=f"{name} with requires_grad={old.requires_grad}",
        got="a new leaf, whose gradient stays with it" if cut else f"requires_grad={new.requires_grad}",
        likely="detach() and .data cut it off: backward of what is computed there never reaches the caller's tensor",
        read=TENSOR,
    )
    trial.expect(
        bool(torch.equal(new.cpu(), old.cpu())),
        "a tensor has other values than before",
        expected=f"{name} with the values it had",
        got="others",
        likely="a new tensor was made on the device (empty_like, zeros_like) where the old one had to be copied",
        read=MAKE,
    )


def _compare_container(trial: Trial, old: Any, new: Any, name: str) -> None:
    kind = type(old).__name__
    likely = ""
    if new is None:
        likely = "a branch of the function ends without a return"
    elif isinstance(old, Pair) and isinstance(new, tuple):
        likely = "a namedtuple became a plain tuple, and batch.images fails from now on: type(x)(*items)"
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        likely = "lists and tuples are told apart by those who use the batch: build type(x) anew"
    elif isinstance(old, dict) and isinstance(new, list):
        likely = "going through a dict gives its keys: go through .items(), and build a dict"
    trial.expect(
        type(new) is type(old),
        "a container changed its type",
        expected=f"a {kind} in {name}",
        got=f"a {type(new).__name__}",
        likely=likely,
        read=TENSOR,
    )
    keys = list(old) if isinstance(old, dict) else len(old)
    found = list(new) if isinstance(new, dict) else len(new)
    trial.expect(
        keys == found,
        "a container has other items than before",
        expected=f"{show(keys)} in {name}",
        got=show(found),
        likely="what is no tensor was left out: None and texts belong to the batch too",
        read=TENSOR,
    )


def _about_rest(old: Any, new: Any) -> str:
    if isinstance(old, str) and isinstance(new, list | tuple):
        return "a text can be iterated over too: ask for dict, list and tuple by name"
    if isinstance(old, bytes):
        return "bytes are a sequence as texts are, and no container here: ask for dict, list and tuple by name"
    if isinstance(old, np.ndarray | np.generic) and isinstance(new, torch.Tensor):
        return "what belongs to NumPy was made into a tensor: only tensors move here, and the rest is returned as it is"
    if isinstance(new, torch.Tensor):
        return "numbers were made into tensors: torch.as_tensor takes whatever looks like one"
    if new is None:
        return "a branch of the function ends without a return"
    if isinstance(old, np.ndarray) or (isinstance(new, Record) and _is_at(new.tensor, old.tensor.device)):
        return "an object that is no container was copied: return it as it is"
    if isinstance(old, Record):
        return (
            "an object that is no container was taken apart. One can iterate over it, and it is a dataclass: ask for "
            "dict, list and tuple by name, and return it as it is"
        )
    return ""


def _is_at(value: Any, place: torch.device) -> bool:
    return isinstance(value, torch.Tensor) and value.device == place


def _judge_what_is_there(trial: Trial, student: Any, there: Any, place: Any) -> None:
    again = trial.call(student, there, place, may_change=JUDGED, explain=_explain)
    rows = [torch.rand(3, 2, device=place).t(), torch.rand(6, device=place)[::2]]  # not contiguous
    same = trial.call(student, rows, place, may_change=JUDGED, explain=_explain)
    trial.expect(
        all(again[name] is there[name] for name in ("x", "weight", "learned"))
        and all(one is other for one, other in zip(same, rows, strict=True)),
        "a tensor that was there already was copied",
        expected="the same object: .to(device) gives it back",
        got="another tensor with the same values, and twice the memory",
        likely="copy=True, clone(), contiguous(), or a way over the CPU",
        read=TENSOR,
    )
    got = trial.call(student, rows, "cuda", may_change=JUDGED, explain=_explain)
    trial.expect(
        all(one is other for one, other in zip(got, rows, strict=True)),
        "a tensor that was there already was copied",
        expected="the same object for “cuda”, too: that is cuda:0, where the tensor is",
        got="another tensor with the same values, and twice the memory",
        likely="torch.device('cuda') has no number, and is equal to no tensor's device: .to(device) knows by itself "
        "whether there is something to do",
        read=SEVERAL,
    )


def _judge_way_back(trial: Trial, student: Any, there: Any, gpu: VirtualGPU) -> None:
    """From the GPU to the CPU, where the values have to be when the call returns."""
    gpu.device(0).timer.kernel(0, EARLIER, "earlier work")
    with gpu.timeline() as timeline:
        back = trial.call(student, there, "cpu", may_change=JUDGED, explain=_explain)
        late = sum(s.where == "to host" and s.start + s.seconds > gpu.clock.host for s in timeline.spans)
    _compare(trial, there, back, torch.device("cpu"), "batch")
    trial.expect(
        not late,
        "the values are not on the CPU yet when the function returns",
        expected="a batch that can be read: its copies from the GPU are done",
        got=f"{late} copies that are still to come",
        likely="non_blocking=True to the CPU returns before the copy is made, and whoever reads the tensor then gets "
        "what stood in its memory before",
        read=TENSOR,
    )


def _judge_alone(trial: Trial, student: Any, place: Any) -> None:
    """A batch need not be a dict."""
    for batch in (torch.rand(3), [torch.rand(2), (torch.rand(1),)], Pair(torch.rand(2), None), None):
        got = trial.call(student, batch, place, may_change=JUDGED, explain=_explain)
        _compare(trial, batch, got, torch.device(place), "batch")


def _explain(error: str) -> str:
    if "takes 1 positional argument" in error:
        return (
            "a namedtuple without fields is one too: its _fields is there, and empty. Ask hasattr(x, '_fields'), and "
            "give its type the items one by one"
        )
    if "missing" in error and "positional argument" in error:
        return "a namedtuple takes its items one by one: type(x)(*items), where a tuple takes them as one iterable"
    if "has no attribute 'to'" in error:
        return "not everything in a batch has a .to: ask whether it is a tensor"
    if "has no attribute 'items'" in error:
        return "the batch is not always a dict: it may be a tensor, a list, a tuple or None"
    if "is not iterable" in error:
        return "not everything in a batch is a container: a number, or None, has to come back as it is"
    if error.startswith("RecursionError"):
        return "a text of one letter holds itself: do not go into texts"
    if "unexpected keyword" in error:
        return "only tensors have such a .to"
    return ""
