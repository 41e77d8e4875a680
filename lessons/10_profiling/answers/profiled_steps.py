"""Answers to "some steps of many"."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

BANK = Bank("profiled_steps")
PLAN = "skip_first=skip, wait=every - count - 1, warmup=1, active=count, repeat=cycles"
ROWS = 'row.device_type.name == "CPU" and row.self_device_time_total'
OWN = "row.self_device_time_total / 1e3 / (cycles * count)"
FILE = 'f"steps-to-{recorded.step_num}.json"'
OPTIONS = "activities=both, schedule=plan, on_trace_ready=save, acc_events=True"
WITH = f"with profile({OPTIONS}) as recorded:"
BY_HAND = f"recorded = profile({OPTIONS})\n    recorded.start()\n"
LOOP = f"{WITH}\n        for _ in range(steps):\n            step()\n            recorded.step()"


@BANK.right
def a_plan_of_its_own(step, steps, skip, every, count, folder):
    """A schedule is a function of the step's number; and all events are kept to the end."""
    does = torch.profiler.ProfilerAction
    whole = skip + (steps - skip) // every * every

    def plan(number):
        place = (number - skip) % every if skip <= number < whole else 0
        if place == every - 1 and number >= skip and number < whole:
            return does.RECORD_AND_SAVE
        if place >= every - count:
            return does.RECORD
        return does.WARMUP if skip <= number < whole and place == every - count - 1 else does.NONE

    handler = tensorboard_trace_handler(str(folder))
    with profile(
        activities={ProfilerActivity.CUDA, ProfilerActivity.CPU}, schedule=plan, on_trace_ready=handler, acc_events=True
    ) as recorded:
        for _ in range(steps):
            step()
            recorded.step()
    recorded_steps = (whole - skip) // every * count
    return {
        row.key: row.self_device_time_total / 1000 / recorded_steps
        for row in recorded.key_averages()
        if row.device_type == torch.autograd.DeviceType.CPU and row.self_device_time_total > 0
    }


