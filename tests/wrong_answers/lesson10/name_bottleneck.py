"""Answers to "name the bottleneck"."""

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("name_bottleneck")
OWN, LOADING = 'span[2]["args"]["device"] == gpu', "loading > 0.5 * (stop - start)"
IN_STEPS = "begin < span[1] and span[0] < end"
MORE = "if sum(stop - start for start, stop in gaps) > 0.3 * (end - begin):"
ADDED = "sum(stop - start for start, stop, _ in runs)"
KIND = '"input" if loading > 0.5 * (stop - start) else "waits" if waiting else "launches"'
ROOF = 'return "compute" if flops / peak_flops > moved / peak_bandwidth else "bandwidth"'
OF_GAPS = "    if sum(stop - start for start, stop in gaps)"
LONGER = "sum(b - a for a, b in {}) > 0.3 * (end - begin)"


@BANK.right
def edges_of_intervals(events, gpu, peak_flops, peak_bandwidth):
    """A walk over begins and ends; FLOPs and bytes by the second of kernels, as the lecture has them."""
    marks, steps, flops, moved, busy = [], [], 0, 0, 0
    for e in events:
        if e["ph"] != "X":
            continue
        cat, name, args, end = e["cat"], e["name"], e["args"], e["ts"] + e["dur"]
        if cat == "kernel" and args["device"] == gpu:
            marks += [(e["ts"], 1, "kernel", e), (end, -1, "kernel", e)]
        elif cat == "user_annotation" and "ProfilerStep#" in name:
            steps += [e["ts"], end]
        elif cat == "user_annotation" and "DataLoader" in name:
            marks += [(e["ts"], 1, "load", e), (end, -1, "load", e)]
        elif cat == "cuda_runtime" and name.endswith("Synchronize"):
            marks += [(e["ts"], 1, "wait", e), (end, -1, "wait", e)]
    begin, end = min(steps), max(steps)
    marks += [(begin, 0, "", None), (end, 0, "", None)]
    state, gap, lost, at = {"kernel": 0, "load": 0, "wait": 0, "": 0}, None, {}, begin
    for ts, change_, what, e in sorted(marks, key=lambda mark: (mark[0], mark[1])):
        here = min(max(ts, begin), end)
        if here > at and state["kernel"]:
            busy += here - at
            if gap is not None:
                kind = "input" if 2 * gap[1] > gap[0] else "waits" if gap[2] else "launches"
                lost[kind] = lost.get(kind, 0) + gap[0]
                gap = None
        elif here > at:
            gap = gap or [0, 0, state["wait"] > 0]
            gap[0] += here - at
            gap[1] += (here - at) * (state["load"] > 0)
        at = here
        state[what] += change_
        if what == "kernel" and change_ > 0 and e["ts"] < end and e["ts"] + e["dur"] > begin:
            flops, moved = flops + e["args"].get("flops", 0), moved + e["args"].get("bytes", 0)
    if gap:
        kind = "input" if 2 * gap[1] > gap[0] else "waits" if gap[2] else "launches"
        lost[kind] = lost.get(kind, 0) + gap[0]
    if busy < 0.7 * (end - begin):
        return max(lost, key=lost.get)
    return "bandwidth" if moved / peak_bandwidth >= flops / peak_flops else "compute"


