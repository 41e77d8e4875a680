"""Answers to the challenge `GPUMemoryTracker`: one block, nested ones, errors, several GPUs and none."""

import contextlib
import gc
import threading
from typing import ClassVar

import torch

from gpulab.check.lesson04.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("memory_tracker", SECTIONS)
MIB = 2**20


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
class ListOfOpenOnes:
    """Every open tracker is told the peak before a reset and at each end; the wrong answers below change a part."""

    open: ClassVar = []
    unit = MIB

    def __init_subclass__(cls):
        if "open" not in vars(cls):
            cls.open = []

    def __init__(self, device=None):
        self.device = device
        self.entry = None

    def __enter__(self):
        if self in self.open:
            raise RuntimeError("this tracker is open already")
        self.gpus = self.find()
        self.wait()
        self.tell()
        self.begin()
        self.join()
        return self

    def __exit__(self, *error):
        try:
            self.wait()
        finally:
            self.tell()
            self.leave()
        return False

    def find(self):
        if not torch.cuda.is_available():
            return []
        if self.device == "all":
            return list(range(torch.cuda.device_count()))
        return [torch.cuda.current_device() if self.device is None else self.device]

    def wait(self):
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)

    def tell(self):
        for tracker in self.open:
            tracker.note()

    def note(self):
        for gpu in self.gpus:
            self.now[gpu] = torch.cuda.memory_allocated(gpu)
            self.peak[gpu] = max(self.peak[gpu], torch.cuda.max_memory_allocated(gpu))

    def begin(self):
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        self.entry = {gpu: torch.cuda.memory_allocated(gpu) for gpu in self.gpus}
        self.now, self.peak = dict(self.entry), dict(self.entry)

    def join(self):
        self.open.append(self)

    def leave(self):
        self.open.remove(self)

    def up_to_now(self):
        if self.entry is None:
            raise RuntimeError("nothing measured yet")
        if self in self.open:
            self.tell()

    @property
    def available(self):
        return bool(self.entry)

    @property
    def peak_by_gpu(self):
        self.up_to_now()
        return {gpu: peak / self.unit for gpu, peak in self.peak.items()}

    @property
    def delta_by_gpu(self):
        self.up_to_now()
        return {gpu: (now - self.entry[gpu]) / self.unit for gpu, now in self.now.items()}

    @property
    def peak_memory_mb(self):
        return sum(self.peak_by_gpu.values())

    @property
    def memory_delta_mb(self):
        return sum(self.delta_by_gpu.values())

    @property
    def peak_above_entry_mb(self):
        return self.peak_memory_mb - sum(self.entry.values()) / self.unit


Right = ListOfOpenOnes


class FromScratch:
    """Values are set as attributes at exit; until then, reading is refused."""

    NAMES = ("peak_memory_mb", "memory_delta_mb", "peak_above_entry_mb", "peak_by_gpu", "delta_by_gpu")

    def __getattr__(self, name):
        if name in self.NAMES:
            raise RuntimeError(f"{name} is known when the block has ended")
        raise AttributeError(name)

    def forget(self):
        for name in self.NAMES:
            self.__dict__.pop(name, None)

    def keep(self, entry, peak, end):
        self.peak_by_gpu = {gpu: peak[gpu] / MIB for gpu in entry}
        self.delta_by_gpu = {gpu: (end[gpu] - entry[gpu]) / MIB for gpu in entry}
        self.peak_memory_mb = sum(self.peak_by_gpu.values())
        self.memory_delta_mb = sum(self.delta_by_gpu.values())
        self.peak_above_entry_mb = sum(peak[gpu] - entry[gpu] for gpu in entry) / MIB


def count(gpu, which):
    return torch.cuda.memory_stats(gpu)[f"allocated_bytes.all.{which}"]


