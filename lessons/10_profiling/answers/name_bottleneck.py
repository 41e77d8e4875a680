"""Answers to "name the bottleneck": whose time is looked at, what a gap is put down to, and which roof is nearer."""

from banks.bank import Bank
from banks.edits import add, change

BANK = Bank("name_bottleneck")
ENDS, OWN = 'e["name"].endswith("Synchronize")', 'span[2]["args"]["device"] == gpu'
IN_STEPS, IN_WAIT, LONG = "begin < span[1] and span[0] < end", "a <= start <= b", "> 0.3 * (end - begin)"
PARTS, FROM = "max(0, min(stop, b) - max(start, a)) for a, b in loads", "gaps, done = [], begin"
MORE, TIMES = f"if sum(stop - start for start, stop in gaps) {LONG}:", "sum(stop - start for start, stop, _ in runs)"
LOADING, RETURN = "loading > 0.5 * (stop - start)", "return max(lost, key=lost.get)"
KIND = '"input" if loads_most else "waits" if waiting else "launches"'
COMPUTE, OF_RUNS = "compute > memory", "for _, _, e in runs]"
NEED, NEEDED = "sum(max(need) for need in needs)", "< 0.6 * busy"
WORD = f'return "compute" if {COMPUTE} else "bandwidth"'
WINDOW = "min(span[0] for span in steps), max(span[1] for span in steps)"


def first(condition, word):
    """This word, before gaps are looked at."""
    return change(f"    {MORE}", f'    if {condition}:\n        return "{word}"\n    {MORE}')


BANK.right(change(IN_STEPS, "begin <= span[0] < end"))
BANK.right((add("import numpy as np", before="spans = ["), change("gaps, done = [], begin",
            "done = np.maximum.accumulate([begin, *(stop for _, stop, _ in runs)])"),
            change("    for start, stop in [*(span[:2] for span in runs), (end, end)]:\n        if start > done:\n"
            "            gaps.append((done, start))\n        done = max(done, stop)\n",
            "    starts = np.array([*(a for a, *_ in runs), end])\n    late = starts > done\n"
            "    gaps = [*zip(done[late], starts[late])]\n"),
            change(f"sum({PARTS})", "np.clip([min(stop, b) - max(start, a) for a, b in loads], 0, None).sum()"),
            change("(sum(need[roof] for need in needs) for roof in (0, 1))", "np.sum(needs, axis=0)")))  # fmt: skip
BANK.right(change(ENDS, 'e["name"].startswith("cuda") and "Synchronize" in e["name"]'))

# --- what comes back, and which events are read ----------------------------------------------------------
BANK.mistakes(
    ("the word is printed, and None is returned", "return instead of print",
     change(RETURN, f"return print({RETURN[7:]})")),
    ("what is returned is not one of the six words",
     "“input”, “waits”, “launches”, “compute”, “bandwidth”, “latency”",
     change('"input" if', '"loader" if')),
    ("the time by kind is returned, not the kind", "the one with the most time: max(lost, key=lost.get)",
     change(RETURN, "return dict(lost)")),
    ("your function changed its argument events", "", add("events.sort(key=lambda e: id(e))", before="spans =")),
    ("events without a duration are read as if they had one", 'only events whose "ph" is "X" have a "dur"',
     change(' if e["ph"] == "X"]', "]")),
    ("FLOPs and bytes are read from every kernel", 'not every kernel has both: e["args"].get("flops", 0)',
     change('e["args"].get("bytes", 0)', 'e["args"]["bytes"]')),
    ("kernels that lack their FLOPs or their bytes are left out", "a norm's bytes take time too: use no if",
     change(OF_RUNS, 'for _, _, e in runs if len(e["args"].keys() & {"flops", "bytes"}) == 2]')),
    ("the events are used in the order of the file", "a file may be in any order: sort the kernels by ts",
     change("key=lambda span: span[0]", "key=lambda span: 0")),
    ("loads are recognised by the full name of one kind of loader",
     'with workers it is _MultiProcessingDataLoaderIter: look for "DataLoader" in the name',
     change('if "DataLoader" in e["name"]', 'if "_SingleProcessDataLoaderIter" in e["name"]')),
    ("one kind of wait is not recognised",
     'the host waits for a stream, an event or the device: test whether the name ends in "Synchronize"',
     *(change(ENDS, f'e["name"] in ("cudaStreamSynchronize", "cuda{one}Synchronize")') for one in ("Event", "Device"))),
    ("Synchronize anywhere in the name makes a wait", f"its end is asked for: {ENDS}",
     change(ENDS, '"Synchronize" in e["name"]')),
    ("a range whose name ends in Synchronize counts as a wait",
     'names are anybody\'s: the waits are events of cat "cuda_runtime"', change('e["cat"] == "cuda_runtime" and ', "")),
    ("an event of another cat counts as loading",
     "loads are of cat “user_annotation”; “gpu_user_annotation” mirrors them on the GPU's lane",
     change("for start, stop, e in ranges if", 'for start, stop, e in spans if "user_annotation" in e["cat"] and'),
     change("for start, stop, e in ranges if", 'for start, stop, e in spans if e["cat"] != "gpu_user_annotation" and')),
    ("kernels of all GPUs are counted as this one's", "the number of their GPU is in their args",
     change(f" and {OWN}", "")),
    ("kernels are looked for on GPU 0", "gpu says which one", change(OWN, 'span[2]["args"]["device"] == 0')),
    ("a copy counts as a kernel", "copies have engines of their own: during one the multiprocessors may be idle",
     change('["cat"] == "kernel"', '["cat"] in ("kernel", "gpu_memcpy")')),
    ("the bytes of copies are added to the kernels'", "they do not show what the kernels wait for",
     change(OF_RUNS, 'for a, b, e in [*runs, *(s for s in spans if s[2]["cat"] == "gpu_memcpy")]]')),
)  # fmt: skip