BANK.right(change(IN_STEPS, "begin <= span[0] < end"))
BANK.right(change('endswith("Synchronize")', 'startswith("cuda") and "Synchronize" in e["name"]'))
BANK.mistakes(
    ("the word is printed, and None is returned", "return instead of print",
     change("return max(lost, key=lost.get)", "return print(max(lost, key=lost.get))")),
    ("what is returned is another word than the five",
     '"input", "waits", "launches", "compute", "bandwidth", in these letters',
     change('"input" if loading', '"loader" if loading')),
    ("the time by kind is returned, not the kind", "the one with the most time: max(lost, key=lost.get)",
     change("return max(lost, key=lost.get)", "return dict(lost)")),
    ("events without a duration are read as if they had one", 'only events whose "ph" is "X" have a "dur"',
     change(' if e["ph"] == "X"]', "]")),
    ("every kernel is asked for its FLOPs and bytes",
     'e["args"].get("flops", 0): a norm has no FLOPs that count, and not every kernel tells its bytes',
     change('e["args"].get(key, 0)', 'e["args"][key]')),
    ("a gap in which the host loads is put down to the wait before it",
     "the wait was over when the gap had just begun; ask for the loader first",
     change(KIND, '"waits" if waiting else "input" if loading > 0.5 * (stop - start) else "launches"')),
    ("no job is called input-bound",
     "ask for the loader first: what its gaps begin in does not matter where the host loads for most of them",
     change(KIND, '"waits" if waiting else "launches"')),
    ("a job that waits for its own results is called launch-bound",
     "behind a wait the queue is empty, however fast the host launches: a gap that begins in a wait is " "the wait's",
     change('"waits" if waiting else "launches"', '"launches"')),
    ("a wait is looked for in the whole gap, not at its begin",
     "a host that launches too slowly comes to a wait now and then, when the GPU has long been idle",
     change("a <= start <= b", "a < stop and start < b")),
    ("a job whose host launches too slowly is called a waiting one",
     "in its gaps the host works: it is in no wait when they begin",
     change('"waits" if waiting else "launches"', '"waits"'),
     change("any(a <= start <= b for a, b in waits)", "bool(waits)")),
    ("every gap is put down to the loader",
     "half the GPU's time unused says that the host is late, not with what: look at the host in the gaps",
     change(KIND, '"input"')),
    ("a loader anywhere makes the job input-bound",
     "the GPU may be at work meanwhile: what the host loads behind kernels costs nothing",
     change(MORE, 'if loads:\n        return "input"\n    ' + MORE)),
    ("FLOP/s are looked at before the gaps",
     "with gaps no roof is near: what a job reaches of a peak while it runs matters only where it " "always runs",
     change(MORE, "if False:\n        return \"\"\n    if False:")),
    ("a GPU without gaps is taken for compute-bound",
     "a kernel that waits for memory fills its lane as well: compare with both roofs",
     change(ROOF, 'return "compute"')),
    ("a GPU without gaps is taken for bandwidth-bound",
     "products of large matrices reach most of the peak: compare with both roofs", change(ROOF, 'return "bandwidth"')),
    ("the two roofs are the other way round",
     "the one under which the kernels need *longer* is the nearer one: it is what holds them",
     change("flops / peak_flops > moved", "flops / peak_flops < moved")),
    ("FLOPs are compared with bytes",
     "both are numbers of very different size: divide each by its peak, which makes seconds of both",
     change("flops / peak_flops > moved / peak_bandwidth", "flops > moved")),
    ("the peaks are an A100's, whatever the GPU",
     "the ridge is elsewhere on each GPU, and in each format: take the peaks that were handed over",
     change("flops / peak_flops > moved / peak_bandwidth", "flops / 312 > moved / 2.039")),
    ("compute-bound means half of the peak",
     "many kernels reach a quarter of the nearer roof and of no other: compare the two parts, not one " "with a limit",
     change("flops / peak_flops > moved / peak_bandwidth", 'flops / peak_flops > 0.4e-6 * ' + ADDED)),
)  # fmt: skip
FEW_GAPS, MANY_GAPS = "gaps of less than 30 % decide", "gaps of more than 30 % do not decide"
BANK.mistakes(
    (FEW_GAPS, "the limit is 30 %: with less of its time to win, look at the kernels first",
     change("> 0.3 * (end", "> 0.25 * (end"), change("> 0.3 * (end", "> 0.15 * (end")),
    (MANY_GAPS, "the limit is 30 % of the steps' time", change("> 0.3 * (end", "> 1 / 3 * (end"),
     change("> 0.3 * (end", "> 0.5 * (end")),
    ("only the longest gap is compared with the limit", "many short gaps make up a launch-bound step: add them up",
     change(MORE, "if max(stop - start for start, stop in gaps) > 0.3 * (end - begin):")),
    ("the loader's whole time counts, also behind kernels",
     "only the part that overlaps with a gap has kept the GPU waiting",
     change(OF_GAPS,
     f"""    if {LONGER.format('loads')} and sum(b - a for a, b in gaps) > 0.3 * (end - begin):
        return "input"
{OF_GAPS}""")),
    ("a gap with several batches loaded in it is not the loader's",
     "add up the overlaps: three calls of a third each fill the gap",
     change("loading = sum(max(0, min(stop, b) - max(start, a)) for a, b in loads)",
     "loading = max((max(0, min(stop, b) - max(start, a)) for a, b in loads), default=0)")),
    ("a gap in which the host loads at all is the loader's",
     "the loader has made a gap if it fills more than half of it", change(LOADING, "loading > 0")),
    ("a gap in which the host loads for less than half of it is the loader's",
     "the loader has made a gap if it fills more than half of it", change(LOADING, "loading > 0.4 * (stop - start)")),
    ("a gap in which the host loads for more than half of it is not the loader's",
     "more than half is enough: the rest is what Python does with the batch",
     change(LOADING, "loading > 0.6 * (stop - start)")),
    ("a load counts whole where only a part of it is in the gap",
     "cut it at the gap's begin and end: max(0, min(ends) - max(begins))",
     change("max(0, min(stop, b) - max(start, a)) for a, b in loads",
     "b - a for a, b in loads if a < stop and start < b")),
    ("a load that has begun behind a kernel does not count in the gap after it",
     "its part in the gap does: max(0, min(ends) - max(begins))",
     change("max(0, min(stop, b) - max(start, a)) for a, b in loads", "b - a for a, b in loads if start <= a < stop")),
    ("one kind of wait is not known",
     'a host waits for a stream, an event or the device: ask for the end of the name, "Synchronize"',
     change('e["name"].endswith("Synchronize")', 'e["name"] in ("cudaStreamSynchronize", "cudaEventSynchronize")'),
     change('e["name"].endswith("Synchronize")', 'e["name"] in ("cudaStreamSynchronize", "cudaDeviceSynchronize")')),
    ("a wait that has ended before the gap begins counts",
     "it has not held the host up: begin and end of the wait are before and after the gap's begin",
     change("a <= start <= b", "a <= start <= b + 50")),
    ("short gaps do not count", "a hundred gaps of 10 µs are a millisecond: every stretch without a kernel is a gap",
     change("if start > done:", "if start > done + 20:")),
    ("a GPU without any kernel is put under a roof", "its whole time is one gap: what does the host do in it?",
     add("if not runs:\n        return \"bandwidth\"", before="gaps, done = [], begin")),
    ("a kernel is asked for where there is none",
     "a GPU may have none in the steps: then the gap goes from their begin to their end",
     add("runs[0]", before="gaps, done = [], begin")),
    ("a kernel that runs on after the steps does not count",
     "its part within them keeps the GPU busy: cut it at the end",
     change(IN_STEPS, "begin <= span[0] and span[1] <= end")),
    ("short kernels are taken for launch-bound",
     "a kernel of 15 µs is long enough for a host that needs 9: look for gaps",
     change(MORE,
     'if runs and sum(b - a for a, b, _ in runs) < 20 * len(runs):\n        return "launches"\n    ' + MORE)),
    ("the gap after the last kernel is left out", "the last gap ends with the last step: (end, end) behind the kernels",
     change("[*(span[:2] for span in runs), (end, end)]", "[span[:2] for span in runs]")),
    ("loads are looked for by the whole name of one kind of loader",
     'with workers it is _MultiProcessingDataLoaderIter: ask for "DataLoader" in the name',
     change('if "DataLoader" in e["name"]', 'if "_SingleProcessDataLoaderIter" in e["name"]')),
    ("the bytes of copies are added to the kernels'",
     "copies are no kernels: they say nothing of what the kernels wait for",
     change("for _, _, e in runs)", 'for a, b, e in [*runs, *(s for s in spans if s[2]["cat"] == "gpu_memcpy")])')),
    ("the shadow of a load on the GPU's lane counts as loading",
     'the host loads in the event of cat "user_annotation"; the profiler draws it a second time, over ' "the kernels",
     change("for start, stop, e in ranges if", 'for start, stop, e in spans if "user_annotation" in e["cat"] and')),
    ("a range whose name ends in Synchronize counts as a wait",
     "names are anybody's: the waits are events of cat \"cuda_runtime\"",
     change('e["cat"] == "cuda_runtime" and ', "")),
    ("FLOPs and bytes are those of all kernels in the file",
     "kernels that ran before the first step are no part of the steps",
     change("for _, _, e in runs)", 'for _, _, e in spans if e["cat"] == "kernel" and e["args"]["device"] == gpu)')),
    ("kernels' durations are added up, also of those that run side by side",
     "on several streams that makes more than 100 %: the GPU is busy in the union of the intervals",
     change(MORE, f'if {ADDED} < 0.7 * (end - begin):')),
    ("a gap is thought to begin where the last kernel that began has ended",
     "an earlier one, on another stream, may run on: done = max(done, stop)",
     change("done = max(done, stop)", "done = stop")),
    ("only one stream of the GPU is looked at", "a stream that is idle is no gap while another runs a kernel",
     add('runs = [span for span in runs if span[2]["args"]["stream"] == 7]', before="runs = sorted(")),
    ("kernels of all GPUs are taken for this one's", 'e["args"]["device"] is the number of the GPU',
     change(' and ' + OWN, "")),
    ("kernels are looked for on GPU 0", "gpu says which one", change(OWN, 'span[2]["args"]["device"] == 0')),
    ("a copy counts as a kernel",
     "copies are done by engines of their own: while one runs, the multiprocessors may be idle",
     change('span[2]["cat"] == "kernel"', 'span[2]["cat"] in ("kernel", "gpu_memcpy")')),
    ("the time runs from the first kernel to the last",
     "the wait before a step's first kernel is the loader's: the steps' ranges say when a step begins " "and ends",
     (change(IN_STEPS, "True"), drop("done = max(done, stop)"),
     change("begin, end = min(span[0] for span in steps), max(span[1] for span in steps)", "begin, end = 0, 0"),
     change("gaps, done = [], begin", "begin, end = runs[0][0], max(s[1] for s in runs)\n    gaps, done = [], begin"),
     change("            gaps.append((done, start))",
     "            gaps.append((done, start))\n        done = max(done, stop)"))),
    ("the time is that of the whole file",
     "what comes before the first step and after the last is no step's: take begin and end from ProfilerStep",
     change("min(span[0] for span in steps), max(span[1] for span in steps)",
     "min(span[0] for span in spans), max(span[1] for span in spans)")),
    ("the time is the sum of the steps', without what is between them",
     "from the first step's begin to the last one's end: gaps between two steps count, and so do kernels",
     change("> 0.3 * (end - begin):", "> 0.3 * sum(b - a for a, b, _ in steps):")),
    ("the steps' shadows on the GPU's lane count as steps",
     "those of cat \"gpu_user_annotation\" reach to the end of the kernels: the host's are " '"user_annotation"',
     change("steps = [span for span in ranges if", "steps = [span for span in spans if")),
    ("only one step is looked at", "one step may be unlike the others: judge all of them together",
     add("steps = sorted(steps, key=lambda span: span[0])[:1]", before="begin, end = min("),
     add("steps = sorted(steps, key=lambda span: span[0])[-1:]", before="begin, end = min(")),
    ("many kernels are taken for launch-bound",
     "twenty thousand kernels without a gap are launched fast enough, and ten with gaps are not",
     change(MORE, 'if len(runs) > 40:\n        return "launches"\n    ' + MORE)),
    ("gaps are counted, not their time", "a thousand gaps of 3 µs are less than one of 10 ms",
     change('else "launches"] += stop - start', 'else "launches"] += 1')),
    ("each kernel has a vote, however short it is",
     "most kernels are bound by memory in nearly every job; most of the time is what counts",
     change(ROOF, "of = [[e[\"args\"].get(key, 0) for key in (\"flops\", \"bytes\")] for *_, e in runs]\n    votes = "
     "[flops / peak_flops > moved / peak_bandwidth for flops, moved in of]\n    return \"compute\" if "
     'sum(votes) > len(votes) / 2 else "bandwidth"')),
    ("the events are taken as they stand in the file",
     "a file is in no order: sort the kernels by ts before looking for gaps",
     change('runs = sorted((span for span in runs if ' + IN_STEPS + '), key=lambda span: span[0])',
     'runs = [span for span in runs if ' + IN_STEPS + ']')),
    ("your function changed its argument events", "",
     add('events.sort(key=lambda e: e.get("ts", 0))', before="spans = [")),
)  # fmt: skip
