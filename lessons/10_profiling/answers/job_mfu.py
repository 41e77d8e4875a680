"""Answers to "one number"."""

import torch
from banks.bank import Bank
from banks.edits import add, change
from torch.utils.flop_counter import FlopCounterMode

BANK = Bank("job_mfu")
LOOP = """    marks = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(end) / 1e3 for start, end in marks]
"""
FIRST, LAST = "        torch.cuda.synchronize()\n", "        torch.cuda.synchronize()  # the step\n"
HOST = f"""    import time
    seconds = []
    for _ in range(repeats):
{FIRST}        start = time.perf_counter()
        step()
{LAST}        seconds.append(time.perf_counter() - start)
"""
ONE_EACH = LOOP.replace("        marks.append", "        end.synchronize()\n        marks.append")


def by_host(*edits):
    """The host's clock, and a wait at each reading, but for these (old, new)."""
    text = HOST
    for old, new in edits:
        text = text.replace(old, new)
    return change(LOOP, text)


ALLOWED = 'if name == "fp32" and torch.backends.cuda.matmul.allow_tf32 and "tf32" in sheet:'
COUNT = "counter.get_total_flops() / statistics.median(seconds) / peak"


@BANK.right
def events_first(step, plain_step, dtype, sheet, warm_up, repeats):
    """Timed with events before it is counted."""
    times = []
    for number in range(warm_up + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        times += [(start, end)] * (number >= warm_up)
    end.synchronize()
    times = [start.elapsed_time(end) for start, end in times]
    counter = FlopCounterMode(display=False)
    with counter:
        plain_step()
    precise = torch.get_float32_matmul_precision() == "highest" or "tf32" not in sheet
    row = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32" if precise else "tf32")
    tflops = sheet[row][0] / (1 + sheet[row][1])
    return counter.get_total_flops() / sorted(times)[repeats // 2] / 1e9 / tflops


WAIT = "    torch.cuda.synchronize()\n    seconds"
BANK.right(change(WAIT, WAIT.replace("torch.cuda.", "torch.cuda.current_stream().")))
BANK.right(change("    marks = []\n", "    torch.cuda.synchronize()  # before the timed steps\n    marks = []\n"))
BANK.mistakes(
    ("a string was returned", "return the number itself; printing is up to the caller",
     change(f'return {COUNT}', f'return f"{{{COUNT}:.1%}}"')),
    ("the number is in per cent", "1 is the peak: do not multiply by 100", change(COUNT, f'100 * {COUNT}')),
    ("the peak is in TFLOP/s, the rate in FLOP/s", "the sheet's number times 10¹²", change("tflops * 1e12", "tflops")),
    ("the time is in milliseconds, the peak in FLOP per second",
     "perf_counter returns seconds, elapsed_time milliseconds",
     change("statistics.median(seconds)", "(1e3 * statistics.median(seconds))")),
    ("one step more runs first than warm_up says", "warm_up may be 0, and each call of step trains the model",
     change("range(warm_up)", "range(max(1, warm_up))")),
    ("the warm-up is taken out of the repeats", "warm_up calls come on top: warm_up + repeats calls in all",
     change("range(repeats)", "range(max(1, repeats - warm_up))")),
    ("the step with recomputation is counted",
     "the model does not need the second forward pass: counting it would let useless work raise the number. Count "
     "plain_step", change("        plain_step()\n", "        step()\n")),
    ("plain_step is called more than once", "counting needs no warm-up, and every call trains the model",
     add("plain_step()", before="with FlopCounterMode")),
    ("the count is doubled", "FlopCounterMode counts a multiply-add as two already", change(COUNT, f'2 * {COUNT}')),
    ("the count is multiplied by three",
     "three times is the rule for a forward pass alone; the backward pass is counted already",
     change(COUNT, f'3 * {COUNT}')),
    ("peak and rate are swapped", "divide the achieved rate by the peak", change(COUNT, f'1 / ({COUNT})')),
    ("the clock is stopped before the GPU has finished",
     "a launch returns at once: record an event after the step", by_host((LAST, ""))),
    ("GPU 0 is waited for, whichever is current",
     "torch.cuda.synchronize() without a number waits for the current GPU, which is the job's",
     by_host((FIRST, FIRST.replace("()", "(0)")), (LAST, LAST.replace("()", "(0)")))),
    ("the host waits after each step", "that empties the queue: record two events a step, and wait once at the end",
     by_host(), change(LOOP, ONE_EACH)),
    ("FLOPs are still counted during the timed steps",
     "close the counter first: otherwise it includes the recomputation and all repeats",
     (change("    return", "    counter.__exit__(None, None, None)\n    return"),
     change("    with FlopCounterMode(display=False) as counter:\n        plain_step()",
     "    counter = FlopCounterMode(display=False).__enter__()\n    plain_step()"))),
    ("work that was queued before is timed", "an event before each step is recorded after what was queued",
     by_host((FIRST, ""))),
    ("the queue of the caller is timed",
     "the caller's work may still run when yours begins: record an event after it",
     (by_host((FIRST, "")),
     change("    with FlopCounterMode(display=False) as counter:\n        plain_step()\n", ""), change("    return",
     "    with FlopCounterMode(display=False) as counter:\n        plain_step()\n    return"),
     change("for _ in range(warm_up):\n        step()",
     "for _ in range(warm_up):\n        step()\n        torch.cuda.synchronize()"))),
    ("warm-up work that is still queued is timed", "an event before each step is recorded after the warm-up",
     (by_host((FIRST, "")), add("torch.cuda.synchronize()", before="for _ in range(warm_up)"))),
    ("the warm-up is timed as well", "its steps are slower: leave them out of the list",
     (change("for _ in range(warm_up):\n        step()", ""), change("range(repeats)", "range(warm_up + repeats)"))),
    ("the mean of the times is taken", "one slow step, such as one that saves, shifts the mean: statistics.median",
     change("statistics.median", "statistics.mean")),
    ("the fastest step is taken", "the job runs all of them: statistics.median", change("statistics.median", "min")),
    ("the last step alone is taken", "all of them are timed: statistics.median",
     change("statistics.median(seconds)", "seconds[-1]")),
    ("the mean of the steps in the middle is taken",
     "the median is one of the times, where their number is odd: statistics.median",
     change("statistics.median(seconds)", "statistics.mean(sorted(seconds)[repeats // 4 : repeats - repeats // 4])")),
    ("the step in the middle is taken, not the one of middle length",
     "the median is the middle one of the sorted times",
     change("statistics.median(seconds)", "seconds[len(seconds) // 2]")),
    ("the rate with sparsity is used as the peak",
     "dense products reach half of it at most: halve it where the sheet says so", change("(2 if sparse else 1)", "1"),
     change("(2 if sparse else 1)", '(2 if sparse and name == "tf32" else 1)')),
    ("the rate of TF32 with sparsity is used as the peak",
     "halve it like those of the other formats, if the sheet says so",
     change("(2 if sparse else 1)", '(2 if sparse and name != "tf32" else 1)')),
    ("the code reads a row that the sheet lacks",
     "it may have only some of the four rows: look up the one you need",
     change("    tflops, sparse", "    fp32 = sheet[\"fp32\"]\n    tflops, sparse"),
     change("    tflops, sparse", "    fp16 = sheet[\"fp16\"]\n    tflops, sparse")),
    ("every rate is halved", "only where the sheet says that it is one with sparsity",
     change("(2 if sparse else 1)", "2")),
    ("the peak is that of fp32, whatever the products are in",
     "16-bit products run on tensor cores, which have a row of their own",
     change(ALLOWED, 'name = "fp32"\n    ' + ALLOWED)),
    ("the peak is the largest of the sheet",
     "a job in float32 cannot reach the rate of 16-bit products: take the row of its format",
     change("sheet[name]", "max(sheet.values())")),
    ("products that run in TF32 are compared with the peak of fp32",
     "if allow_tf32 is set, float32 products run on tensor cores, and the MFU may exceed 1",
     change(ALLOWED, "if False:")),
    ("products in full float32 are compared with the peak of TF32",
     "PyTorch's default is full precision for matrix products: read torch.backends.cuda.matmul.allow_tf32",
     change(ALLOWED, 'if name == "fp32" and "tf32" in sheet:'),
     change("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")),
    ("the code reads a row that the sheet does not have",
     "older GPUs have no TF32, whatever is allowed: then the row is fp32", change(' and "tf32" in sheet', "")),
    ("the clock is the processor's", "time.process_time does not run while the host waits; record events",
     by_host(("perf_counter", "process_time"))),
)  # fmt: skip