@BANK.right
class CellsForEachGpu(FromScratch):
    """Each GPU has its row of cells, one for each open tracker, with the highest count since that entered."""

    cells: ClassVar = {}

    def __init__(self, device=None):
        self.device, self.own = device, None

    def __enter__(self):
        if self.own is not None:
            raise RuntimeError("one block at a time")
        self.forget()
        self.available = torch.cuda.is_available()
        here = [torch.cuda.current_device()] if self.available and self.device is None else [self.device]
        gpus = range(torch.cuda.device_count()) if self.device == "all" else here
        for gpu in gpus if self.available else ():
            torch.cuda.synchronize(gpu)
        self.start, self.own = {}, {}
        for gpu in gpus if self.available else ():
            self.fill(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
            self.start[gpu] = count(gpu, "current")
            self.own[gpu] = [self.start[gpu]]
            self.cells.setdefault(gpu, []).append(self.own[gpu])
        return self

    def fill(self, gpu):
        for cell in self.cells.get(gpu, ()):
            cell[0] = max(cell[0], count(gpu, "peak"))

    def __exit__(self, kind, error, trace):
        end, own = {}, self.own
        for gpu, cell in own.items():
            self.fill(gpu)
            self.cells[gpu] = [other for other in self.cells[gpu] if other is not cell]
            end[gpu] = count(gpu, "current")
        self.keep(self.start, {gpu: cell[0] for gpu, cell in own.items()}, end)
        self.own = None
        for gpu in own:  # last: it raises the error of a kernel
            torch.cuda.synchronize(gpu)


@BANK.right
class ParentTakesOver(FromScratch):
    """Each tracker hands its peak to the one that was entered before it on the same GPU."""

    current: ClassVar = {}

    def __init__(self, device=None):
        self.device = device
        self.before = None

    def __enter__(self):
        if self.before is not None:
            raise RuntimeError("entered twice")
        self.forget()
        self.available = torch.cuda.device_count() > 0
        chosen = []
        if self.available:
            everyone, one = range(torch.cuda.device_count()), torch.cuda.current_device()
            chosen = everyone if self.device == "all" else [one if self.device is None else self.device]
        for gpu in chosen:
            torch.cuda.synchronize(gpu)
        self.before, self.top, self.start = {}, {}, {}
        for gpu in chosen:
            self.before[gpu] = self.current.get(gpu)
            self.current[gpu] = self
            if self.before[gpu] is not None:
                self.before[gpu].saw(gpu)
            torch.cuda.reset_peak_memory_stats(gpu)
            self.start[gpu] = self.top[gpu] = torch.cuda.memory_allocated(gpu)
        return self

    def saw(self, gpu, peak=0):
        self.top[gpu] = max(self.top[gpu], torch.cuda.max_memory_allocated(gpu), peak)

    def __exit__(self, *_):
        end = {}
        with contextlib.ExitStack() as at_last:
            for gpu in self.before:
                at_last.callback(torch.cuda.synchronize, gpu)
            self.end(end)

    def end(self, end):
        for gpu, outer in self.before.items():
            self.saw(gpu)
            end[gpu] = torch.cuda.memory_allocated(gpu)
            self.current[gpu] = outer
            if outer is not None:
                outer.saw(gpu, self.top[gpu])
        self.before = None
        self.keep(self.start, self.top, end)


@BANK.right
class ThroughTheAccelerator(Right):
    """With the names that hold for other makes of GPU, too."""

    def find(self):
        if not torch.accelerator.is_available():
            return []
        every, current = range(torch.accelerator.device_count()), torch.accelerator.current_device_index()
        return list(every) if self.device == "all" else [current if self.device is None else self.device]

    def wait(self):
        for gpu in self.gpus:
            torch.accelerator.synchronize(gpu)

    def note(self):
        for gpu in self.gpus:
            self.now[gpu] = torch.accelerator.memory_allocated(gpu)
            self.peak[gpu] = max(self.peak[gpu], torch.accelerator.max_memory_allocated(gpu))

    def begin(self):
        for gpu in self.gpus:
            torch.accelerator.reset_peak_memory_stats(gpu)
        self.entry = {gpu: torch.accelerator.memory_allocated(gpu) for gpu in self.gpus}
        self.now, self.peak = dict(self.entry), dict(self.entry)


@BANK.right
class EmptiesTheCache(Right):
    """It costs time and changes no count."""

    def wait(self):
        gc.collect(0)
        torch.cuda.empty_cache()
        super().wait()


@BANK.right
class RefusesWithoutWords(FromScratch):
    """Reading too early raises RuntimeError, and the error says nothing more."""

    inner = Right

    def __init__(self, device=None):
        self.inner = Right(device)

    def __getattr__(self, name):
        if name in self.NAMES or name == "available":
            raise RuntimeError
        raise AttributeError(name)

    def __enter__(self):
        self.inner.__enter__()
        self.forget()
        return self

    def __exit__(self, *error):
        try:
            self.inner.__exit__(*error)
        finally:
            for name in ("available", *self.NAMES):
                setattr(self, name, getattr(self.inner, name))


# --- wrong: one block ----------------------------------------------------------------------------------


@BANK.wrong("a peak from before the block is in peak_memory_mb", "reset_peak_memory_stats() in __enter__")
class NeverResets(Right):
    def begin(self):
        self.entry = {gpu: torch.cuda.memory_allocated(gpu) for gpu in self.gpus}
        self.now, self.peak = dict(self.entry), dict(self.entry)


@BANK.wrong("a peak from between making and entering the tracker is in peak_memory_mb", "reset in __init__")
class ResetsWhenMade(NeverResets):
    def __init__(self, device=None):
        super().__init__(device)
        for gpu in self.find():
            torch.cuda.reset_peak_memory_stats(gpu)


@BANK.wrong("memory_delta_mb counts from where the tracker was made", "read in __init__")
class ReadsEntryWhenMade(Right):
    def __init__(self, device=None):
        super().__init__(device)
        self.made = {gpu: torch.cuda.memory_allocated(gpu) for gpu in self.find()}

    @property
    def memory_delta_mb(self):
        self.up_to_now()
        return sum(self.now[gpu] - self.made[gpu] for gpu in self.now) / MIB


@BANK.wrong("peak_memory_mb leaves out what was there at entry", "peak_memory_mb is absolute")
class PeakAboveEntry(Right):
    @property
    def peak_memory_mb(self):
        return super().peak_memory_mb - sum(self.entry.values()) / MIB


@BANK.wrong("what is allocated at the end is reported as the peak", "max_memory_allocated()")
class EndAsPeak(Right):
    def note(self):
        for gpu in self.gpus:
            self.now[gpu] = self.peak[gpu] = torch.cuda.memory_allocated(gpu)


@BANK.wrong("the peak is that of reserved memory", "free blocks too")
class ReservedPeak(Right):
    def note(self):
        for gpu in self.gpus:
            self.now[gpu] = torch.cuda.memory_allocated(gpu)
            self.peak[gpu] = max(self.peak[gpu], torch.cuda.max_memory_reserved(gpu))


@BANK.wrong("the change is that of reserved memory", "free blocks too; tensors are counted by memory_allocated()")
class ReservedChange(Right):
    def begin(self):
        super().begin()
        self.held = {gpu: torch.cuda.memory_reserved(gpu) for gpu in self.gpus}

    @property
    def memory_delta_mb(self):
        return sum(torch.cuda.memory_reserved(gpu) - self.held[gpu] for gpu in self.gpus) / MIB


@BANK.wrong("peak_memory_mb is in MB of 10**6 bytes, not in MiB", "2**20")
class Megabytes(Right):
    unit = 1e6


@BANK.wrong("peak_memory_mb is in bytes, not in MiB", "divide the bytes by 2**20")
class Bytes(Right):
    unit = 1


@BANK.wrong("memory_delta_mb is all that is allocated at the end", "note it in __enter__")
class EndAsChange(Right):
    @property
    def memory_delta_mb(self):
        self.up_to_now()
        return sum(self.now.values()) / MIB


@BANK.wrong("memory_delta_mb is taken from the peak, not from the end", "peak less entry is peak_above_entry_mb")
class ChangeFromPeak(Right):
    @property
    def memory_delta_mb(self):
        return self.peak_above_entry_mb


@BANK.wrong("memory_delta_mb has the wrong sign", "end less entry")
class EntryLessEnd(Right):
    @property
    def memory_delta_mb(self):
        return -super().memory_delta_mb


@BANK.wrong("a change below 0 is reported as 0", "max(0, …)")
class ClampsTheChange(Right):
    @property
    def memory_delta_mb(self):
        return max(0.0, super().memory_delta_mb)


@BANK.wrong("a change below 0 loses its sign", "abs()")
class AbsoluteChange(Right):
    @property
    def memory_delta_mb(self):
        return abs(super().memory_delta_mb)


@BANK.wrong("peak_above_entry_mb is the absolute peak", "subtract what was allocated at entry")
class AboveNothing(Right):
    @property
    def peak_above_entry_mb(self):
        return self.peak_memory_mb


@BANK.wrong("peak_above_entry_mb is the change", "peak_memory_mb less what was allocated at entry")
class TheChangeAsPeakAboveEntry(Right):
    @property
    def peak_above_entry_mb(self):
        return self.memory_delta_mb


@BANK.wrong("peak_above_entry_mb is counted from the end", "not at the end")
class AboveTheEnd(Right):
    @property
    def peak_above_entry_mb(self):
        return self.peak_memory_mb - sum(self.now.values()) / MIB


@BANK.wrong("`with … as tracker` does not give the tracker", "__enter__ has to return self")
class EntersWithNothing(Right):
    def __enter__(self):
        super().__enter__()


@BANK.wrong("the values change after the block", "read them in __exit__")
class ReadsLater(Right):
    def up_to_now(self):
        if self.entry is None:
            raise RuntimeError("nothing measured yet")
        self.note()


@BANK.wrong("peak_memory_mb is a method, not a value", "@property")
class MethodsForValues(Right):
    def peak_memory_mb(self):
        return 1.0


@BANK.wrong("the tracker has no peak_above_entry_mb", "the docstring names all six")
class NoPeakAboveEntry(Right):
    @property
    def peak_above_entry_mb(self):
        raise AttributeError


@BANK.wrong("available is not True on a GPU", "whether there was a GPU at entry")
class AvailableIsACount(Right):
    @property
    def available(self):
        return len(self.gpus)


# --- wrong: a second block, and reading early ----------------------------------------------------------


@BANK.wrong("a second block shows the peak of the one before", "set all that was noted before anew in __enter__")
class KeepsTheHighest(Right):
    def begin(self):
        before = getattr(self, "peak", {})
        super().begin()
        self.peak.update((gpu, max(self.peak[gpu], peak)) for gpu, peak in before.items())


@BANK.wrong("the change counts from the first entry of the tracker", "set all that was noted before anew")
class FirstEntryOnly(Right):
    def begin(self):
        before = self.entry
        super().begin()
        self.entry = before or self.entry


@BANK.wrong("a second block shows the change of the first", "begins a new measurement")
class FirstChangeOnly(Right):
    first = None

    def __exit__(self, *error):
        super().__exit__(*error)
        self.first = self.first or dict(self.delta_by_gpu)

    @property
    def memory_delta_mb(self):
        return super().memory_delta_mb if self.first is None or self in self.open else sum(self.first.values())


@BANK.wrong("the peaks of both blocks are added up", "begins a new measurement")
class AddsUpPeaks(Right):
    total = 0.0

    def __exit__(self, *error):
        super().__exit__(*error)
        self.total += super().peak_memory_mb

    @property
    def peak_memory_mb(self):
        return self.total

    @property
    def peak_above_entry_mb(self):
        return super().peak_memory_mb - sum(self.entry.values()) / MIB


@BANK.wrong("the changes of both blocks are added up", "begins a new measurement")
class AddsUpChanges(Right):
    total = 0.0

    def __exit__(self, *error):
        super().__exit__(*error)
        self.total += super().memory_delta_mb

    @property
    def memory_delta_mb(self):
        return self.total


@BANK.wrong(
    "reading before the first block gives a number that was not measured", "0, None or an empty dict from __init__"
)
class ZerosAtFirst(FromScratch):
    inner = Right

    def __init__(self, device=None):
        self.inner = type("Own", (Right,), {"open": Right.open})(device)
        self.peak_memory_mb = self.memory_delta_mb = self.peak_above_entry_mb = 0.0

    def __enter__(self):
        self.inner.__enter__()
        return self

    def __exit__(self, *error):
        self.inner.__exit__(*error)
        self.available = self.inner.available
        for name in self.NAMES:
            setattr(self, name, getattr(self.inner, name))


@BANK.wrong(
    "reading before the first block gives a number that was not measured",
    "0, None or an empty dict from __init__",
    same_as="ZerosAtFirst",
)
class ZeroAboveEntryAtFirst(Right):
    above = 0.0

    def __exit__(self, *error):
        super().__exit__(*error)
        self.above = super().peak_above_entry_mb

    peak_above_entry_mb = property(lambda self: self.above)


@BANK.wrong("reading before the first block gives a dict that was not measured", "an empty dict from __init__")
class EmptyDictsAtFirst(Right):
    peaks: ClassVar = {}

    def __exit__(self, *error):
        super().__exit__(*error)
        self.peaks = super().peak_by_gpu

    @property
    def peak_memory_mb(self):
        return sum(super().peak_by_gpu.values())

    peak_by_gpu = property(lambda self: self.peaks)


@BANK.wrong(
    "inside the block the peak is what the counter says, which another tracker has reset", "what the tracker has noted"
)
class ReadsTheCounterInside(Right):
    @property
    def peak_by_gpu(self):
        if self in self.open:
            return {gpu: torch.cuda.max_memory_allocated(gpu) / MIB for gpu in self.gpus}
        return super().peak_by_gpu


@BANK.wrong("reading before the first block gives AttributeError", "should be told so")
class NothingAtFirst(ZerosAtFirst):
    def __init__(self, device=None):
        super().__init__(device)
        self.forget()

    def __getattr__(self, name):
        raise AttributeError(name)


@BANK.wrong("inside the second block the values of the first are still there", "clear them in __enter__")
class OldValuesInside(ZerosAtFirst):
    def __init__(self, device=None):
        super().__init__(device)
        self.forget()


@BANK.wrong(
    "inside the second block the values of the first are still there",
    "clear them in __enter__",
    same_as="OldValuesInside",
)
class OldChangesInside(Right):
    changes = None

    def __exit__(self, *error):
        try:
            super().__exit__(*error)
        finally:
            self.changes = super().delta_by_gpu

    @property
    def memory_delta_mb(self):
        return sum(super().delta_by_gpu.values())

    @property
    def delta_by_gpu(self):
        if self.changes is None:
            raise RuntimeError("nothing measured yet")
        return self.changes


# --- wrong: trackers within trackers -------------------------------------------------------------------


@BANK.wrong("the inner tracker erases the outer one's peak", "keep a list of the open ones")
class NobodyIsTold(Right):
    def tell(self):
        if self in self.open:
            self.note()


@BANK.wrong("the outer tracker knows only what came after the inner one", "both entering and leaving")
class ResetsAtBothEnds(Right):
    def tell(self):
        if self in self.open:
            self.note()

    def leave(self):
        super().leave()
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)


