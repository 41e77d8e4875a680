"""Takes a snapshot of a student's arguments as facts that can be compared later, each with a message for a change.

It covers tensors, modules, optimizers, schedules, gradient scalers, arrays and containers. An iterator would be used
up; any other object counts by its identity. The virtual GPU does not count this work.

Not covered: values of tensors that have none (shapes only, meta) or whose layout is not strided, a change that was
undone, attributes of modules, optimizers and objects that a check or a student has defined.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from virtualgpu.scope.in_force import backing

Kind = Literal[
    "values",  # of a tensor or an array
    "place",  # its device, dtype, shape and strides
    "requires_grad",
    "grad",
    "hooks",
    "mode",  # training or evaluation
    "parameters",  # the values of a module's or an optimizer's parameters
    "buffers",  # of a module: values, and the tensors themselves
    "parts",  # of a module: names and identity of its submodules and parameters, names of its buffers
    "settings",  # an optimizer's groups but for its parameters, and the numbers of torch's own modules
    "state",  # of an optimizer, a schedule, a gradient scaler
    "items",  # of a container
]
_PLAIN = {int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
_CONTAINERS = {dict, list, tuple}
_OBJECT = "object "


@dataclasses.dataclass(slots=True)
class Fact:
    """One value that must not change; `words(old, new)` returns the message for a change."""

    name: str
    kind: Kind
    allowed: set[str]  # of the object that it is a fact of
    value: Any
    words: Callable[[Any, Any], str]

    def equals(self, other: Fact) -> bool:
        return _same(self.value, other.value)


class _Values:
    """The values of a tensor, copied or not; None where they cannot be compared."""

    def __init__(self, tensor: Any, copy: bool) -> None:
        self.tensor: torch.Tensor | None = None  # a tensor without values is not kept alive
        with backing, torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            known = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor) and not tensor.is_meta
            if known:
                self.tensor = tensor.detach().clone() if copy else tensor.detach()

    def same(self, other: _Values) -> bool:
        """Compare: NaN equals NaN; shape and dtype are facts of their own."""
        a, b = self.tensor, other.tensor
        if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
            return True
        with backing, torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            b = b.to(a.device)
            if a.dtype.itemsize == 1:  # torch.equal does not know every 8-bit float
                return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


class _Items:
    """The contents of a container: numbers and the like themselves, other objects by identity, not kept alive."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: Iterable[Any], values: Collection[Any]) -> None:
        self.keys = [key if type(key) in _PLAIN else _token(key) for key in keys]
        self.values = [*values]
        if not _PLAIN.issuperset(map(type, values)):
            self.values = [item if type(item) in _PLAIN else _Which(_token(item)) for item in values]

    def same(self, other: _Items) -> bool:
        """Compare with order and types of numbers; NaN equals NaN."""
        if len(self.keys) == len(other.keys) and (
            all(map(operator.is_, self.values, other.values)) or all(map(_is_the_same, self.values, other.values))
        ):
            return self.keys == other.keys
        return list(self.tokens().items()) == list(other.tokens().items())

    def tokens(self) -> dict[Any, str]:
        pairs = zip(self.keys, self.values, strict=True)
        return {key: str(item) if type(item) is _Which else repr(item) for key, item in pairs}


class _Which(str):
    """A token in place of an object."""

    __slots__ = ()


def _is_the_same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is _Which and type(new) is _Which and old == new)


