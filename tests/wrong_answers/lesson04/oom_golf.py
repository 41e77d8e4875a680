"""Answers to golf: how to have no 2 GiB with next to nothing alive, and how not to."""

import torch

from gpulab.check.lesson04.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("oom_golf", SECTIONS)
MIB, GIB = 2**20, 2**30
PIN = MIB + 512  # the smallest request that is not for the small pool


def take(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def free():
    return torch.cuda.mem_get_info()[0]


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def a_pin_at_the_front_of_each_segment():
    pins, fillers = [], []
    while free() >= 2 * GIB:
        take(2 * GIB)
        pins.append(take(PIN))
        fillers.append(take(2 * GIB - PIN))
    return pins


@BANK.right
def pins_in_the_middle():
    pins, fillers = [], []
    for size in (4 * GIB, 4 * GIB, 4 * GIB, 2 * GIB):
        gap = size // 2 - 512
        take(size)
        fillers.append(take(gap))
        pins.append(take(PIN))
        fillers.append(take(size - gap - PIN))
    return tuple(pins)


@BANK.right
def another_stream():
    """What is free in another stream's pool serves nobody here."""
    with torch.cuda.stream(torch.cuda.Stream()):
        take(free() // (2 * MIB) * 2 * MIB)
        return [take(PIN)]


@BANK.right
def floats_one_by_one_in_a_large_tensor():
    """One segment, filled with pins and gaps, from which the gaps are deleted."""
    pins, gaps = [], []
    take(13 * GIB)
    for _ in range(6):
        gaps.append(take(2 * GIB - 2 * MIB))
        pins.append(torch.zeros(MIB // 4 + 128, device="cuda"))
    gaps.append(take(13 * GIB - torch.cuda.memory_allocated()))
    gaps.clear()
    return pins


# --- wrong: it succeeds --------------------------------------------------------------------------------


@BANK.wrong("the request succeeds: nothing is alive on the GPU", "gives every segment without a live block back")
def everything_is_free():
    while free() >= 2 * GIB:
        take(free() // (2 * MIB) * 2 * MIB)
    return []


@BANK.wrong("the request succeeds: nothing is alive on the GPU", "nothing is on the GPU")
def on_the_cpu():
    return [torch.empty(PIN, dtype=torch.uint8, device="cpu") for _ in range(7)]


@BANK.wrong("the request succeeds: it fits into one free block", "smaller than 2 GiB, before it and after it")
def one_pin_in_one_segment():
    take(14 * GIB)
    return [take(PIN)]


@BANK.wrong("the request succeeds: the driver still has 2 GiB", "mem_get_info()")
def too_few_segments():
    pins, fillers = [], []
    for _ in range(5):
        take(2 * GIB)
        pins.append(take(PIN))
        fillers.append(take(2 * GIB - PIN))
    return pins


@BANK.wrong("the request succeeds: a later large tensor went into an earlier one's segment", "in the small pool")
def pins_while_the_large_one_is_there():
    """The first that comes to mind: the live block gets a segment of 20 MiB, and the large one is used again."""
    pins = []
    for _ in range(7):
        large = take(2000 * MIB)
        pins.append(take(2 * MIB))
        del large
    return pins


@BANK.wrong(
    "the request succeeds: a later large tensor went into an earlier one's segment",
    "Each large segment needs its own",
    same_as="pins_while_the_large_one_is_there",
)
def small_pins_while_the_large_one_is_there():
    pins = []
    for _ in range(7):
        large = take(2000 * MIB)
        pins.append(take(512))
        del large
    return pins


@BANK.wrong(
    "the request succeeds: a later large tensor went into an earlier one's segment",
    "the smallest free block that will do",
    same_as="pins_while_the_large_one_is_there",
)
def pins_without_fillers():
    pins = []
    for _ in range(7):
        take(2000 * MIB)
        pins.append(take(2 * MIB))
    return pins


@BANK.wrong("the request succeeds: the small live blocks are not in the large segments", "in segments of 2 MiB")
def pins_for_the_small_pool():
    pins, fillers = [], []
    while free() >= 2 * GIB:
        large = take(2 * GIB)
        pins.append(take(512))
        fillers.append(large)
    return pins


@BANK.wrong("the request succeeds: segments without a live block were given back", "Best fit")
def pins_that_gather_in_one_segment():
    large = []
    while free() >= 2 * GIB:
        large.append(take(2 * GIB))
    pins = []
    while large:
        large.pop()
        pins.append(take(PIN))
    return pins


# --- wrong: it fails, and too much is alive ------------------------------------------------------------


@BANK.wrong("the memory is full, not fragmented", "nearly all of what is reserved has to be free")
def fills_the_memory():
    kept = []
    while free() >= 2 * GIB:
        kept.append(take(GIB))
    return kept


@BANK.wrong("a slice keeps all of its tensor alive", "big[:n] is a view")
def slices():
    kept = []
    while free() >= 2 * GIB:
        kept.append(take(GIB)[:512])
    return kept


@BANK.wrong("above par: the live blocks hold segments of 20 MiB", "make a large tensor, delete it")
def a_segment_of_20_mib_each():
    pins, fillers = [], []
    while free() >= 2 * GIB:
        pins.append(take(PIN))
        fillers.append(take(9 * MIB))
        fillers.append(take(20 * MIB - 9 * MIB - PIN))
    return pins


@BANK.wrong("above par: too much is alive", "a little more than 1 MiB is enough")
def pins_of_100_mib():
    pins, fillers = [], []
    while free() >= 2 * GIB:
        take(2 * GIB)
        pins.append(take(100 * MIB))
        fillers.append(take(2 * GIB - 100 * MIB))
    return pins


# --- wrong: other games --------------------------------------------------------------------------------


@BANK.wrong("the request fails even on the empty GPU", "set_per_process_memory_fraction")
def sets_a_limit():
    torch.cuda.set_per_process_memory_fraction(0.05)
    return [take(PIN)]


HIDDEN = []


@BANK.wrong("tensors that were not returned stay alive", "only what you return may stay")
def hides_its_tensors():
    HIDDEN.clear()
    HIDDEN.extend(a_pin_at_the_front_of_each_segment())
    return []


@BANK.wrong("what comes back is not a list of tensors", "one that nobody holds is freed")
def returns_nothing():
    a_pin_at_the_front_of_each_segment()


@BANK.wrong("your function raised OutOfMemoryError", "Ask torch.cuda.mem_get_info()")
def runs_out_itself():
    pins = []
    while True:
        take(2 * GIB)
        pins.append(take(PIN))
        pins.append(take(2 * GIB - PIN))