@BANK.wrong("what was highest in the inner block is missing from the outer", "resets the counter as it ends")
class ToldAtEntryOnly(Right):
    def __exit__(self, *error):
        self.wait()
        self.note()
        self.leave()
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)


@BANK.wrong("what was highest after the inner block is missing from the outer", "the outer tracker goes on")
class OuterStopsCounting(Right):
    def begin(self):
        super().begin()
        self.sealed = False

    def note(self):
        before = dict(self.peak)
        super().note()
        if self.sealed:
            self.peak = before

    def leave(self):
        super().leave()
        for outer in self.open[-1:]:
            outer.sealed = True


@BANK.wrong("the inner tracker shows a peak that was before it", "the inner one has to reset it too")
class OnlyTheOutermostResets(Right):
    def begin(self):
        if not self.open:
            return super().begin()
        self.entry = {gpu: torch.cuda.memory_allocated(gpu) for gpu in self.gpus}
        self.now, self.peak = dict(self.entry), dict(self.entry)


@BANK.wrong("with several trackers open, a peak does not reach all that it belongs to", "each one that is open")
class OnlyTheNextIsTold(Right):
    def tell(self):
        for tracker in self.open[-2:]:
            tracker.note()
        for tracker in self.open:
            for gpu in tracker.gpus:
                tracker.now[gpu] = torch.cuda.memory_allocated(gpu)

    def begin(self):
        super().begin()
        if len(self.open) == 2:
            self.open[0].peak.update(self.open[0].entry)