class Snapshot:
    """The facts of all objects that were added, by path and kind."""

    def __init__(self, copy: bool) -> None:
        self.facts: dict[tuple[str, str, int], Fact] = {}  # by path, kind and id of the object
        self.name, self.allowed = "", set[str]()
        self._copy = copy
        self._met: dict[int, set[str]] = {}  # kinds of change allowed, by id of each object added

    def add(self, path: str, value: Any, kind: Kind = "values") -> None:
        """Add the facts of `value`; `kind` is that of a tensor's values."""
        if _is_plain(value):
            return
        if id(value) in self._met:
            self._met[id(value)] |= self.allowed
            return
        self._met[id(value)] = set(self.allowed)
        if type(value) in _CONTAINERS:  # of which there may be thousands
            self._container(path, value)
        elif isinstance(value, torch.Tensor):
            self._tensor(path, value, kind)
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(path, value)
        elif isinstance(value, LRScheduler):
            self._schedule(path, value)
        elif isinstance(value, torch.amp.GradScaler):
            self._scaler(path, value)
        elif "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray):
            if value.dtype.kind in "iufcb":
                self._values(path, torch.from_numpy(value), kind, value)
        else:
            self._container(path, value)

    def _fact(self, path: str, kind: Kind, of: Any, value: Any, words: Callable[[Any, Any], str]) -> None:
        if kind not in self.allowed:
            self.facts[path, kind, id(of)] = Fact(self.name, kind, self._met[id(of)], value, words)

    # -- tensors -------------------------------------------------------------------------------------------

    def _tensor(self, path: str, tensor: torch.Tensor, kind: Kind) -> None:
        if is_lazy(tensor):
            return
        strides = tensor.stride() if tensor.layout is torch.strided else ()
        place = str(tensor.device), str(tensor.dtype), tuple(tensor.shape), strides
        self._fact(path, "place", tensor, place, partial(_place, path))
        self._values(path, tensor, kind, tensor)
        self._fact(path, "requires_grad", tensor, tensor.requires_grad, partial(_flag, f"{path}.requires_grad"))
        if tensor.is_leaf and "grad" not in self.allowed:
            self._fact(f"{path}.grad", "grad", tensor, tensor.grad is not None, partial(_grad, f"{path}.grad"))
            if tensor.grad is not None:
                self._values(f"{path}.grad", tensor.grad, "grad", tensor, key=f"{path}.grad: values")
        own: Any = tensor
        hooks = (*(own._backward_hooks or ()), *(own._post_accumulate_grad_hooks or ()))
        self._fact(path, "hooks", tensor, hooks, partial(_hooks, path))

    def _values(self, path: str, tensor: torch.Tensor, kind: Kind, of: Any, *, key: str = "") -> None:
        if kind not in self.allowed:  # before the copy is made
            self._fact(key or path, kind, of, _Values(tensor, self._copy), partial(_changed, path))

    # -- modules, optimizers and what belongs to them ------------------------------------------------------

    def _module(self, path: str, root: nn.Module) -> None:
        of = "" if path == self.name else f" of {path}"
        for name, module in root.named_modules():
            self._met.setdefault(id(module), set()).update(self.allowed)
            at = f"{path}.{name}" if name else path
            who = f"layer {name} ({type(module).__name__}){of}" if name else "it" if not of else path
            own: dict[str, Any] = vars(module)
            self._fact(at, "mode", module, module.training, partial(_mode, who))
            hooks = [key for kind, keys in own.items() if kind.endswith("_hooks") for key in keys or ()]
            self._fact(at, "hooks", module, (*hooks, _token(own.get("forward"))), partial(_hooks, who))
            moves = "place" in self.allowed  # what moves a module may give it other parameters and buffers
            parts = {key: _token(part) for key, part in module._modules.items()}
            parts |= {key: "a parameter" if moves else _token(part) for key, part in module._parameters.items()}
            parts |= dict.fromkeys(module._buffers, "a buffer")
            self._fact(at, "parts", module, parts, partial(_entries, f"{at}.{{}}"))
            if type(module).__module__.startswith("torch.nn."):
                numbers = {key: _token(value) for key, value in own.items() if key[0] != "_" and key != "training"}
                self._fact(at, "settings", module, numbers, partial(_entries, f"{at}.{{}}"))
            for key, parameter in module._parameters.items():
                self.add(f"{at}.{key}", parameter, "parameters")
            for key, buffer in module._buffers.items():
                self.add(f"{at}.{key}", buffer, "buffers")
            if not moves:
                buffers = {key: _token(buffer) for key, buffer in module._buffers.items()}
                self._fact(at, "buffers", module, buffers, partial(_entries, f"{at}.{{}}"))

    def _optimizer(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        hooks = [key for kind, keys in vars(optimizer).items() if kind.endswith("_hooks") for key in keys]
        self._fact(path, "hooks", optimizer, tuple(hooks), partial(_hooks, "it" if path == self.name else path))
        count = {"": str(len(optimizer.param_groups))}
        self._fact(path, "parts", optimizer, count, partial(_entries, f"the number of {path}.param_groups"))
        for number, group in enumerate(optimizer.param_groups):
            at = f"{path}.param_groups[{number}]"
            parts = dict(enumerate(map(_token, group["params"])))
            self._fact(at, "parts", optimizer, parts, partial(_entries, f"{at}['params'][{{}}]"))
            numbers = {key: value for key, value in group.items() if key != "params"}
            self._state(at, optimizer, numbers, "settings")
            for index, parameter in enumerate(group["params"]):
                self.add(f"{at}['params'][{index}]", parameter, "parameters")
                state = optimizer.state.get(parameter, {})
                self._state(f"{path}.state[parameter {index} of group {number}]", optimizer, state)

    def _schedule(self, path: str, schedule: LRScheduler) -> None:
        state = {key: item for key, item in vars(schedule).items() if key != "optimizer"}
        lists = {key: tuple(item) for key, item in state.items() if isinstance(item, list)}
        self._state(path, schedule, state | lists)

    def _scaler(self, path: str, scaler: torch.amp.GradScaler) -> None:
        """It has tensors from its first use on; before, the numbers with which they begin."""
        state = {key: item for key, item in vars(scaler).items() if key != "_per_optimizer_states"}
        with backing:
            for key, first, dtype in (
                ("_scale", state.pop("_init_scale", None), torch.float32),
                ("_growth_tracker", state.pop("_init_growth_tracker", None), torch.int32),
            ):
                if first is not None and state[key] is None:
                    state[key] = torch.tensor(first, dtype=dtype)
        self._state(path, scaler, state)

    def _state(self, path: str, of: Any, entries: Mapping[Any, Any], kind: Kind = "state") -> None:
        if kind in self.allowed:
            return
        tokens = {key: "a tensor" if isinstance(item, torch.Tensor) else _token(item) for key, item in entries.items()}
        self._fact(path, kind, of, tokens, partial(_entries, f"{path}[{{!r}}]"))
        for key, item in entries.items():
            if isinstance(item, torch.Tensor):
                self._values(f"{path}[{key!r}]", item, kind, of)

    # -- containers ----------------------------------------------------------------------------------------

    def _container(self, path: str, value: Any) -> None:
        """Iterate by the builtin class, since a subclass's `__iter__` may count or use up its items."""
        keys: Collection[Any]
        values: Collection[Any]
        named = False
        if isinstance(value, dict):
            items = value if type(value) is dict else dict(dict.items(value))
            keys, values = items.keys(), items.values()
        elif type(value) in (list, tuple):
            keys, values = range(len(value)), value
        elif isinstance(value, list | tuple | deque):
            base = next(kind for kind in (list, tuple, deque) if isinstance(value, kind))
            values = [*base.__iter__(value)]  # type: ignore[arg-type]
            keys = range(len(values))
        elif isinstance(value, set | frozenset):
            return self._fact(path, "items", value, frozenset(map(_token, value)), partial(_changed, path))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            named, keys = True, [field.name for field in dataclasses.fields(value)]
            values = [getattr(value, key, None) for key in keys]
        else:
            return None
        known = _Items(keys, values)
        self._fact(path, "items", value, known, partial(_items, path, named))
        if not _PLAIN.issuperset(map(type, values)):
            for key, item in zip(known.keys, values, strict=True):
                if type(item) not in _PLAIN:  # a list of numbers may be a long one
                    self.add(f"{path}.{key}" if named else f"{path}[{key!r}]", item)
        return None


def _is_plain(value: Any) -> bool:
    """Return True if the value is immutable, so that its repr identifies it."""
    return type(value) in _PLAIN or (type(value) is tuple and _PLAIN.issuperset(map(type, value)))


def _token(value: Any) -> str:
    """Return the repr of a plain value, else a token with the identity of the object."""
    if _is_plain(value):
        return repr(value)
    return f"{_OBJECT}{id(value)}"


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, dict):  # the order counts
        return list(old.items()) == list(new.items())
    return old.same(new) if isinstance(old, _Values | _Items) else bool(old == new)


