"""Answers to "a timer that tells the truth": when the clock starts and stops, and which of the times is returned."""

import itertools
import statistics
import time
from time import perf_counter

import torch
from banks.bank import Bank
from banks.edits import add, change, drop, move, swap

BANK = Bank("honest_timer", "time_on_gpu")

# The other right way, as edits: two waits and the host's clock.
EVENTS = "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))"
HOST = (
    add("import time", before="times = []"),
    change(EVENTS, "torch.cuda.synchronize()  # before"),
    change("start.record()", "start = time.perf_counter()"),
    drop("end.record()"),
    change("end.synchronize()", "torch.cuda.synchronize()  # after"),
    change("start.elapsed_time(end)", "(time.perf_counter() - start) * 1e3"),
)
BEFORE, AFTER = "synchronize()  # before", "synchronize()  # after"
WARM_UP = "    for _ in range(warm_up):\n        fn()\n"
MEDIAN = "statistics.median(times)"
BANK.right((*HOST, change(MEDIAN, "__import__('numpy').median(times)")))


@BANK.right
def all_marks_first(fn, repeats, warm_up):
    for _ in range(warm_up):
        fn()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        fn()
        mark.record()
    torch.cuda.synchronize()
    return torch.tensor([a.elapsed_time(b) for a, b in itertools.pairwise(marks)]).median().item()


def with_a_clock(clock):
    def has_a_clock_in_its_closure_and_its_defaults(fn, repeats, warm_up, mine=perf_counter, *, unit=1e3):
        times = []
        for _ in range(warm_up + repeats):
            torch.accelerator.synchronize()
            start = mine(), clock(), perf_counter()
            fn()
            while not torch.cuda.current_stream().query():
                time.sleep(0.0005)
            ends = mine(), clock(), perf_counter()
            times.append(statistics.mean(end - begin for begin, end in zip(start, ends, strict=True)) * unit)
        return statistics.median(times[warm_up:])

    return has_a_clock_in_its_closure_and_its_defaults


BANK.right(with_a_clock(time.perf_counter))
# --- wrong: when the clock stops -----------------------------------------------------------------------
BANK.mistakes(
    ("the time is that of the launch: nothing waits for the GPU",
     "fn() returns when its work is queued; without synchronize the clock stops before the work begins",
     (*HOST, drop(BEFORE), drop(AFTER))),
    ("work that was queued before the call is counted",
     "the caller had queued some: wait for the GPU before the clock starts, too", (*HOST, drop(BEFORE)),
     (*HOST, move(BEFORE, before="times = []"),
     change("torch.cuda.synchronize()  # before", "if warm_up: torch.cuda.synchronize()"))),
    ("the clock was stopped before the GPU was waited for",
     "the host does wait, but not between fn() and the second reading of the clock", (*HOST, drop(AFTER))),
    ("earlier work is timed, and not that of fn",
     "the GPU was waited for before fn and not after it: the clock stops when the old work is done",
     (*HOST, drop(AFTER), swap(BEFORE, "start ="))),
    ("the end of the warm-up is counted in the first call",
     "the calls of the warm-up are queued, and not done, when the loop begins: wait after them",
     (*HOST, move(BEFORE, before="for _ in range(warm_up)"))),
    ("the clock is not suited to this",
     "time.time may be set while you measure, time.process_time counts processor time, and neither works with a "
     "virtual GPU: use time.perf_counter or events",
     (*HOST, change("start = time.perf_counter()", "start = time.time()"),
     change("(time.perf_counter()", "(time.time()")),
     (*HOST, change("start = time.perf_counter()", "start = time.process_time()"),
     change("(time.perf_counter()", "(time.process_time()")),
     (*HOST, change("start = time.perf_counter()", "start = time.clock_gettime(time.CLOCK_MONOTONIC)"),
     change("(time.perf_counter()", "(time.clock_gettime(time.CLOCK_MONOTONIC)")),
     (*HOST, change("import time", "from datetime import datetime"),
     change("start = time.perf_counter()", "start = datetime.now()"),
     change("(time.perf_counter() - start)", "(datetime.now() - start).total_seconds()"))),
    ("the events are recorded in another stream than the work",
     "an event marks one stream, and this one was idle: record both in the current stream",
     (add("other = torch.cuda.Stream()", before="times = []"), change("start.record()", "start.record(other)"),
     change("end.record()", "end.record(other)"), change("end.synchronize()", "torch.cuda.synchronize()"))),
    ("the events are recorded in the default stream, even if the work is in another",
     "record() without an argument marks the current stream, in which fn queues its work",
     (change("start.record()", "start.record(torch.cuda.default_stream())"),
     change("end.record()", "end.record(torch.cuda.default_stream())"))),
    ("the host waits for the default stream, even if the work is in another",
     "torch.cuda.synchronize() waits for all streams of the current GPU, "
     "torch.cuda.current_stream().synchronize() for the one that fn works in",
     (*HOST, change("torch.cuda.synchronize()  # after", "torch.cuda.default_stream().synchronize()"))),
    ("cuda:0 is made the current GPU", "fn works on the GPU that is current for the caller: leave it as it is",
     add("torch.cuda.set_device(0)", before="times = []")),
    ("the host waits for cuda:0, even if another GPU is current",
     "torch.cuda.synchronize() without an argument waits for the current one",
     (*HOST, change("torch.cuda.synchronize()  # after", "torch.cuda.synchronize(0)"))),
    ("before the clock starts the host waits for cuda:0, even if another GPU is current",
     "torch.cuda.synchronize() without an argument waits for the current one",
     (*HOST, change("torch.cuda.synchronize()  # before", "torch.cuda.synchronize(0)"))),
    ("before the clock starts the host waits for the default stream, even if the work is in another",
     "torch.cuda.synchronize() waits for all streams of the current GPU",
     (*HOST, change("torch.cuda.synchronize()  # before", "torch.cuda.default_stream().synchronize()"))),
    ("the time is read before the GPU has reached the end event",
     "end.synchronize() comes between end.record() and elapsed_time", drop("end.synchronize()")),
    ("the events do not record the time",
     "an event records the time only if made with torch.cuda.Event(enable_timing=True), both of them",
     change("enable_timing=True", "")),
    ("an event was never recorded", "an event has no time before record() was called on it", drop("end.record()")),
    ("the time is negative", "start.elapsed_time(end) counts from start to end: the two are swapped",
     change("start.elapsed_time(end)", "end.elapsed_time(start)")),
    ("both events are recorded before fn", "the end event marks what was queued by then: record it after fn()",
     move("end.record()", after="start.record()")),
)  # fmt: skip

