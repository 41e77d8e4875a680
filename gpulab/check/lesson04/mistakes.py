"""The mistakes of a memory tracker in words, each with the number that it would give put in by a scene."""

from __future__ import annotations

from dataclasses import dataclass

from .common import FOUR_NUMBERS, TRACKER, Suspect


@dataclass(frozen=True)
class Mistake:
    """One misconception: what it looks like from outside, why, and where to read."""

    summary: str
    likely: str
    read: str = TRACKER

    def at(self, value: float) -> Suspect:
        return Suspect(value, self.summary, self.likely, self.read)


# --- one block -----------------------------------------------------------------------------------------

NO_RESET = Mistake(
    "a peak from before the block is in peak_memory_mb",
    "the counter runs since the process began, or since its last reset: call reset_peak_memory_stats() in __enter__",
)
RESET_IN_INIT = Mistake(
    "a peak from between making and entering the tracker is in peak_memory_mb",
    "the counter is reset in __init__: reset it in __enter__, where the block begins",
)
ABOVE_AS_PEAK = Mistake(
    "peak_memory_mb leaves out what was there at entry",
    "that is peak_above_entry_mb. peak_memory_mb is absolute: the number that must fit on the GPU",
)
END_AS_PEAK = Mistake(
    "what is allocated at the end is reported as the peak",
    "memory_allocated() is what there is now; what was highest in between is max_memory_allocated()",
)
RESERVED_PEAK = Mistake(
    "the peak is that of reserved memory",
    "reserved is what the allocator holds, free blocks too; tensors are counted by max_memory_allocated()",
    FOUR_NUMBERS,
)
RESERVED_DELTA = Mistake(
    "the change is that of reserved memory",
    "reserved is what the allocator holds, free blocks too; tensors are counted by memory_allocated()",
    FOUR_NUMBERS,
)
END_AS_DELTA = Mistake(
    "memory_delta_mb is all that is allocated at the end",
    "the change is that less what was allocated at entry: note it in __enter__",
)
PEAK_AS_DELTA = Mistake(
    "memory_delta_mb is taken from the peak, not from the end",
    "the change is what is allocated at the end less at entry; peak less entry is peak_above_entry_mb",
)
SIGN = Mistake(
    "memory_delta_mb has the wrong sign",
    "more at the end than at entry is a change above 0: end less entry",
)
DELTA_FROM_INIT = Mistake(
    "memory_delta_mb counts from where the tracker was made",
    "what is allocated at entry is read in __init__: read it in __enter__, where the block begins",
)
PEAK_AS_ABOVE = Mistake(
    "peak_above_entry_mb is the absolute peak",
    "subtract what was allocated at entry",
)
DELTA_AS_ABOVE = Mistake(
    "peak_above_entry_mb is the change",
    "that is memory_delta_mb. peak_above_entry_mb is peak_memory_mb less what was allocated at entry",
)
ABOVE_END = Mistake(
    "peak_above_entry_mb is counted from the end",
    "subtract what was allocated at entry, not at the end",
)
CLAMPED = Mistake(
    "a change below 0 is reported as 0",
    "a block that frees more than it takes has a change below 0: leave the sign, without max(0, …)",
)
ABSOLUTE = Mistake(
    "a change below 0 loses its sign",
    "a block that frees more than it takes has a change below 0: leave the sign, without abs()",
)

# --- a second block ------------------------------------------------------------------------------------

_FRESH = "each entry begins a new measurement: set all that was noted before anew in __enter__"
STALE_PEAK = Mistake("a second block shows the peak of the one before", _FRESH)
STALE_DELTA = Mistake("a second block shows the change of the first", _FRESH)
FIRST_ENTRY = Mistake("the change counts from the first entry of the tracker", _FRESH)
ADDED_PEAKS = Mistake("the peaks of both blocks are added up", _FRESH)
ADDED_DELTAS = Mistake("the changes of both blocks are added up", _FRESH)

# --- trackers within trackers --------------------------------------------------------------------------

