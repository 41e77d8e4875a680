"""Answers to "one number"."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpulab.check.lesson10.sections import SECTIONS

from ..bank import Bank
from ..edits import add, change, solution

BANK = Bank("job_mfu", SECTIONS, solution=(10, "job_mfu"))
SOLUTION = BANK.right(solution(10, "job_mfu"))
BEFORE = "        torch.cuda.synchronize()\n        start = time.perf_counter()\n"
AFTER = "        torch.cuda.synchronize()\n        seconds.append("
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
        end.synchronize()
        times += [start.elapsed_time(end)] * (number >= warm_up)
    counter = FlopCounterMode(display=False)
    with counter:
        plain_step()
    precise = torch.get_float32_matmul_precision() == "highest" or "tf32" not in sheet
    row = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32" if precise else "tf32")
    tflops = sheet[row][0] / (1 + sheet[row][1])
    return counter.get_total_flops() / sorted(times)[repeats // 2] / 1e9 / tflops


BANK.variant("synchronizes_a_stream", change(AFTER, AFTER.replace("torch.cuda.", "torch.cuda.current_stream().")))
BANK.variant(
    "nanoseconds",
    change("start = time.perf_counter()", "start = time.perf_counter_ns() / 1e9"),
    change("time.perf_counter() - start", "time.perf_counter_ns() / 1e9 - start"),
)

BANK.mistake(
    "as_text",
    "what came back is a text",
    "the number itself; how it is printed is the caller's matter",
    change(f"return {COUNT}", f'return f"{{{COUNT}:.1%}}"'),
)
BANK.mistake(
    "per_cent",
    "the number is in per cent",
    "1 is the peak: do not multiply by 100",
    change(COUNT, f"100 * {COUNT}"),
)
BANK.mistake(
    "tera",
    "the peak is in TFLOP/s, the rate in FLOP/s",
    "the sheet's number times 10¹²",
    change("tflops * 1e12", "tflops"),
)
BANK.mistake(
    "milliseconds",
    "the time is in milliseconds, the peak in FLOP per second",
    "perf_counter tells seconds, elapsed_time milliseconds",
    change("statistics.median(seconds)", "(1e3 * statistics.median(seconds))"),
)
BANK.mistake(
    "always_warm",
    "a step more goes before than warm_up says",
    "warm_up may be 0; and each call of step trains the model",
    change("range(warm_up)", "range(max(1, warm_up))"),
)
BANK.mistake(
    "in_the_repeats",
    "the warm-up is taken out of the repeats",
    "warm_up calls come on top: warm_up + repeats calls in all",
    change("range(repeats)", "range(max(1, repeats - warm_up))"),
)
BANK.mistake(
    "counts_the_job",
    "the step with recomputation is counted",
    "the second forward pass is none of the model's: with it, useless work would raise the number. Count plain_step",
    change("        plain_step()\n", "        step()\n"),
)
BANK.mistake(
    "warm_plain",
    "plain_step is called more than once",
    "counting needs no warm-up, and every call trains the model",
    add("plain_step()", before="with FlopCounterMode"),
)
BANK.mistake(
    "two_each",
    "the count is doubled",
    "FlopCounterMode counts a multiply-add as two already",
    change(COUNT, f"2 * {COUNT}"),
)
BANK.mistake(
    "three_times",
    "the count is multiplied by three",
    "three times is the rule for a forward pass alone; the backward pass is counted already",
    change(COUNT, f"3 * {COUNT}"),
)
BANK.mistake(
    "inside_out",
    "peak and rate are the other way round",
    "what was reached, by what could be",
    change(COUNT, f"1 / ({COUNT})"),
)
BANK.mistake(
    "times_the_launch",
    "the clock is stopped before the GPU is done",
    "a launch returns at once: torch.cuda.synchronize() before the second reading",
    change(AFTER, "        seconds.append("),
)
BANK.mistake(
    "waits_for_the_first_gpu",
    "GPU 0 is waited for, whichever is the current one",
    "torch.cuda.synchronize() without a number waits for the current GPU, which is the job's",
    change(BEFORE, BEFORE.replace("synchronize()", "synchronize(0)")),
    change(AFTER, AFTER.replace("synchronize()", "synchronize(0)")),
)
BANK.mistake(
    "counter_stays_open",
    "the count goes on during the timed steps",
    "close the counter first: else the recomputation and all repeats are in it",
    change("    return", "    counter.__exit__(None, None, None)\n    return"),
    change(
        "    with FlopCounterMode(display=False) as counter:\n        plain_step()",
        "    counter = FlopCounterMode(display=False).__enter__()\n    plain_step()",
    ),
)
BANK.mistake(
    "no_wait_before",
    "work that was queued before is timed",
    "torch.cuda.synchronize() before the first reading too",
    change(BEFORE, "        start = time.perf_counter()\n"),
)
BANK.mistake(
    "counts_last_and_does_not_wait",
    "the queue of the caller is timed",
    "the caller's work may still run when yours begins: torch.cuda.synchronize() before the first reading too",
    change(BEFORE, "        start = time.perf_counter()\n"),
    change("    with FlopCounterMode(display=False) as counter:\n        plain_step()\n", ""),
    change(
        "    return",
        "    with FlopCounterMode(display=False) as counter:\n        plain_step()\n    return",
    ),
    change(
        "for _ in range(warm_up):\n        step()",
        "for _ in range(warm_up):\n        step()\n        torch.cuda.synchronize()",
    ),
)
BANK.mistake(
    "waits_before_the_warm_up",
    "what is still queued of the warm-up is timed",
    "wait between the warm-up and the first reading of the clock",
    change(BEFORE, "        start = time.perf_counter()\n"),
    add("torch.cuda.synchronize()", before="for _ in range(warm_up)"),
)
BANK.mistake(
    "warm_up_in_the_time",
    "the warm-up is timed as well",
    "its steps are slower: they are not to be in the list",
    change("for _ in range(warm_up):\n        step()", ""),
    change("range(repeats)", "range(warm_up + repeats)"),
)
BANK.mistake(
    "the_mean",
    "the mean of the times is taken",
    "one slow step, as one that saves, moves the mean: statistics.median",
    change("statistics.median", "statistics.mean"),
)
BANK.mistake(
    "the_best",
    "the fastest step is taken",
    "the job has all of them: statistics.median",
    change("statistics.median", "min"),
)
BANK.mistake(
    "the_last",
    "the last step alone is taken",
    "all of them are timed: statistics.median",
    change("statistics.median(seconds)", "seconds[-1]"),
)
BANK.mistake(
    "trimmed_mean",
    "the mean of the steps in the middle is taken",
    "the median is one of the times, where their number is odd: statistics.median",
    change("statistics.median(seconds)", "statistics.mean(sorted(seconds)[repeats // 4 : repeats - repeats // 4])"),
)
BANK.mistake(
    "unsorted",
    "the step in the middle is taken, not the one of middle length",
    "the median is the middle one of the sorted times",
    change("statistics.median(seconds)", "seconds[len(seconds) // 2]"),
)
BANK.mistake(
    "sparse",
    "the rate with sparsity is taken for the peak",
    "dense products reach half of it at most: halve it where the sheet says so",
    change("(2 if sparse else 1)", "1"),
)
BANK.mistake(
    "sparse_in_16_bits",
    "the rate with sparsity is taken for the peak",
    "",
    change("(2 if sparse else 1)", '(2 if sparse and name == "tf32" else 1)'),
    same_as="sparse",
)
BANK.mistake(
    "tf32_not_halved",
    "the rate of TF32 with sparsity is taken for the peak",
    "halve it as that of the other formats: where the sheet says so",
    change("(2 if sparse else 1)", '(2 if sparse and name != "tf32" else 1)'),
)
BANK.mistake(
    "fp32_in_every_sheet",
    "a row is asked for that the sheet lacks",
    "it has some of the four rows: look up the one of the format, when it is known",
    change("    tflops, sparse", '    fp32 = sheet["fp32"]\n    tflops, sparse'),
)
BANK.mistake(
    "fp16_in_every_sheet",
    "a row is asked for that the sheet lacks",
    "",
    change("    tflops, sparse", '    fp16 = sheet["fp16"]\n    tflops, sparse'),
    same_as="fp32_in_every_sheet",
)
BANK.mistake(
    "always_half",
    "every rate is halved",
    "only where the sheet says that it is one with sparsity",
    change("(2 if sparse else 1)", "2"),
)
BANK.mistake(
    "fp32_for_all",
    "the peak is that of fp32, whatever the products are in",
    "16-bit products run on tensor cores, which have a row of their own",
    change(ALLOWED, 'name = "fp32"\n    ' + ALLOWED),
)
BANK.mistake(
    "largest",
    "the peak is the largest of the sheet",
    "a job in float32 cannot reach the rate of 16-bit products: take the row of its format",
    change("sheet[name]", "max(sheet.values())"),
)
BANK.mistake(
    "never_tf32",
    "products that run in TF32 are compared with the peak of fp32",
    "where allow_tf32 is set, float32 products run on tensor cores: an MFU over 1 may come of it",
    change(ALLOWED, "if False:"),
)
BANK.mistake(
    "always_tf32",
    "products in full float32 are compared with the peak of TF32",
    "PyTorch's default is full precision for products: ask torch.backends.cuda.matmul.allow_tf32",
    change(ALLOWED, 'if name == "fp32" and "tf32" in sheet:'),
)
BANK.mistake(
    "of_convolutions",
    "products in full float32 are compared with the peak of TF32",
    "PyTorch's default is full precision for products: ask torch.backends.cuda.matmul.allow_tf32",
    change("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32"),
    same_as="always_tf32",
)
BANK.mistake(
    "tf32_on_a_t4",
    "a row of the sheet is asked for that it does not have",
    "older GPUs have no TF32, whatever is allowed: then the row is fp32",
    change(' and "tf32" in sheet', ""),
)
BANK.mistake(
    "processor_time",
    "the clock is the processor's",
    "time.process_time does not run while the host waits; take time.perf_counter",
    change("start = time.perf_counter()", "start = time.process_time()"),
    change("time.perf_counter() - start", "time.process_time() - start"),
)