@BANK.wrong("one tracker can be entered twice at the same time", "raise RuntimeError when the tracker is among")
class NoGuard(Right):
    def __enter__(self):
        self.gpus = self.find()
        self.wait()
        self.tell()
        self.begin()
        self.join()
        return self


@BANK.wrong("a refused entry spoils the block that is open", "the refusal must come first in __enter__")
class GuardsTooLate(Right):
    def __enter__(self):
        self.gpus = self.find()
        self.tell()
        self.begin()
        if self in self.open:
            raise RuntimeError("open already")
        self.wait()
        self.join()
        return self


@BANK.wrong(
    "a refused entry spoils the block that is open",
    "the refusal must come first in __enter__",
    same_as="GuardsTooLate",
)
class ForgetsItsPeakBeforeItRefuses(Right):
    """The counter is left alone, and what was noted from it before another tracker's reset is not."""

    def __enter__(self):
        if self in self.open:
            self.peak = dict.fromkeys(self.gpus, 0)
            raise RuntimeError("open already")
        return super().__enter__()


@BANK.wrong("a tracker in another thread erases this one's peak", "not one for each")
class AListForEachThread(Right):
    own = threading.local()

    @property
    def open(self):
        if not hasattr(self.own, "list"):
            self.own.list = []
        return self.own.list