INNER_KEEPS = Mistake(
    "the inner tracker shows a peak that was before it",
    "it is in the counter from the outer block: the inner one has to reset it too, once the outer has taken note",
)
ERASED = Mistake(
    "the inner tracker erases the outer one's peak",
    "PyTorch has one peak counter for each GPU, and entering the inner tracker resets it. Before a reset, every "
    "tracker that is open must take the counter's peak into its own: keep a list of the open ones",
)
NOT_FOLDED = Mistake(
    "what was highest in the inner block is missing from the outer",
    "the inner tracker resets the counter as it ends, or an old value is put back: before that, every tracker that is "
    "open must take the counter's peak into its own",
)
ONLY_AFTER = Mistake(
    "the outer tracker knows only what came after the inner one",
    "both entering and leaving the inner tracker reset the counter. Before a reset, every tracker that is open must "
    "take the counter's peak into its own",
)
FORGOTTEN_AFTER = Mistake(
    "what was highest after the inner block is missing from the outer",
    "the outer tracker goes on after the inner one has ended: at its exit it takes the larger of what it has noted "
    "and what the counter says then",
)
NOT_ALL = Mistake(
    "with several trackers open, a peak does not reach all that it belongs to",
    "not only the tracker next to it: each one that is open needs the counter's peak before a reset, however deep "
    "they are nested",
)
LOST_BY_EXCEPTION = Mistake(
    "what was highest in a block that failed is missing from the outer",
    "an exception ends the inner block, and the counter is reset before the open trackers have taken its peak: do at "
    "an exception all that you do without one",
)
SPOILT = Mistake(
    "a refused entry spoils the block that is open",
    "the refusal must come first in __enter__, before anything is noted or reset",
)
THREADS = Mistake(
    "a tracker in another thread erases this one's peak",
    "all threads share the GPU's one counter: the list of open trackers has to be the class's own, for all threads, "
    "not one for each",
)

RESET_INSIDE = Mistake(
    "inside the block the peak is what the counter says, which another tracker has reset",
    "up to a moment in the block the peak is the larger of what the tracker has noted and what the counter says then",
)

# --- several GPUs --------------------------------------------------------------------------------------

ONE_OF_ALL = Mistake(
    "one GPU is measured where all were asked for",
    'device="all" is every GPU from 0 to torch.cuda.device_count() - 1, and the values are sums over them',
)
PEAK_OF_SUM = Mistake(
    "the peak of the sum is taken for the sum of the peaks",
    "the GPUs need not peak at one moment; each has to hold its own peak, and these are added",
)
ALL_FOR_ONE = Mistake(
    "all GPUs are measured where one was asked for",
    "the values are those of the GPU that was asked for; without a number, of the one that is current at entry",
)
DEVICE_IGNORED = Mistake(
    "the device that was asked for is ignored: the current GPU is measured",
    "counters are read without a device, which means the GPU that is current: pass the device to each of them",
)
FOLLOWS_CURRENT = Mistake(
    "the tracker follows the current GPU, which changed inside the block",
    "functions of torch.cuda without a device mean the GPU that is current when they are called: find out which it "
    "is once, in __enter__, and ask for that one in __exit__ too",
)
ACROSS = Mistake(
    "one GPU's peak is taken for another's",
    "there is a peak counter for each GPU: take a GPU's peak only into trackers that watch that GPU",
)
ERASED_ELSEWHERE = Mistake(
    "with different GPUs, the inner tracker erases the outer one's peak",
    "before a GPU's counter is reset, all open trackers that watch this GPU must take its peak: those that watch it "
    "among others, too",
)
SAME_GPU = Mistake(
    "two trackers of one GPU do not know each other",
    "device=None and device=0 can mean the same GPU: compare the numbers of the GPUs, not the arguments",
)
GPU_WHEN_MADE = Mistake(
    "the GPU that was current when the tracker was made is measured",
    "which GPU is current is asked in __init__: ask in __enter__, where the block begins",
)