# --- which time, and what a gap is -----------------------------------------------------------------------
BANK.mistakes(
    ("gaps of less than 30 % decide", "with so little time to gain, look at the kernels first",
     change(LONG, LONG.replace("0.3", "0.15"))),
    ("gaps of more than 30 % do not decide", "the limit is 30 % of the steps' time",
     change(LONG, LONG.replace("0.3", "1 / 3"))),
    ("only the longest gap is compared with the limit", "many short gaps make up a launch-bound step: add them up",
     change(MORE, MORE.replace("sum", "max"))),
    ("short gaps do not count", "a hundred gaps of 10 µs are a millisecond: every stretch without a kernel is a gap",
     change("if start > done:", "if start > done + 5:")),
    ("a GPU without any kernel is called compute- or bandwidth-bound",
     "its whole time is one gap: what does the host do in it?",
     add('if not runs:\n        return "bandwidth"', before=FROM)),
    ("the code needs a kernel where there is none", "then the gap goes from the steps' begin to their end",
     add("runs[0]", before=FROM)),
    ("a kernel that runs past the last step is not counted", "its part within them keeps the GPU busy",
     change(IN_STEPS, "begin <= span[0] and span[1] <= end")),
    ("the gap after the last kernel is left out", "the last gap ends with the last step",
     change("for span in runs), (end, end)]", "for span in runs)]")),
    ("the gap before the first kernel is left out", "the first gap begins with the first step",
     change(FROM, "gaps, done = [], runs[0][0] if runs else begin")),
    ("the time runs from the first kernel to the last", "the steps' ranges say when a step begins and ends",
     (change(IN_STEPS, "True"), add("begin, end = runs[0][0], max(span[1] for span in runs)", before=FROM))),
    ("the time is that of the whole file", "take begin and end from ProfilerStep",
     change(WINDOW, WINDOW.replace("steps", "spans"))),
    ("FLOPs and bytes are those of all kernels in the file", "those before the first step are not part of the steps",
     change(OF_RUNS, 'for _, _, e in spans if e["cat"] == "kernel" and e["args"]["device"] == gpu]')),
    ("the time is the sum of the steps', without the time between them",
     "gaps between two steps count, and so do kernels: from the first step's begin to the last one's end",
     change(LONG, "> 0.3 * sum(b - a for a, b, _ in steps)")),
    ("the steps' mirrors on the GPU's lane count as steps", "the host's steps are of cat “user_annotation”",
     change("steps = [span for span in ranges if", "steps = [span for span in spans if")),
    ("only one step is looked at", "one step may differ from the others: take all of them together",
     *(change(WINDOW, f"sorted(span[:2] for span in steps)[{one}]") for one in (0, -1))),
    ("the steps are in the order of their names", "ProfilerStep#10 comes before #9 there: min and max of their times",
     (add('steps.sort(key=lambda one: one[2]["name"])', before="begin, end ="),
      change(WINDOW, "steps[0][0], steps[-1][1]"))),
    ("kernels' durations are added up, even if kernels run at the same time",
     "on several streams that makes more than 100 %: the GPU is busy in the union of the intervals",
     change(MORE, f"if {TIMES} < 0.7 * (end - begin):")),
    ("a gap is found while another stream runs a kernel",
     "it begins where all that has begun is over: of all streams, with done = max(done, stop)",
     change("max(done, stop)", "stop"), change(IN_STEPS, f'{IN_STEPS} and span[2]["args"]["stream"] == 7')),
    ("many or short kernels are treated as launch-bound",
     "twenty thousand kernels without a gap are launched fast enough, and ten with gaps are not: look for gaps",
     first("len(runs) > 40", "launches"), first(f"runs and {TIMES} < 25 * len(runs)", "launches")),
    ("gaps are counted, not their time", "a thousand gaps of 3 µs are less than one of 10 ms",
     change('else "launches"] += stop - start', 'else "launches"] += 1')),
)  # fmt: skip