# --- wrong: errors in the block ------------------------------------------------------------------------


@BANK.wrong("an exception in the block is swallowed", "__exit__ returns something true")
class Swallows(Right):
    def __exit__(self, *error):
        super().__exit__(*error)
        return True


@BANK.wrong("OutOfMemoryError does not come out of the block", "an exception like any other")
class SwallowsOutOfMemory(Right):
    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        return kind is not None and issubclass(kind, torch.OutOfMemoryError)


@BANK.wrong("your tracker raised TypeError", "three arguments besides self")
class ExitsWithoutArguments(Right):
    def __exit__(self):
        super().__exit__()


@BANK.wrong("after an exception the tracker stays open", "take the tracker off the list")
class StaysOpenAfterAnException(Right):
    def __exit__(self, kind, error, trace):
        self.tell()
        self.wait()
        if kind is None:
            self.leave()


@BANK.wrong("after an exception the tracker cannot be entered again", "put back only where no exception came")
class ClosesOnlyInPeace(Right):
    busy = False

    def __enter__(self):
        if self.busy:
            raise RuntimeError("one block at a time")
        super().__enter__()
        self.busy = True
        return self

    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if kind is None:
            self.busy = False


@BANK.wrong("after an exception there are no values", "an exception ends the block too")
class NoValuesAfterAnException(OldValuesInside):
    def __exit__(self, kind, error, trace):
        self.inner.__exit__(kind, error, trace)
        if kind is None:
            self.available = self.inner.available
            for name in self.NAMES:
                setattr(self, name, getattr(self.inner, name))


