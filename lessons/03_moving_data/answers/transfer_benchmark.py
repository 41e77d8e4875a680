"""Answers to "a transfer benchmark": what stands inside the clock, sizes that do not fit, and the line."""

from banks.bank import Bank
from banks.edits import add, change, drop

from gpulab import transfers

BANK = Bank("transfer_benchmark")
COPY, IF, PIN = "there.copy_(here, non_blocking=True)", "if pinned and there.is_cuda:", "here = here.pin_memory()"
HERE, CATCH, DEL = "here = torch.ones(size, dtype=torch.uint8)", "RuntimeError as", "del here, there"
TIMED = f"        ms[size] = timer(lambda: {COPY})\n"
RAISE = 'if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):\n                raise'
UNPINNED = drop(IF), drop(PIN)
TRIED = change(TIMED, ""), change("        except", f"    {TIMED}        except")


def line(text):
    """Another line, in ms and ms per byte."""
    return add(f"latency, slope = {text}", before="return ms")


def back(latency="latency * 1e3", bandwidth="1e-6 / slope", ms="ms"):
    return change("return ms, latency * 1e3, 1e-6 / slope", f"return {ms}, {latency}, {bandwidth}")


@BANK.right
def with_the_courses_fit(sizes, pinned, device, timer):
    ms, _, _ = BANK.solution(sizes, pinned, device, timer)
    line = transfers.fit(list(ms), list(ms.values()))
    return ms, line.latency_us, line.bandwidth_gbps


