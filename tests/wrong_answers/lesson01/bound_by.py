"""Answers to "what an operation waits for": the longest of three times, and its name."""

import enum

import numpy as np

from gpulab.check.lesson01.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("bound_by", SECTIONS)


def three(flops, nbytes, peak, bandwidth, launch):
    return {"compute": flops / peak * 1e-6, "memory": nbytes / bandwidth * 1e-3, "launch": launch}


def longest(times):
    return max(times, key=times.get)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def compares_three_times(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, times[what]


@BANK.right
def works_in_seconds(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    compute, memory, launch = flops / (peak_tflops * 1e12), nbytes / (bandwidth_gbps * 1e9), launch_us / 1e6
    if launch > compute and launch > memory:
        return "launch", launch_us
    return ("compute", compute * 1e6) if compute > memory else ("memory", memory * 1e6)


@BANK.right
def sorts(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    rows = [(flops / peak_tflops / 1e6, "compute"), (nbytes / bandwidth_gbps / 1e3, "memory"), (launch_us, "launch")]
    time, what = sorted(rows)[-1]
    return [what, time]


@BANK.right
def uses_the_intensity_with_care(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    if launch_us >= max(times["compute"], times["memory"]):
        return "launch", launch_us
    balance = peak_tflops * 1e12 / (bandwidth_gbps * 1e9)
    what = "compute" if nbytes == 0 or flops / nbytes > balance else "memory"
    return what, times[what]


class Longest(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    COMPUTE, MEMORY, LAUNCH = "compute", "memory", "launch"


@BANK.right
def names_the_three_in_an_enum(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    what, time = compares_three_times(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return Longest(what), np.float64(time)


@BANK.right
def uses_numpy(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = np.array([flops / peak_tflops * 1e-6, nbytes / bandwidth_gbps * 1e-3, launch_us])
    return ["compute", "memory", "launch"][times.argmax()], times.max()


# --- wrong: the time -----------------------------------------------------------------------------------


@BANK.wrong("the three times were added", "side by side")
def adds_all(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), sum(times.values())


@BANK.wrong("two of the times were added", "side by side")
def adds_compute_and_memory(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), times["compute"] + times["memory"]


@BANK.wrong("the launch was added", "side by side")
def adds_the_launch(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), max(times["compute"], times["memory"]) + launch_us


@BANK.wrong("the shortest time came back", "slowest part")
def returns_the_shortest(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), min(times.values())


@BANK.wrong("this is the time of compute", "the longest of the three")
def always_times_the_arithmetic(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, max(times["compute"], launch_us)


@BANK.wrong("this is the time of memory", "the longest of the three")
def always_times_the_memory(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), times["memory"]


@BANK.wrong("the time came in seconds", "10⁻⁶ s")
def returns_seconds(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), max(times.values()) / 1e6


@BANK.wrong("the time came in milliseconds", "1000 µs")
def returns_milliseconds(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), max(times.values()) / 1e3


@BANK.wrong("a GB was taken for 2³⁰ bytes", "10⁹ bytes per second")
def takes_gibibytes(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes / 2**30 * 1e9, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, times[what]


@BANK.wrong("the bytes were counted as bits", "bytes per second")
def counts_bits(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), max(times["memory"] * 8, times["compute"], launch_us)


@BANK.wrong("the bytes were counted twice", "read and what is written")
def counts_bytes_twice(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), max(times["memory"] * 2, times["compute"], launch_us)


@BANK.wrong("the operations were counted twice", "as two already")
def counts_operations_twice(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(2 * flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, times[what]


@BANK.wrong("half of the operations are missing", "both count operations")
def halves_the_operations(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops / 2, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, times[what]


@BANK.wrong("a TFLOP was taken for 2⁴⁰ operations", "10¹²")
def takes_tebiflops(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops / 2**40 * 1e12, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, times[what]


@BANK.wrong("the time is not right", "FLOPs over 10¹²")
def rounds(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return longest(times), int(max(times.values()))


# --- wrong: the word -----------------------------------------------------------------------------------


@BANK.wrong("an operation that waits for memory is said to be bound by arithmetic", "a thousand times too small")
def mixes_the_units_of_the_balance(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    intensity = flops / nbytes if nbytes else float("inf")
    what = "compute" if intensity > peak_tflops / bandwidth_gbps else "memory"
    what = "launch" if longest(times) == "launch" else what
    return what, times[what]


@BANK.wrong("compute and memory are the wrong way round", "above the balance")
def turns_the_words_round(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = {"compute": "memory", "memory": "compute", "launch": "launch"}[longest(times)]
    return what, max(times.values())


@BANK.wrong("every operation is said to wait for the same", "does not depend on the numbers")
def calls_everything_memory(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return "memory", max(times.values())


@BANK.wrong("a small operation is said to wait for arithmetic or memory", "before the next launch")
def knows_no_launch(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, 0)
    what = longest(times)
    return what, times[what]


@BANK.wrong("every operation is said to wait for the same", same_as="calls_everything_memory")
def takes_the_launch_for_milliseconds(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us * 1000)
    what = longest(times)
    return what, times[what]


@BANK.wrong("the shortest of the three times was taken", "what takes longest is what is waited for")
def names_the_shortest(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    return min(times, key=times.get), max(times.values())


@BANK.wrong("a large operation is said to wait for its launch", "compare the three times")
def mixes_up_memory_and_launch(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    words = {"compute": "compute", "memory": "launch", "launch": "memory"}
    return words[longest(times)], max(times.values())


@BANK.wrong("an operation that is bound by arithmetic is said to wait for memory", "compare the three times")
def asks_for_a_thousand_operations_a_byte(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = "compute" if nbytes and flops / nbytes > 1e6 else "memory"
    what = "launch" if longest(times) == "launch" else what
    return what, max(times.values())


@BANK.wrong("an operation that is bound by arithmetic is said to wait for memory", "it moves no bytes at all")
def gives_no_bytes_to_memory(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times) if nbytes else "memory"
    return what, max(times.values())


@BANK.wrong("an operation that waits for memory is said to be bound by arithmetic", "no arithmetic at all")
def gives_no_arithmetic_to_compute(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times) if flops or not nbytes else "compute"
    return what, max(times.values())


@BANK.wrong("this is none of the three words")
def says_bandwidth(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return "bandwidth" if what == "memory" else what, times[what]


@BANK.wrong("your function raised ZeroDivisionError", "times always do")
def divides_by_the_bytes(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    balance = peak_tflops * 1e3 / bandwidth_gbps
    what = "compute" if flops / nbytes > balance else "memory"
    what = what if times[what] > launch_us else "launch"
    return what, times[what]


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("the two values are swapped")
def returns_the_time_first(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return times[what], what


@BANK.wrong("two values are wanted")
def returns_the_word_only(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    return longest(three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us))


@BANK.wrong("two values are wanted", "one number came back")
def returns_the_time_only(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    return max(three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us).values())


@BANK.wrong("two values are wanted", "a dict came back")
def returns_all_three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    return three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)


@BANK.wrong("microseconds is not a number", "formatting is for printing")
def returns_text(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = longest(times)
    return what, f"{times[what]:.1f} µs"


@BANK.wrong("a small operation is said to wait for arithmetic or memory", "a small copy is done before the next launch")
def takes_every_copy_for_a_large_one(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = "memory" if nbytes and not flops else longest(times)
    return what, times[what]


@BANK.wrong(
    "a small operation is said to wait for arithmetic or memory",
    "a small copy is done before the next launch",
    same_as="takes_every_copy_for_a_large_one",
)
def takes_all_without_bytes_for_arithmetic(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us):
    times = three(flops, nbytes, peak_tflops, bandwidth_gbps, launch_us)
    what = "compute" if flops and not nbytes else longest(times)
    return what, times[what]
