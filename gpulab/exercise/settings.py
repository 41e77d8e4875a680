"""Reads, compares and restores global settings of torch and Python, and random states, around a student's code.

`local()` returns the settings of one thread, `shared()` those of the process. Not detected: functions of torch or
Python that were replaced, and some cases of seeding: a GPU's generator with the seed that it has, the CPU's with its
own seed once some 20,000 numbers have been drawn, and a state set by `set_rng_state` or `setstate` that drawing could
have reached.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import torch

from virtualgpu import collecting

_T = TypeVar("_T")
_WORDS = 624  # in a state of the Mersenne Twister
_TORCH_BYTES = 5056  # in the state of torch's generator on the CPU
_ROUNDS = 2000  # 1.2 million numbers: no answer to an exercise draws more from Python's or NumPy's global generator
_ROUNDS_BACK = 30  # a fraction of a millisecond


@dataclass(frozen=True)
class _Setting:
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    quiet: bool = False  # restored without a message


def shared() -> dict[str, Any]:
    """Return the process-wide settings by name; None where this build has no such setting, or torch cannot read it."""
    return {setting.name: _value(setting) for setting in _SHARED}


def local() -> dict[str, Any]:
    """Return the settings of the calling thread by name."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "the default device": str(torch.get_default_device()),
        _THREADS: torch.get_num_threads(),
        **(_current() if _has_gpu() else {}),
    }


def restore(values: dict[str, Any], *, also: Iterable[str] = (), as_read: dict[str, Any] | None = None) -> None:
    """Set the shared settings to `values` where they differ, those in `also` in any case. `as_read` are the current
    values, if known."""
    if as_read == values and not also:
        return
    for setting in _SHARED:  # in order: a general one before those that inherit from it
        value = values.get(setting.name)
        if value is not None and (setting.name in also or _value(setting) != value):
            setting.write(value)


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Return a message for each setting that differs: "the default dtype at float64, not float32"."""
    quiet = {setting.name for setting in _SHARED if setting.quiet}
    return {
        name: f"{name} at {_short(after[name])}, not {_short(old)}"
        for name, old in before.items()
        if name not in quiet and name in after and after[name] != old
    }


def in_clean_state(body: Callable[[], _T], *, seed: int) -> _T:
    """Run a check's body with default settings and this seed; restore the notebook's settings and random states."""
    before, states, autocast = shared(), random_states(), torch.is_autocast_enabled("cpu")
    try:
        restore(before | _FOR_CHECKS)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU too
        random.seed(seed)
        # not a disabled autocast block: inside one, those of the check would not clear their cache of weights
        torch.set_autocast_enabled("cpu", False)
        elsewhere = torch.get_default_device().type != "cpu"
        on_cpu = torch.device("cpu") if elsewhere else nullcontext()
        with torch.inference_mode(False), torch.enable_grad(), on_cpu, collecting.collect_new_only():
            return body()
    finally:
        torch.set_autocast_enabled("cpu", autocast)
        restore(before)
        restore_random(states)


def random_states() -> dict[str, Any]:
    """Return the random states of Python, torch (with the GPUs in use) and, if imported, NumPy."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if _has_gpu():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def restore_random(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def seeds() -> dict[str, int]:
    """Return the seeds of torch's generators, by the name of the function that sets them."""
    found = {"torch.manual_seed": torch.initial_seed()}
    if _has_gpu():
        for index, generator in enumerate(torch.cuda.default_generators):
            found[f"torch.cuda.manual_seed (GPU {index})"] = generator.initial_seed()
    return found


def seeded(states: dict[str, Any], seeds_before: dict[str, int]) -> list[str]:
    """Return the names of the functions that have seeded a global generator since `random_states()` and `seeds()` were
    taken; drawing from it, or restoring its state, does not count."""
    found = [name for name, seed in seeds().items() if seeds_before.get(name, seed) != seed]
    old, new = states["torch"], torch.get_rng_state()
    known = len(new) == _TORCH_BYTES and not found and not torch.equal(old, new)
    if known and _may_be_drawn(_words(new), _words(old), _ROUNDS_BACK):  # it leads back to the old state
        found.append("torch.manual_seed")
    if not _may_be_drawn(states["python"][1], random.getstate()[1]):
        found.append("random.seed")
    if "numpy" in states and states["numpy"][0] == "MT19937":
        old, new = states["numpy"], sys.modules["numpy"].random.get_state()
        first, last = ((*state[1].tolist(), int(state[2])) for state in (old, new))
        if new[0] == old[0] and not _may_be_drawn(first, last):
            found.append("numpy.random.seed")
    return found