@BANK.wrong("peak_memory_mb is not what was measured", "__exit__ does less when there is an exception")
class ReadsNothingAfterAnException(Right):
    def __exit__(self, kind, error, trace):
        if kind is None:
            return super().__exit__()
        self.leave()


@BANK.wrong("after a kernel's error the tracker stays open", "close in a finally")
class ClosesAfterTheWait(Right):
    def __exit__(self, *error):
        self.wait()
        self.tell()
        self.leave()


@BANK.wrong("a kernel's error does not come out of its block", "is held back")
class HoldsBackWhatTheWaitRaises(Right):
    def __exit__(self, *error):
        with contextlib.suppress(RuntimeError):
            self.wait()
        self.tell()
        self.leave()


@BANK.wrong("peak_memory_mb is not what was measured", "The counters are kept on the host and can be read all the same")
class NoValuesAfterAKernelsError(Right):
    def __exit__(self, *error):
        try:
            self.wait()
            self.tell()
        finally:
            self.leave()


@BANK.wrong("a tracker whose wait at entry raises is open for ever", "Wait first, then mark it as open")
class OpenBeforeTheWait(Right):
    def __enter__(self):
        if self in self.open:
            raise RuntimeError("this tracker is open already")
        self.gpus = self.find()
        self.tell()
        self.begin()
        self.join()
        self.wait()
        self.tell()
        self.begin()
        return self


@BANK.wrong("peak_memory_mb is not what was measured", "KeyboardInterrupt and SystemExit are no Exception")
class OnlyExceptionsEndTheBlock(Right):
    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, Exception):
            return super().__exit__(kind, error, trace)
        self.leave()
        return False


@BANK.wrong("another exception comes out of the block", "__exit__ raises")
class RaisesItsOwn(Right):
    def __exit__(self, kind, error, trace):
        super().__exit__(kind, error, trace)
        if kind is not None:
            raise RuntimeError("the block failed")


# --- wrong: several GPUs, and none ---------------------------------------------------------------------


@BANK.wrong("the device that was asked for is ignored: the current GPU is measured", "pass the device to each")
class CurrentGpuOnly(Right):
    def find(self):
        return [torch.cuda.current_device()] if torch.cuda.is_available() else []


@BANK.wrong("the tracker follows the current GPU, which changed inside the block", "find out which it is once")
class AsksForTheCurrentOne(Right):
    def note(self):
        for gpu in self.gpus:
            asked = None if self.device is None else gpu
            self.now[gpu] = torch.cuda.memory_allocated(asked)
            self.peak[gpu] = max(self.peak[gpu], torch.cuda.max_memory_allocated(asked))


@BANK.wrong("peak_by_gpu is about other GPUs than those that were watched", "the one that is current at entry")
class AlwaysAll(Right):
    def find(self):
        return list(range(torch.cuda.device_count()))


@BANK.wrong("one GPU is measured where all were asked for", "the values are sums over them")
class AllIsTheFirst(Right):
    def find(self):
        return super().find()[:1]


@BANK.wrong("the peak of the sum is taken for the sum of the peaks", "need not peak at one moment")
class LargestMoment(Right):
    """As a timeline of the sum would show it."""

    def begin(self):
        super().begin()
        self.steps = {gpu: [] for gpu in self.gpus}

    @property
    def peak_memory_mb(self):
        peaks = self.peak_by_gpu
        if len(peaks) < 2:
            return sum(peaks.values())
        # here GPU 0 has its peak before GPU 1, which is at its entry then, and GPU 0 at its end later
        entry = {gpu: b / MIB for gpu, b in self.entry.items()}
        end = {gpu: b / MIB for gpu, b in self.now.items()}
        return max(peaks[0] + entry[1], end[0] + peaks[1])