BANK.right(change(FILE, 'f"{len(os.listdir(folder))}.json"'))
BANK.right(
    change(
        LOOP,
        f"{BY_HAND}    try:\n        for _ in range(steps):\n            step()\n            recorded.step()\n"
        "    finally:\n        recorded.stop()",
    )
)
BANK.mistakes(
    ("the times are printed, not returned", "return the dict; a table is for reading", change("return {", "rows = {")),
    ("rows of the table are returned", "{name: ms}: row.key, and a number of milliseconds", change(OWN, "row")),
    ("the steps run once without the profiler, and again with it",
     "record in the loop that trains: every step() changes weights",
     add("[step() for _ in range(steps)]", before="with profile(")),
    ("the training ends with the last recorded step",
     "run the loop for all steps; the schedule alone decides what is recorded",
     change("for _ in range(steps)", "for _ in range(skip + cycles * every)")),
    ("the CPU's activity is left out",
     "on a real GPU kernels then belong to no operation, and no operation has any time: request both",
     change("[ProfilerActivity.CPU, ProfilerActivity.CUDA]", "[ProfilerActivity.CUDA]")),
    ("the profiler does not learn where a step ends",
     "recorded.step() after each step(); without it the schedule stays in its first phase", drop("recorded.step()")),
    ("no trace is written",
     "pass on_trace_ready a function that exports: recorded.export_chrome_trace(path)",
     change("on_trace_ready=save, ", "")),
    ("each cycle overwrites the file of the one before",
     "give each a name of its own: recorded.step_num differs each time", change(FILE, '"trace.json"')),
    ("the files are compressed", "use a name that ends in .json; .gz compresses",
     change(FILE, 'f"{recorded.step_num}.json.gz"')),
    ("every step is recorded", "a schedule says which ones: torch.profiler.schedule(…)", change("schedule=plan, ", "")),
    ("the first steps are not skipped", "skip_first=skip: wait counts within each cycle",
     change("skip_first=skip, ", "")),
    ("the cycles have no wait between them",
     "a cycle waits first, warms up, then records: wait=every - count - 1", change("wait=every - count - 1", "wait=0")),
    ("a cycle is one step too long", "wait, warm-up and record together are `every` steps: the warm-up counts too",
     change("wait=every - count - 1", "wait=every - count")),
    ("one step more is recorded than asked for", "active=count; the warm-up is not part of it",
     change(PLAN, "skip_first=skip, wait=max(0, every - count - 2), warmup=1, active=count + 1, repeat=cycles")),
    ("recorded.step() comes before step()", "then the profiler's count is one ahead, and the wrong steps are recorded",
     change("step()\n            recorded.step()", "recorded.step()\n            step()")),
    ("an incomplete cycle at an incomplete cycle is recorded",
     "repeat=cycles; 0, which is the default, goes on to the end, and the profiler hands over what it has",
     change(", repeat=cycles", "")),
    ("only the first cycle is recorded", "repeat is how many cycles there are: (steps - skip) // every",
     change("repeat=cycles", "repeat=1")),
    ("the profiler has no warm-up", "warmup=1: its start would be paid for by the first recorded step",
     change("wait=every - count - 1, warmup=1", "wait=every - count, warmup=0")),
    ("the profiler warms up during the whole wait",
     "warmup=1: while it warms up it weighs on the host as when it records",
     change("wait=every - count - 1, warmup=1", "wait=0, warmup=every - count")),
    ("kernels are among the operations",
     "a kernel has a row of its own, and its time is in the operation's row too: row.device_type distinguishes them",
     change('row.device_type.name == "CPU" and ', "")),
    ("the names are those of kernels", "rows whose device_type is CPU are the operations",
     change('name == "CPU"', 'name == "CUDA"')),
    ("the names lack their “aten::”",
     "it is part of the name, as in row.key: other libraries' operations have prefixes of their own",
     change("row.key: row", 'row.key.removeprefix("aten::"): row')),
    ("operations without kernels of their own are included",
     "views, allocations and launches have none: leave out rows without time",
     change(" and row.self_device_time_total", "")),
    ("total times are used, which include nested operations",
     "self_device_time_total: totals count a kernel once for each level, and ranges too",
     (change(ROWS, 'row.device_type.name == "CPU" and row.device_time_total'),
     change(OWN, "row.device_time_total / 1e3 / (cycles * count)"))),
    ("the times are in seconds", "the profiler counts microseconds: a thousandth of that are milliseconds",
     change("/ 1e3 /", "/ 1e6 /")),
    ("the times are in microseconds", "the profiler counts microseconds: a thousandth of that are milliseconds",
     change("/ 1e3 /", "/")),
    ("the times are per call of the operation",
     "an operation may run several times a step, or not in every step: divide by the recorded steps",
     change("/ (cycles * count)", "/ row.count / cycles")),
    ("the times are those of a cycle", "each has `count` steps: divide by all recorded ones",
     change("(cycles * count)", "cycles")),
    ("the times of all cycles are added up", "divide by all recorded steps, cycles * count",
     change("(cycles * count)", "count")),
    ("the time is divided by all steps, recorded or not", "divide by all recorded steps, cycles * count",
     change("(cycles * count)", "steps")),
    ("only the last cycle's times are included",
     "each cycle clears the events of the one before: add up in on_trace_ready, or ask for acc_events=True",
     change(", acc_events=True", "")),
    ("the first cycles are counted again with each later one",
     "with acc_events=True the rows of a cycle hold those of all before: read them once, at the end",
     (change("def save(recorded):",
     "tables = []\n\n    def save(recorded):\n        tables.extend(recorded.key_averages())"), change("return {",
     "ms = {}\n    for row in tables:\n        ms.setdefault(row.key, []).append(row)\n    return {"),
     change("row.key: row.self_device_time_total /", "row.key: sum(r.self_device_time_total for r in ms[row.key]) /"))),
    ("an exception of step is swallowed", "let it pass: `with profile(…)` stops the profiler by itself",
     change("            step()\n",
     "            try:\n                step()\n            except Exception:\n                break\n")),
    ("a RuntimeError of step is swallowed",
     "CUDA errors are RuntimeErrors: let them pass, because training after one is worthless",
     change("            step()\n",
     "            try:\n                step()\n            except RuntimeError:\n                break\n")),
    ("the profiler keeps running after an exception",
     "with profile(…) as recorded: stops it whatever happens; start() and stop() do not",
     change(LOOP,
     f'{BY_HAND}    for _ in range(steps):\n        step()\n        recorded.step()\n    recorded.stop()')),
)  # fmt: skip