BANK.right(
    (change(", non_blocking=True", ""), add("import statistics", before="ms = {}"),
     line("statistics.linear_regression(list(ms), list(ms.values()))[::-1]")),
    (*UNPINNED, change(HERE, f"{HERE[:-1]}, pin_memory=pinned and device.type != 'cpu')"), drop(DEL),
     change(COPY, "there.__setitem__(slice(None), here)"), add("import numpy", before="ms = {}"),
     line("numpy.polyfit(list(ms), list(ms.values()), 1, w=[size**0.5 for size in ms])[::-1]")),
)  # fmt: skip
BANK.mistakes(
    ("the destination is made inside the clock", "x.to(device) takes new memory each time: copy into what is there",
     change(COPY, "here.to(device, non_blocking=True, copy=True)")),
    ("pinning is inside the clock", "pinning locks pages and copies the data on the host: that is not the transfer's "
                                    "time",
     (*UNPINNED, change(COPY, "there.copy_(here.pin_memory() if pinned and there.is_cuda else here)"))),
    ("the data are made inside the clock", "the host's time for that would be counted: make both buffers before",
     (*UNPINNED, change(COPY, "there.copy_(torch.ones(size, dtype=torch.uint8))"))),
    ("nothing is copied inside the clock",
     ".to(device) returns a tensor that is already there: keep the source on the CPU",
     change(COPY, "there.to(device)")),
    ("ten copies are made inside the clock", "timer repeats by itself, and gives the time of one call",
     change(COPY, "[there.copy_(here) for _ in range(10)]")),
    ("the host does more than copy inside the clock", "timer itself waits for what it times: no synchronize, no event, "
     "no empty_cache()", change(COPY, "(there.copy_(here), there.is_cuda and torch.cuda.synchronize(device))"),
     change(COPY, "(torch.cuda.empty_cache(), there.copy_(here))")),
    ("each byte is counted twice in the bandwidth",
     "it is read on one side and written on the other, but crosses the bus once",
     back(bandwidth="2e-6 / slope")),
    ("the timer was never called", "return the times that timer returns",
     change(f"timer(lambda: {COPY})", "size * 1e-6")),
    ("the copy was made before timer could call it", "pass a function: timer(lambda: there.copy_(here))",
     change("timer(lambda: ", "timer(")),
    ("four times as many bytes are copied", "a float32 has four bytes, a torch.uint8 one",
     (change("dtype=torch.uint8, device", "device"), change(HERE, "here = torch.ones(size)"))),
    ("the copy goes from the device to the CPU", "target.copy_(source) writes to target",
     change(COPY, "here.copy_(there)")),
    ("the copy goes from one buffer on the device to another", "the source is on the CPU, and stays there",
     add("here = here.to(device, copy=True)", before="ms[size] =")),
    ("the copy goes onto itself", "on the CPU source.to(device) gives the source: torch.empty makes a target",
     add("there = here.to(device) if device.type == 'cpu' else there", before="ms[size] =")),
    ("the copy goes to the current GPU, also where `device` is another", "its number was lost: pass device on as it is",
     change("device=device)", "device=device.type)")),
    ("the number of the device is formatted into a string", "torch.device('cuda') has none: pass device on as it is",
     change("device=device)", "device=f'cuda:{device.index}' if device.type == 'cuda' else 'cpu')")),
    ("the source is pageable with pinned=True", "pin_memory() gives a new tensor and leaves the old one as it is",
     change(PIN, "here.pin_memory()")),
    ("the source is pinned with pinned=False", "the argument pinned is ignored", change(IF, "if there.is_cuda:")),
    ("the source is pinned where the device is the CPU", "without a GPU that is an error: test device.type first",
     change(IF, "if pinned:")),
    ("no error of a buffer is caught", "the benchmark goes on without that size: catch torch.OutOfMemoryError",
     change(CATCH, "KeyError as")),
    ("the host's error is not caught", "the host's allocator raises a plain RuntimeError: catch it as well",
     change(CATCH, "torch.OutOfMemoryError as")),
    ("memory is pinned outside of the try", "pin_memory() asks for memory too",
     (*UNPINNED, add("here = here.pin_memory() if pinned and there.is_cuda else here", before="ms[size] ="))),
    ("sizes after the one that did not fit are missing", "smaller ones may follow: continue, not break",
     change("continue", "break")),
    ("a size that does not fit is in the dict", "leave it out: code that plots the dict would have to remove a None",
     back(ms="{size: ms.get(size) for size in sizes}")),
    ("a size that fits by itself is left out", "the buffers of earlier sizes still hold the memory: release them",
     (add("kept = []", before="ms = {}"), change(DEL, "kept.append((here, there))"))),
    ("the keys are in MB", "the keys are the numbers of bytes as they were given",
     back(ms="{size / 1e6: t for size, t in ms.items()}")),
    ("the sizes are sorted", "keep them as they come: no need to sort", change("in sizes:", "in sorted(sizes):")),
    ("the first size is missing", "each that fits is timed, the first too", change("in sizes:", "in sizes[1:]:")),
    ("the dict of an earlier call is filled further", "a default argument is made once: make the dict in the function",
     (drop("ms = {}"), change("device, timer):", "device, timer, ms={}):"))),
    ("your function changed its argument sizes", "sort of a list", add("sizes.sort()", before="ms = {}")),
    ("every error is treated as a size without room", "except Exception, or a bare except, catches every error",
     (*TRIED, change(CATCH, "Exception as"), change(RAISE, "pass"))),
    ("every RuntimeError is treated as a size without room", 'look for "memory" in str(error), or raise again',
     (*TRIED, change(RAISE, "pass"))),
    ("a kernel's illegal memory access is treated as a size without room", "keep timer(…) outside the try", TRIED),
    ("a GPU that does not exist is treated as one without room", "not every RuntimeError of torch.empty is about room: "
     'look for "memory" in str(error)', change(RAISE, "pass")),
    ("two sizes are not enough for it", "two sizes are enough for a line; only an estimate of its error needs a third",
     add("assert sum(ms.values()) / (len(ms) - 2) > 0", before="return ms")),
    ("buffers stay on the GPU", "they are kept in a list, a global or on the function: release them",
     change(DEL, "transfer_benchmark.kept = there")),
    ("buffers stay on the host", "the sources are tensors too, and if device is the CPU so are both buffers: release "
                                 "them",
     change(DEL, "transfer_benchmark.kept = here")),
    ("buffers stay on the host where the device is the CPU",
     "if device is the CPU, both are on the host: release them, too",
     change(DEL, "transfer_benchmark.kept = None if there.is_cuda else there")),
    ("the dict holds seconds", "timer gives milliseconds, and ms holds milliseconds",
     back(ms="{size: t / 1e3 for size, t in ms.items()}")),
    ("the bandwidth is in GiB/s", "1 GB is 10⁹ bytes; 2**30 is a GiB", back(bandwidth="1e3 / slope / 2**30")),
    ("the bandwidth is in MB/s", "bytes per ms times 1e-6 are GB/s", back(bandwidth="1e-3 / slope")),
    ("the bandwidth is in bytes per second", "1 GB/s is 10⁹ bytes per second", back(bandwidth="1e3 / slope")),
    ("the bandwidth is in Gbit/s", "bandwidths of memory count bytes, of 8 bits", back(bandwidth="8e-6 / slope")),
    ("the slope was returned, not the bandwidth",
     "the slope is time per byte: the bandwidth is one over it", back(bandwidth="slope")),
    ("the bandwidth is bytes ÷ time of the largest copy", "its latency is still in that time: take the line's slope",
     back(bandwidth="max(ms) / ms[max(ms)] * 1e-6")),
    ("the bandwidth is the mean of bytes ÷ time", "for small copies that is mostly latency: take the line's slope",
     back(bandwidth="sum(size / t * 1e-6 for size, t in ms.items()) / len(ms)")),
    ("the bandwidth is all bytes ÷ all times", "that sum includes all the latencies: take the line's slope",
     back(bandwidth="sum(ms) / sum(ms.values()) * 1e-6")),
    ("the latency is in milliseconds", "the line is fitted to milliseconds: times 1000", back("latency")),
    ("the latency is zero", "a line through zero leaves it out: two numbers are to be fitted", back("0")),
    ("the latency is the time of the smallest copy", "it is where the line meets 0 bytes", back("ms[min(ms)] * 1e3")),
    ("the line goes through zero", "that leaves out the latency: fit both numbers",
     line("(0.0, sum(x * t for x, t in ms.items()) / sum(x * x for x in ms))")),
    ("the line goes through two of the times", "a line through two points follows their errors: fit it to all of them",
     *(line(f"(lambda a, b, c: (ms[a] - a * c(a, b), c(a, b)))({two}, lambda a, b: (ms[b] - ms[a]) / (b - a))")
       for two in ("min(ms), max(ms)", "*list(ms)[:2]"))),
    ("a number came back as a tensor", "use .item() or float()", back(bandwidth="torch.tensor(1e-6 / slope)")),
    ("only the dict came back", "latency and bandwidth belong to it", change(", latency * 1e3, 1e-6 / slope", "")),
    ("nothing came back", "the function ends without a return", change("return ms,", "ms,")),
)  # fmt: skip