@BANK.wrong("your tracker raised RuntimeError", 'device="all" is no device that torch knows')
class AllIsADevice(Right):
    def find(self):
        if not torch.cuda.is_available():
            return []
        return [torch.cuda.current_device() if self.device is None else self.device]


@BANK.wrong("your tracker raised TypeError", "the class takes one argument")
class NoDeviceArgument(Right):
    def __init__(self):
        super().__init__()


@BANK.wrong("all GPUs are measured where one was asked for", "of the one that is current at entry")
class SumsOverAll(Right):
    def find(self):
        return list(range(torch.cuda.device_count()))

    @property
    def peak_by_gpu(self):
        watched = set(super().find())
        return {gpu: peak for gpu, peak in super().peak_by_gpu.items() if gpu in watched}

    @property
    def delta_by_gpu(self):
        watched = set(super().find())
        return {gpu: change for gpu, change in super().delta_by_gpu.items() if gpu in watched}

    @property
    def peak_memory_mb(self):
        self.up_to_now()
        return sum(self.peak.values()) / MIB


@BANK.wrong("peak_by_gpu is not a dict from GPU number to MiB", "as ints")
class ListByGpu(Right):
    @property
    def peak_memory_mb(self):
        return sum(self.peak_by_gpu)

    @property
    def peak_by_gpu(self):
        return list(super().peak_by_gpu.values())


@BANK.wrong("one GPU's peak is taken for another's", "only into trackers that watch that GPU")
class FoldsAcrossGpus(Right):
    def tell(self):
        super().tell()
        if self in self.open and self is not self.open[0]:
            outer, highest = self.open[self.open.index(self) - 1], max(self.peak.values(), default=0)
            if len(outer.gpus) == 1:
                gpu = outer.gpus[0]
                outer.peak[gpu] = max(outer.peak[gpu], highest)


@BANK.wrong("with different GPUs, the inner tracker erases the outer one's peak", "watch it among others, too")
class TellsOnlyTheSameDevice(Right):
    def tell(self):
        for tracker in self.open:
            if tracker.gpus == self.gpus or tracker is self:
                tracker.note()


@BANK.wrong("what was highest in a block that failed is missing from the outer", "do at an exception all")
class StartsCleanAfterAnException(Right):
    def __exit__(self, kind, error, trace):
        if kind is None:
            return super().__exit__()
        self.note()
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        self.wait()
        self.leave()


@BANK.wrong("on a random trace peak_memory_mb is not what gpulab's own tracker finds", "the trace (MiB@GPU")
class StartsCleanAfterAnExceptionOnAllGpus(Right):
    def __exit__(self, kind, error, trace):
        if kind is None or len(self.gpus) < 2:
            return super().__exit__()
        self.note()
        for gpu in self.gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        self.wait()
        self.leave()


@BANK.wrong("a second block shows the peak of the one before", "begins a new measurement", same_as="KeepsTheHighest")
class FirstTwoBlocksOnly(Right):
    blocks = 0

    def begin(self):
        self.blocks += 1
        before = dict(getattr(self, "peak", {}))
        super().begin()
        if self.blocks > 2:
            self.peak.update((gpu, max(peak, before.get(gpu, 0))) for gpu, peak in self.entry.items())


@BANK.wrong("the GPU that was current when the tracker was made is measured", "ask in __enter__")
class FindsTheGpuWhenMade(Right):
    def __init__(self, device=None):
        super().__init__(device)
        self.found = super().find()

    def find(self):
        return self.found if torch.cuda.is_available() else []


@BANK.wrong(
    "with several trackers open, a peak does not reach all that it belongs to", "each one", same_as="OnlyTheNextIsTold"
)
class ThreeAtMost(Right):
    """The fourth that is open is one too many."""

    def tell(self):
        for tracker in self.open[-3:]:
            tracker.note()


@BANK.wrong("two trackers of one GPU do not know each other", "not the arguments")
class ComparesTheArgument(Right):
    """device=None and device=0 can be the same GPU."""

    def tell(self):
        for tracker in self.open:
            if tracker is self or "all" in (self.device, tracker.device) or tracker.device == self.device:
                tracker.note()