def _may_be_drawn(before: tuple[int, ...], after: tuple[int, ...], rounds: int = _ROUNDS) -> bool:
    """Return True if drawing leads from one state of the Mersenne Twister to the other: 624 words, generated anew once
    all are used, and the number of those used. `random`, NumPy and torch share it."""
    if before[:-1] == after[:-1]:
        return before[-1] <= after[-1]
    twin = random.Random()
    twin.setstate((3, before, None))
    for _ in range(rounds):
        twin.getrandbits(32 * _WORDS)
        if twin.getstate()[1][:-1] == after[:-1]:
            return True
    return False


def _words(state: torch.Tensor) -> tuple[int, ...]:
    """Return the state of torch's generator on the CPU in the form of `random`. Its bytes: the seed (8), the number of
    words left and a flag (4 each), the index of the next word (8), the 624 words (8 each), a cache of `normal_`
    (aten/src/ATen/CPUGeneratorImpl.cpp, PyTorch 2.15)."""
    left = int(state[8:12].clone().view(torch.int32))
    return (*state[24 : 24 + 8 * _WORDS].clone().view(torch.int64).tolist(), _WORDS + 1 - left)


def _has_gpu() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_available()  # the second asks the driver each time


def _current() -> dict[str, str]:
    """Return the calling thread's current GPU, and its current stream on each."""
    streams = {
        f"the current stream of cuda:{index}": f"stream {torch.cuda.current_stream(index).cuda_stream}"
        for index in range(torch.cuda.device_count())
    }
    return {_GPU: f"cuda:{torch.cuda.current_device()}", **streams}


def _sync_debug_mode() -> str:
    """Return the mode; "default" until a GPU is in use, since reading it would initialise CUDA."""
    return ("default", "warn", "error")[torch.cuda.get_sync_debug_mode() if _has_gpu() else 0]


def _set_sync_debug_mode(mode: str) -> None:
    if _has_gpu():
        torch.cuda.set_sync_debug_mode(mode)


def _collector() -> tuple[bool, tuple[int, int, int]]:
    return gc.isenabled(), gc.get_threshold()


def _set_collector(value: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if value[0] else gc.disable)()
    gc.set_threshold(*value[1])


def _value(setting: _Setting) -> Any:
    try:
        return setting.read()
    except (AttributeError, OSError, RuntimeError):  # another build; a deleted folder; two precision APIs mixed
        return None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"…{text[-59:]}"


def _of_backend(path: str, attribute: str) -> _Setting:
    """Return the setting of an attribute of `torch.backends.PATH`."""

    def home() -> Any:
        return attrgetter(path)(torch.backends) if path else torch.backends

    read = attrgetter(f"{path}.{attribute}" if path else attribute)
    name = ".".join(part for part in ("torch.backends", path, attribute) if part)
    return _Setting(name, lambda: read(torch.backends), lambda value: setattr(home(), attribute, value))


def _print_options() -> dict[str, Any]:
    options = torch._tensor_str.PRINT_OPTS
    return {name: getattr(options, name) for name in ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")}


def _set_environment(values: dict[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


_THREADS, _GPU = "the number of threads", "the current GPU"
OF_A_SCRIPT = (_THREADS, _GPU)  # that a rank's script may set for its process
# One thread: the models are tiny, and on a busy machine threads would wait for one another.
_FOR_CHECKS: dict[str, Any] = {
    "the default dtype": torch.float32,
    "deterministic mode": 0,
    "anomaly detection": False,
    _THREADS: 1,
}
# Where float32 precision is set, the general places before those that inherit from them.
_PRECISIONS = ["", "cudnn", "mkldnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn"]
_PRECISIONS += ["mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"]
_SHARED: tuple[_Setting, ...] = (
    _Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _Setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _Setting(_THREADS, torch.get_num_threads, torch.set_num_threads),
    _Setting("print options", _print_options, lambda options: torch.set_printoptions(**options)),
    _Setting("the float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    # The older switch sets precisions too, and cannot be read once they disagree with it; they say what was changed.
    replace(_of_backend("cudnn", "allow_tf32"), quiet=True),
    *(_of_backend(path, "fp32_precision") for path in _PRECISIONS),
    *(_of_backend("cudnn", name) for name in ("enabled", "benchmark", "deterministic")),
    _Setting("the current folder", os.getcwd, os.chdir),
    _Setting("the sync debug mode", _sync_debug_mode, _set_sync_debug_mode),
    _Setting("the garbage collector (enabled, thresholds)", _collector, _set_collector),
    _Setting("torch's set_warn_always", torch.is_warn_always_enabled, torch.set_warn_always),
    _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("the environment", lambda: dict(os.environ), _set_environment, quiet=True),
)