# --- wrong: units and forms ----------------------------------------------------------------------------
BANK.mistakes(
    ("the time is in seconds", "the host's clocks count seconds: times 1000", (*HOST, change(" * 1e3", ""))),
    ("the time is in microseconds", "elapsed_time gives milliseconds already", change(MEDIAN, f'{MEDIAN} * 1e3')),
)  # fmt: skip
NO_NUMBER = "what came back is not a number"
BANK.mistakes(
    (NO_NUMBER, "the list of times: return their median", change(MEDIAN, "times")),
    (NO_NUMBER, "the function ends without a return", (change("return ", "print("), change("times)", "times))"))),
    (NO_NUMBER, "a tensor of one number becomes a float with .item()", change(MEDIAN, "torch.tensor(times).median()")),
    (NO_NUMBER, "a dict: return the median alone", change(MEDIAN, f'{{"median": {MEDIAN}}}')),
    (NO_NUMBER, "a string: format the time where it is printed", change(MEDIAN, f'f"{{{MEDIAN}:.3f}}"')),
    ("the time is rounded to whole milliseconds",
     "round() and int() leave nothing of a short time: return the median as it is, and round where you print",
     change(MEDIAN, f'round({MEDIAN})'), change(MEDIAN, f'int({MEDIAN})')),
)  # fmt: skip

# --- wrong: which time ---------------------------------------------------------------------------------

MEAN = "one disturbed run drags the mean, and leaves the median; a clock around the whole loop gives the mean as well"
AROUND = "torch.cuda.synchronize()\n    start = time.perf_counter()\n    for _ in range(repeats):"
BANK.mistakes(
    ("the mean of the times came back", MEAN, change(MEDIAN, "statistics.mean(times)"),
     (*HOST, drop(BEFORE), drop("start ="), change("for _ in range(repeats):", AROUND),
     change("        torch.cuda.synchronize()  # after\n        times.append(",
     "    torch.cuda.synchronize()\n    times.append(1 / repeats * "))),
    ("the fastest time came back", "the minimum shows the machine at its best, the median what it usually does",
     change(MEDIAN, "min(times)")),
    ("the slowest time came back", "the maximum is one disturbed run", change(MEDIAN, "max(times)")),
    ("the sum of the times came back", "the clock ran through all calls: it is to be started and stopped for each",
     change(MEDIAN, "sum(times)")),
    ("the last time came back", "the list of times is overwritten, or only its end is used",
     change("times.append(start.elapsed_time(end))", "times = [start.elapsed_time(end)]")),
    ("the first time came back", "the median is the middle one when sorted", change(MEDIAN, "times[0]")),
    ("fn is timed once, however many repeats are asked for", "the return stands inside the loop",
     change("    return statistics", "        return statistics")),
    ("the middle one of the times came back, and they are not sorted",
     "the middle one is times[len(times) // 2] of the *sorted* times", change(MEDIAN, "times[len(times) // 2]")),
    ("the first of the timed calls is left out", "warm_up calls come before; all timed calls count",
     change(MEDIAN, "statistics.median(times[1:] or times)")),
    ("there was no warm-up", "the first calls are slow: warm_up was ignored", change(WARM_UP, "")),
    ("the warm-up is one call, however long it should be", "warm_up is a number of calls: a loop, not an if",
     change("for _ in range(warm_up):", "if warm_up:")),
    ("the warm-up is taken from the repeats",
     "it comes on top of them: warm_up calls first, then `repeats` that are timed",
     change("range(repeats)", "range(max(1, repeats - warm_up))")),
    ("the warm-up is counted in the median", "the calls of the warm-up are run before the clock, and not timed",
     (change(WARM_UP, ""), change("range(repeats)", "range(warm_up + repeats)"))),
    ("the slowest calls are taken for the warm-up", "the warm-up calls are the first ones, however long they take",
     (change(WARM_UP, ""), change("range(repeats)", "range(warm_up + repeats)"),
     change(MEDIAN, "statistics.median(sorted(times)[:repeats])"))),
    ("there is a warm-up where none is asked for", "the warm-up is as long as warm_up says, 0 included",
     change("range(warm_up)", "range(max(1, warm_up))")),
    ("fn is called once too often", "range(n + 1) has n + 1 entries", change("range(repeats)", "range(repeats + 1)")),
    ("fn is called with arguments", "fn takes no arguments: it is called as fn()",
     (change(f'{WARM_UP}', ""), change("fn()\n        end", "fn(repeats=repeats)\n        end"))),
)  # fmt: skip
