"""Answers to "a transfer benchmark": what stands inside the clock, sizes that do not fit, and the line."""

import statistics

import numpy as np
import torch

from gpulab import transfers
from gpulab.check.lesson03.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("transfer_benchmark", SECTIONS)
NO_ROOM = ("out of memory", "allocate memory", "not enough memory")


def buffers(size, pinned, device):
    """Source and destination; None where there is no room."""
    try:
        there = torch.empty(size, dtype=torch.uint8, device=device)
        here = torch.ones(size, dtype=torch.uint8)
        return (here.pin_memory() if pinned and device.type == "cuda" else here), there
    except RuntimeError as error:
        if any(words in str(error) for words in NO_ROOM):
            return None
        raise


def line(ms):
    """Latency in ms and ms per byte, by ordinary least squares."""
    x, t = list(ms), list(ms.values())
    slope, at_zero = statistics.linear_regression(x, t)
    return at_zero, slope


def result(ms):
    latency, slope = line(ms)
    return ms, latency * 1e3, 1e-6 / slope


def times(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            here, there = pair
            ms[size] = timer(lambda here=here, there=there: there.copy_(here, non_blocking=True))
            del pair, here, there
    return ms


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def ordinary_least_squares(sizes, pinned, device, timer):
    return result(times(sizes, pinned, device, timer))


@BANK.right
def with_the_courses_fit(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    line = transfers.fit(list(ms), list(ms.values()))
    return ms, line.latency_us, line.bandwidth_gbps


@BANK.right
def floats_and_pinned_when_made(sizes, pinned, device, timer):
    def copy(here, there):
        there.copy_(here)

    ms = {}
    for size in sizes:
        try:
            here = torch.zeros(size, dtype=torch.int8, pin_memory=pinned and device.type != "cpu")
            there = torch.zeros_like(here, device=device)
        except torch.OutOfMemoryError:
            continue
        except RuntimeError as error:
            if "memory" in str(error):
                continue
            raise
        ms[size] = timer(lambda here=here, there=there: copy(here, there))
        del here, there
    return result(ms)


@BANK.right
def relative_errors(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    x, t = torch.tensor(list(ms), dtype=torch.float64), torch.tensor(list(ms.values()), dtype=torch.float64)
    rows = torch.stack([1 / t, x / t], dim=1)
    latency, slope = torch.linalg.lstsq(rows, torch.ones(len(t), 1, dtype=torch.float64)).solution.flatten().tolist()
    return ms, latency * 1e3, 1e-6 / slope


@BANK.right
def holds_the_buffers_of_two_sizes(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            there = torch.empty(size, dtype=torch.uint8, device=device)
            here = torch.ones(size, dtype=torch.uint8)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
        except RuntimeError as error:
            if any(words in str(error) for words in NO_ROOM):
                continue
            raise
        ms[size] = timer(lambda here=here, there=there: there.copy_(here))
    return result(ms)


@BANK.right
def in_seconds_by_lstsq(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    matrix = torch.tensor([[1.0, size * 1e-9] for size in ms], dtype=torch.float64)
    right = torch.tensor([[t * 1e-3] for t in ms.values()], dtype=torch.float64)
    latency, slope = torch.linalg.lstsq(matrix, right, driver="gelsd").solution[:, 0]
    return ms, float(latency) * 1e6, float(1 / slope)


def weighted(power):
    """The answer whose least squares are weighted by that power of the bytes."""

    def answer(sizes, pinned, device, timer):
        ms = times(sizes, pinned, device, timer)
        weights = np.array(list(ms), dtype=float) ** (power / 2)  # of the rows, whose squares are summed
        slope, latency = np.polyfit(np.array(list(ms)) * 1e-6, list(ms.values()), 1, w=weights)
        return ms, float(latency) * 1e3, 1 / float(slope)

    answer.__name__ = f"weighted_by_bytes_to_the_{power}".replace("-", "minus_")
    return answer


for power in (-4, -2, 1, 2):
    BANK.right(weighted(power))


@BANK.right
def copies_by_an_assignment(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            ms[size] = timer(lambda pair=pair: pair[1].__setitem__(slice(None), pair[0]))
            del pair
    return result(ms)


# --- wrong: inside the clock ---------------------------------------------------------------------------


@BANK.wrong("the destination is made inside the clock", "copies into what is there")
def moves_with_to(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            ms[size] = timer(lambda here=pair[0]: here.to(device, non_blocking=True, copy=True))
    return result(ms)


@BANK.wrong("pinning is inside the clock", "copies the data on the host first")
def pins_inside(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, False, device)
        if pair is not None:
            here, there = pair
            ms[size] = timer(lambda here=here, there=there: there.copy_(here.pin_memory() if pinned else here))
    return result(ms)


@BANK.wrong("the data are made inside the clock", "would be counted as transfer")
def makes_the_data_inside(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            ms[size] = timer(lambda there=pair[1], size=size: there.copy_(torch.ones(size, dtype=torch.uint8)))
    return result(ms)


@BANK.wrong("nothing is copied inside the clock", "is not copied again")
def moves_once(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            moved = pair[0].to(device)
            ms[size] = timer(lambda moved=moved: moved.to(device))
    return result(ms)


@BANK.wrong("more than one copy is made inside the clock", "repeats by itself")
def repeats_by_itself(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            ms[size] = timer(lambda pair=pair: [pair[1].copy_(pair[0]) for _ in range(10)]) / 10
    return result(ms)


@BANK.wrong("the copy goes another way", "the one in front is written")
def copies_back(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            ms[size] = timer(lambda pair=pair: pair[0].copy_(pair[1]))
    return result(ms)


@BANK.wrong("the copy goes another way")
def copies_within_the_gpu(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            here = pair[0].to(device)
            ms[size] = timer(lambda here=here, there=pair[1]: there.copy_(here))
            del pair, here
    return result(ms)


@BANK.wrong("another number of bytes is copied than was asked for", "four bytes")
def takes_floats(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        here, there = torch.ones(size), torch.empty(size, device=device)
        here = here.pin_memory() if pinned else here
        ms[size] = timer(lambda here=here, there=there: there.copy_(here))
    return result(ms)


@BANK.wrong("pinned=True, and the source is pageable", "leaves the old one as it is")
def forgets_what_pin_memory_returns(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, False, device)
        if pair is not None:
            here, there = pair
            if pinned and device.type == "cuda":
                here.pin_memory()
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
    return result(ms)


@BANK.wrong("pinned=False, and the source is pinned", "is not heeded")
def always_pins(sizes, pinned, device, timer):
    return result(times(sizes, True, device, timer))


@BANK.wrong("memory is pinned where there is no GPU", "ask device.type first")
def pins_without_a_gpu(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, False, device)
        if pair is not None:
            here, there = pair
            here = here.pin_memory() if pinned else here
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
            del pair, here, there
    return result(ms)


@BANK.wrong("the timer was never called", "are those that timer gives")
def ignores_the_timer(sizes, pinned, device, timer):
    return {size: size * 1e-6 for size in sizes}, 0.0, 1.0


@BANK.wrong("your function raised TypeError", "before timer could call it")
def calls_the_copy_first(sizes, pinned, device, timer):
    here, there = buffers(sizes[0], pinned, device)
    return {sizes[0]: timer(there.copy_(here))}, 0.0, 1.0


# --- wrong: sizes --------------------------------------------------------------------------------------


@BANK.wrong("your function raised OutOfMemoryError", "catch torch.OutOfMemoryError")
def does_not_catch(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        there = torch.empty(size, dtype=torch.uint8, device=device)
        here = torch.ones(size, dtype=torch.uint8)
        here = here.pin_memory() if pinned and device.type == "cuda" else here
        ms[size] = timer(lambda here=here, there=there: there.copy_(here))
        del here, there
    return result(ms)


@BANK.wrong("your function raised RuntimeError", "a plain RuntimeError")
def catches_the_gpus_error_only(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            there = torch.empty(size, dtype=torch.uint8, device=device)
            here = torch.ones(size, dtype=torch.uint8)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
        except torch.OutOfMemoryError:
            continue
        ms[size] = timer(lambda here=here, there=there: there.copy_(here))
        del here, there
    return result(ms)


@BANK.wrong("sizes after the one that did not fit are missing", "continue")
def stops_at_the_first(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is None:
            break
        ms[size] = timer(lambda pair=pair: pair[1].copy_(pair[0]))
        del pair
    return result(ms) if len(ms) > 1 else (ms, 0.0, 1.0)


@BANK.wrong("a size that does not fit is in the result", "left out")
def keeps_a_gap(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    _, latency, bandwidth = result(ms)
    return {size: ms.get(size) for size in sizes}, latency, bandwidth


@BANK.wrong("the keys are not the sizes that were asked for", "not in MB")
def keys_in_mb(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return {size / 1e6: t for size, t in ms.items()}, latency, bandwidth


@BANK.wrong("the sizes are in another order", "no need to sort")
def sorts(sizes, pinned, device, timer):
    return result(times(sorted(sizes), pinned, device, timer))


@BANK.wrong("sizes are missing", "the first and the last too")
def drops_the_first(sizes, pinned, device, timer):
    return result(times(sizes[1:], pinned, device, timer))


@BANK.wrong("your function changed its argument sizes", "sort of a list")
def sorts_in_place(sizes, pinned, device, timer):
    sizes.sort()
    return result(times(sizes, pinned, device, timer))


@BANK.wrong("an error that has nothing to do with memory is swallowed", "except Exception")
def catches_everything(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            here, there = buffers(size, pinned, device)
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
            del here, there
        except Exception:
            continue
    return result(ms) if len(ms) > 1 else (ms, 0.0, 0.0)


@BANK.wrong("a RuntimeError that has nothing to do with memory is swallowed", "or raise again")
def catches_every_runtime_error(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            there = torch.empty(size, dtype=torch.uint8, device=device)
            here = torch.ones(size, dtype=torch.uint8)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
            del here, there
        except RuntimeError:
            continue
    return result(ms) if len(ms) > 1 else (ms, 0.0, 0.0)


@BANK.wrong("a size that fits by itself is left out", "let them go")
def keeps_all_buffers_until_the_end(sizes, pinned, device, timer):
    ms, kept = {}, []
    for size in sizes:
        kept.append(buffers(size, pinned, device))
        if kept[-1] is not None:
            here, there = kept[-1]
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
    return result(ms)


@BANK.wrong("memory is still held on the GPU when the function has returned", "let it go")
def keeps_the_buffers(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            keeps_the_buffers.kept = pair
            ms[size] = timer(lambda pair=pair: pair[1].copy_(pair[0]))
    return result(ms)


# --- wrong: the numbers --------------------------------------------------------------------------------


@BANK.wrong("a time in the dict is not what the timer gave", "ms holds milliseconds")
def times_in_seconds(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return {size: t / 1e3 for size, t in ms.items()}, latency, bandwidth


@BANK.wrong("the bandwidth is in GiB/s", "2**30 is a GiB")
def gib(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, bandwidth * 1e9 / 2**30


@BANK.wrong("the bandwidth is in MB/s", "times 1e-6")
def megabytes(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, bandwidth * 1e3


@BANK.wrong("the bandwidth is bytes ÷ time of the largest copy", "still in that time")
def effective(sizes, pinned, device, timer):
    ms, latency, _ = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, max(ms) / ms[max(ms)] * 1e-6


@BANK.wrong("the bandwidth is the mean of bytes ÷ time", "mostly latency")
def mean_of_rates(sizes, pinned, device, timer):
    ms, latency, _ = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, statistics.mean(size / t * 1e-6 for size, t in ms.items())


@BANK.wrong("the bandwidth is all bytes ÷ all times", "all the latencies")
def totals(sizes, pinned, device, timer):
    ms, latency, _ = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, sum(ms) / sum(ms.values()) * 1e-6


@BANK.wrong("the line goes through zero", "fit both numbers")
def through_zero(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    return ms, 0.0, 1e-6 / (sum(x * t for x, t in ms.items()) / sum(x * x for x in ms))


def through_two(ms, a, b):
    bandwidth = (b - a) / (ms[b] - ms[a])
    return ms, (ms[a] - a / bandwidth) * 1e3, bandwidth / 1e6


@BANK.wrong("the line does not go through all of the times when they scatter", "fit it to all of them")
def through_the_extremes(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    return through_two(ms, min(ms), max(ms))


@BANK.wrong("the line does not go through all of the times when they scatter", "fit it to all of them",
            same_as="through_the_extremes")  # fmt: skip
def through_the_first_two(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    return through_two(ms, *list(ms)[:2])


@BANK.wrong("the slope came back, not the bandwidth", "one over it")
def slope(sizes, pinned, device, timer):
    ms = times(sizes, pinned, device, timer)
    latency, slope = line(ms)
    return ms, latency * 1e3, slope


@BANK.wrong("the latency is in milliseconds", "times 1000")
def latency_in_ms(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency / 1e3, bandwidth


@BANK.wrong("the latency is the time of the smallest copy", "meets 0 bytes")
def smallest(sizes, pinned, device, timer):
    ms, _, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, ms[min(ms)] * 1e3, bandwidth


@BANK.wrong("the latency is zero", "two numbers are to be fitted")
def no_latency(sizes, pinned, device, timer):
    ms, _, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, 0, bandwidth


@BANK.wrong("the bandwidth is in Gbit/s", "count bytes")
def bits(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, bandwidth * 8


@BANK.wrong("bandwidth_gbps is not a number", ".item() or float()")
def tensors(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    return ms, latency, torch.tensor(bandwidth)


@BANK.wrong("the result does not have the form that was asked for")
def only_the_times(sizes, pinned, device, timer):
    return times(sizes, pinned, device, timer)


@BANK.wrong("the result does not have the form that was asked for", "without a return")
def returns_nothing(sizes, pinned, device, timer):
    times(sizes, pinned, device, timer)


@BANK.wrong("a device that is not there is taken for one without room", "not every RuntimeError of torch.empty")
def takes_any_error_of_a_buffer_for_no_room(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            there = torch.empty(size, dtype=torch.uint8, device=device)
            here = torch.ones(size, dtype=torch.uint8)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
        except RuntimeError:
            continue
        ms[size] = timer(lambda here=here, there=there: there.copy_(here))
        del here, there
    return result(ms) if len(ms) > 1 else (ms, 0.0, 0.0)


# --- wrong: what else is inside the clock, where the copy goes, and what is held --------------------------


def each(sizes, pinned, device, timer, copy):
    """`times`, with another copy."""
    ms = {}
    for size in sizes:
        pair = buffers(size, pinned, device)
        if pair is not None:
            here, there = pair
            ms[size] = timer(lambda here=here, there=there: copy(here, there))
            del pair, here, there
    return result(ms)


@BANK.wrong("the host waits inside the clock", "timer itself waits")
def waits_inside(sizes, pinned, device, timer):
    def copy(here, there):
        there.copy_(here, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return each(sizes, pinned, device, timer, copy)


@BANK.wrong("the host waits inside the clock", "timer itself waits", same_as="waits_inside")
def waits_before_the_copy(sizes, pinned, device, timer):
    def copy(here, there):
        if there.is_cuda:
            torch.cuda.current_stream(device).synchronize()
        there.copy_(here)

    return each(sizes, pinned, device, timer, copy)


@BANK.wrong("the allocator's memory is given back inside the clock", "takes its time")
def empties_the_cache_inside(sizes, pinned, device, timer):
    def copy(here, there):
        torch.cuda.empty_cache()
        there.copy_(here)

    return each(sizes, pinned, device, timer, copy)


@BANK.wrong("the copy goes onto itself", "gives the source itself")
def makes_the_destination_of_the_source(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            here = torch.ones(size, dtype=torch.uint8)
            there = here.to(device)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
        except RuntimeError as error:
            if any(words in str(error) for words in NO_ROOM):
                continue
            raise
        ms[size] = timer(lambda here=here, there=there: there.copy_(here, non_blocking=True))
        del here, there
    return result(ms)


@BANK.wrong("the copy goes another way", "the number got lost")
def takes_the_kind_of_the_device(sizes, pinned, device, timer):
    return result(times(sizes, pinned, torch.device(device.type), timer))


@BANK.wrong("your function raised RuntimeError", "torch.device('cuda') has no number")
def writes_the_number_into_a_text(sizes, pinned, device, timer):
    place = f"cuda:{device.index}" if device.type == "cuda" else "cpu"
    return result(times(sizes, pinned, torch.device(place), timer))


@BANK.wrong("a kernel's illegal memory access is taken for a size without room", "stands outside of the try")
def has_the_timer_in_the_try(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        try:
            here, there = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8, device=device)
            here = here.pin_memory() if pinned and device.type == "cuda" else here
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
            del here, there
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
    return result(ms) if len(ms) > 1 else (ms, 0.0, 0.0)


@BANK.wrong("your function raised RuntimeError", "pin_memory() asks for memory too")
def pins_outside_the_try(sizes, pinned, device, timer):
    ms = {}
    for size in sizes:
        pair = buffers(size, False, device)
        if pair is not None:
            here, there = pair
            here = here.pin_memory() if pinned and device.type == "cuda" else here
            ms[size] = timer(lambda here=here, there=there: there.copy_(here))
            del pair, here, there
    return result(ms)


KEPT = []  # emptied where a new run begins, so that no test holds the memory of another


@BANK.wrong("memory is still held on the host when the function has returned", "the sources are tensors too")
def keeps_the_sources(sizes, pinned, device, timer):
    KEPT.clear()

    def copy(here, there):
        KEPT.append(here)
        there.copy_(here)

    return each(sizes, pinned, device, timer, copy)


@BANK.wrong("memory is still held on the host when the function has returned", "both buffers",
            same_as="keeps_the_sources")  # fmt: skip
def keeps_the_buffers_of_the_cpu(sizes, pinned, device, timer):
    KEPT.clear()

    def copy(here, there):
        if not there.is_cuda:
            KEPT.append((here, there))
        there.copy_(here)

    return each(sizes, pinned, device, timer, copy)


@BANK.wrong("your function raised ZeroDivisionError", "needs a third")
def estimates_the_error_of_the_line(sizes, pinned, device, timer):
    ms, latency, bandwidth = ordinary_least_squares(sizes, pinned, device, timer)
    off = [latency * 1e-3 + size / bandwidth * 1e-6 - t for size, t in ms.items()]
    assert sum(d * d for d in off) / (len(ms) - 2) < 1e9
    return ms, latency, bandwidth