# --- whose a gap is, and which roof ----------------------------------------------------------------------
BANK.mistakes(
    ("a gap in which the host loads is attributed to something else",
     "test for the loader first: how the gap begins does not matter if the host loads for most of it",
     change(KIND, '"waits" if waiting else "input" if loads_most else "launches"'),
     change(KIND, '"waits" if waiting else "launches"')),
    ("a job that waits for its own results is called launch-bound",
     "after a wait the queue is empty, however fast the host launches: a gap that begins in a wait is due to the wait",
     change('"waits" if waiting else', "")),
    ("a wait counts though it is over when the gap begins, or comes later in it",
     "a host that launches too slowly comes to a wait now and then: its begin <= that of the gap <= its end",
     *(change(IN_WAIT, to) for to in ("a < stop and start < b", "a <= stop <= b", "a <= start <= b + 50"))),
    ("a job whose host launches too slowly is said to wait", "it is in no wait when the gaps begin",
     change('if waiting else "launches"', "")),
    ("every gap is attributed to the loader",
     "a gap shows that the host is late, not why: look at what the host does in it",
     change(KIND, '"input"')),
    ("any load makes the job input-bound", "what the host loads while the GPU is at work costs nothing",
     first("loads", "input")),
    ("loads count in full, even while kernels run", "only the part in a gap has kept the GPU waiting",
     first(f"sum(b - a for a, b in loads) {LONG} and {MORE[3:-1]}", "input"),
     change(PARTS, "b - a for a, b in loads if a < stop and start < b")),
    ("a load that began during a kernel does not count in the gap after it", "its part in the gap does",
     change(PARTS, "b - a for a, b in loads if start <= a < stop")),
    ("a gap in which several batches are loaded is not attributed to the loader", "add up the parts",
     change(f"sum({PARTS})", f"max(({PARTS}), default=0)")),
    ("any gap with some loading is attributed to the loader", "only if loads fill more than half of it",
     change(LOADING, "loading > 0")),
    ("a gap in which the host loads for less than half is attributed to the loader",
     "more than half: loading > 0.5 * gap",
     change(LOADING, "loading > 0.4 * (stop - start)")),
    ("a gap in which the host loads for more than half is not attributed to the loader", "more than half is enough",
     change(LOADING, "loading > 0.6 * (stop - start)")),
    ("FLOP/s are tested before the gaps", "with large gaps no roof is near, whatever rate the kernels reach",
     change(MORE, "if False:")),
    ("a GPU without gaps is called compute-bound",
     "a kernel that waits for memory fills its lane too: compare the seconds that FLOPs and bytes need at their peaks",
     change(WORD, 'return "compute"'), change(COMPUTE, "compute * peak_flops > memory * peak_bandwidth")),
    ("a GPU without gaps is called bandwidth-bound",
     "products of large matrices reach most of the peak: compare with both roofs", change(WORD, 'return "bandwidth"')),
    ("the two roofs are swapped", "the resource for which the kernels need *longer* limits them",
     change(COMPUTE, COMPUTE.replace(">", "<"))),
    ("the peaks are an A100's, whatever the GPU",
     "the ridge point differs between GPUs: use the peaks that are passed in",
     change(COMPUTE, "compute * peak_flops / 312 > memory * peak_bandwidth / 2.039")),
    ("compute-bound is defined as half of the peak",
     "many kernels reach a quarter of the nearer roof: compare the two times",
     change(COMPUTE, f"compute > 0.4e-6 * {TIMES}")),
    ("each kernel has a vote", "most kernels are memory-bound in nearly every job: count time, not kernels",
     change(COMPUTE, "sum(flops > moved for flops, moved in needs) > len(needs) / 2")),
    ("a job that is near neither roof is called compute- or bandwidth-bound",
     "it is latency if the sum of each kernel's longer time is less than 60 % of the time without gaps",
     change(NEEDED, "< 0"), change(NEEDED, "< 0.5 * busy"), change(NEED, "sum(sum(need) for need in needs)")),
    ("each roof alone is compared with 60 % of the time",
     "each kernel has a roof of its own: add up max(...) over them",
     change(NEED, "max(sum(times) for times in zip(*needs))")),
    ("a job that is near to one roof is called latency-bound",
     "compare the seconds at the peak with 60 % of the steps' time *without the gaps*",
     change(NEEDED, "< 0.6 * (end - begin)"), change(NEEDED, "< 0.7 * busy")),
)  # fmt: skip