@BANK.wrong("your tracker raised RuntimeError", "Ask torch.cuda.is_available() in __enter__")
class NeedsAGpu(Right):
    def find(self):
        if self.device == "all":
            return list(range(torch.cuda.device_count()))
        return [torch.cuda.current_device() if self.device is None else self.device]


@BANK.wrong("your tracker raised RuntimeError", "Ask torch.cuda.is_available() in __enter__", same_as="NeedsAGpu")
class NeedsTheGpuOfItsNumber(Right):
    def find(self):
        return [self.device] if isinstance(self.device, int) else super().find()


@BANK.wrong("without a GPU a value is None", "does so on a laptop, too")
class NoneWithoutAGpu(Right):
    @property
    def peak_memory_mb(self):
        return sum(self.peak_by_gpu.values()) if self.peak_by_gpu else None

    @property
    def peak_above_entry_mb(self):
        return super().peak_above_entry_mb if self.peak_by_gpu else None


@BANK.wrong("without a GPU available is not False", "available tells them apart")
class AlwaysAvailable(Right):
    available = True


@BANK.wrong("without a GPU there are values", "no GPU in peak_by_gpu")
class MeasuresTheHost(Right):
    @property
    def peak_memory_mb(self):
        return super().peak_memory_mb if self.entry != {} else 123.4


@BANK.wrong("without a GPU there are values", "no GPU in peak_by_gpu and delta_by_gpu", same_as="MeasuresTheHost")
class AChangeOfGpuZero(Right):
    @property
    def delta_by_gpu(self):
        return super().delta_by_gpu or {0: 0.0}


@BANK.wrong("a value cannot be read after the block", "only inside it, and before the first")
class NoValuesWithoutAGpu(Right):
    def up_to_now(self):
        if not self.entry:
            raise RuntimeError("no GPU")
        super().up_to_now()


@BANK.wrong("the tracker does not wait for the GPU at entry", "one from before the block is then not blamed on it")
class NeverWaits(Right):
    def wait(self):
        pass


@BANK.wrong("the tracker does not wait for the GPU at exit", "one of this block then comes out of this block")
class WaitsAtEntryOnly(Right):
    def __exit__(self, *error):
        self.tell()
        self.leave()


@BANK.wrong("the tracker does not wait for the GPU at entry, when it is not the current one", "the current GPU only")
class WaitsForTheCurrentOne(Right):
    def wait(self):
        if self.gpus:
            torch.cuda.synchronize()


@BANK.wrong('the tracker does not wait for the GPU at entry, when device is "all"', "wait for each")
class WaitsForTheCurrentOneOfAll(Right):
    def wait(self):
        if self.gpus:
            torch.cuda.synchronize(None if self.device == "all" else self.gpus[0])


@BANK.wrong(
    "the tracker does not wait for the GPU at exit, when another one is current by then", "that was current at entry"
)
class WaitsForTheOneThatIsCurrentAtExit(Right):
    def wait(self):
        for gpu in [None] if self.gpus and self.device is None else self.gpus:
            torch.cuda.synchronize(gpu)


@BANK.wrong("the tracker waits for one stream of the GPU at entry, not for all", "for the whole GPU")
class WaitsForTheCurrentStream(Right):
    def wait(self):
        for gpu in self.gpus:
            torch.cuda.current_stream(gpu).synchronize()


@BANK.wrong("the tracker waits for one stream of the GPU at exit, not for all", "for the whole GPU")
class WaitsForOneStreamAtExit(Right):
    def __exit__(self, *error):
        for gpu in self.gpus:
            torch.cuda.default_stream(gpu).synchronize()
        self.tell()
        self.leave()


# --- wrong: not a tracker ------------------------------------------------------------------------------


@BANK.wrong("the tracker has no available", "the docstring names all six")
@contextlib.contextmanager
def AGenerator(device=None):
    torch.cuda.reset_peak_memory_stats()
    yield
    print(torch.cuda.max_memory_allocated())


@BANK.wrong("what it makes is no context manager", "two underscores on both sides")
class NoContextManager:
    def __init__(self, device=None):
        self.device = device

    def __enter(self):
        return self


@BANK.wrong("peak_memory_mb is not what was measured", "which need not be the last")
class TakesTheLastOff(ListOfOpenOnes):
    def leave(self):
        self.open.pop()


@BANK.wrong("available is that of the moment in which it is read", "note at entry whether there is a GPU")
class AsksWhenItIsRead(ListOfOpenOnes):
    @property
    def available(self):
        self.up_to_now()
        return torch.cuda.is_available()