# -- messages: the place, the old and the new value -----------------------------------------------------------


def _changed(where: str, old: Any, new: Any) -> str:
    return f"{where} has other {'values' if isinstance(old, _Values) else 'contents'}"


def _place(where: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    names = ("device", "dtype", "shape", "stride()")
    return next(f"{where}.{name} is {b}, not {a}" for name, a, b in zip(names, old, new, strict=True) if a != b)


def _flag(where: str, old: bool, new: bool) -> str:
    return f"{where} is {new}, not {old}"


def _grad(where: str, old: bool, new: bool) -> str:
    return f"{where} is a tensor, not None" if new else f"{where} is None, and was a tensor"


def _mode(who: str, old: bool, new: bool) -> str:
    return f"{who} is left in {'training' if new else 'eval'} mode"


def _hooks(who: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> str:
    if old[-1:] != new[-1:] and str(new[-1:]).count(_OBJECT):
        return f"{who} has another forward"
    return f"{who} has {'a hook that it did not have' if len(new) > len(old) else 'lost a hook'}"


def _items(path: str, named: bool, old: _Items, new: _Items) -> str:
    return _entries(f"{path}.{{}}" if named else f"{path}[{{!r}}]", old.tokens(), new.tokens())


def _entries(form: str, old: dict[Any, str], new: dict[Any, str]) -> str:
    for key in [*old, *new]:
        where = form.format(key)
        if key not in new or key not in old:
            return f"{where} is {'gone' if key in old else 'new'}"
        if old[key] != new[key]:
            other = any(text.startswith(_OBJECT) for text in (old[key], new[key]))
            return f"{where} is another object" if other else f"{where} is {new[key]}, not {old[key]}"
    return f"the order of {form.format('…')} has changed"
