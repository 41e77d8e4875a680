"""The report's text and hints, from reports that are made here."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from virtualgpu.running.hints import hints
from virtualgpu.running.report import (
    Between,
    Breakdown,
    Gpu,
    GpuTime,
    Memory,
    Report,
    Share,
    Shortage,
    Steps,
    Tensors,
    Tried,
    as_json,
    json_path,
)
from virtualgpu.running.report_text import OFF, as_text
from virtualgpu.running.source_lines import Line
from virtualgpu.running.target import Ending
from virtualgpu.units import duration, with_prefix

MiB, GiB = 1 << 20, 1 << 30
T4 = 15_828_320_256
LINE = Line("train.py", 12, "loss.backward()")
MEMORY = Memory(
    total=T4, peak_allocated=900 * MiB, peak_reserved=1000 * MiB, peak_used=1300 * MiB, end_allocated=400 * MiB,
    end_reserved=1000 * MiB, retries=0, failures=0, peak_line=LINE,
    peak_shares=(Share(LINE, 600 * MiB), Share(Line("train.py", 9, "out = model(x)"), 250 * MiB)),
)  # fmt: skip
TIME = GpuTime(
    elapsed=4.0, busy=3.0, waited=1.0, launch=5e-6, kernels=30_000, flops=8e12, flop_seconds=2.0,
    source="published rates",
)  # fmt: skip
OUT = Ending(12, "error", "OutOfMemoryError: CUDA out of memory. Tried to allocate")
STEPS = Steps("AdamW", 1_200_000, "cuda:0", 20, median=0.2, busy_share=0.8)
REPORT = Report(
    name="train.py", argv=("train.py",), ending=Ending(0), gpu="T4", numbers="virtual", shapes_only=False,
    gpus=(Gpu(0, MEMORY, TIME),), steps=(STEPS,), host_seconds=31.4, tflops=(("fp32", 8.1), ("fp16", 65)),
)  # fmt: skip


def with_memory(**changes):
    return replace(REPORT, gpus=(replace(REPORT.gpus[0], memory=replace(MEMORY, **changes)),))


def test_amounts_of_different_units_each_say_theirs():
    text = " ".join(as_text(with_memory(peak_allocated=1024, peak_reserved=2 * MiB), ()).split())
    assert "peak 1,024 bytes allocated, 2.0 MiB reserved, 1,300 MiB of 15,095 MiB used" in text


def test_the_text_of_a_plain_run():
    assert as_text(REPORT, ()).splitlines() == [
        "gpulab run: train.py on a virtual T4",
        "Verdict: fits on a T4 with 13,795 MiB to spare (91%, virtual)",
        "Memory (virtual)",
        "  peak            900.0 MiB allocated, 1,000 reserved, 1,300 of 15,095 used",
        "  reached at      train.py:12  loss.backward()",
        "  held by            600.0 MiB  train.py:12  loss.backward()",
        "                     250.0 MiB  train.py:9  out = model(x)",
        "                      50.0 MiB  other lines",
        "Speed (virtual, published rates; error for a T4 not known)",
        "  steps           20 of AdamW (1.20 M parameters, cuda:0), every 200 ms",
        "  GPU busy        80% of the time from step to step, not launch-bound",
        "                  4.00 TFLOP/s in matrix products; peaks: fp32 8.1, fp16 65",
        "What to change",
        "  - --what-if tries one change at a time on the script (16 bits, checkpointing,",
        "    half the batch, other GPUs, …), and shows the bytes and the time of each.",
    ]
    text = as_text(replace(REPORT, steps=(), tflops=()), ())  # as it ran, without steps
    assert "GPU busy        3.00 s in 30,000 kernels, 75% of 4.00 s, not launch-bound" in text
    assert "4.00 TFLOP/s in matrix products\n" in text
    assert "--what-if" not in text


def test_a_line_that_holds_all_at_the_peak_is_shown_once():
    def shown(nbytes, line=LINE):
        return as_text(with_memory(peak_shares=(Share(line, nbytes), Share(Line("train.py", 9, ""), 2048))), ())

    assert "held by" not in shown(899 * MiB)
    assert "held by            899.0 MiB  other.py:1  x\nSpeed" in shown(899 * MiB, Line("other.py", 1, "x"))
    assert "held by            800.0 MiB  train.py:12  loss.backward()\n" in shown(800 * MiB)


def test_a_large_tensor_has_its_operation_and_the_end_of_its_path():
    def shown(category="activations", operation="mul", module="h.0.mlp.act", shape=(8, 1024, 4096), count=13):
        each = Tensors(128 * MiB, count, category, shape, "float32", operation, module, LINE)
        found = Breakdown(1, "forward", "mul", "h.0", GiB, (("activations", GiB),), (each,))
        text = as_text(with_memory(breakdown=found), ())
        return next(line for line in text.splitlines() if "largest" in line)

    assert shown().endswith(" 13 x 128.0 MiB  float32 8x1024x4096  mul in h.0.mlp.act, …")
    assert shown(module="transformer." + "h.0.mlp.act").endswith("  mul in … r.h.0.mlp.act, …")
    assert shown(operation="scaled_dot_product", count=1).endswith("float32 8x1024x4096  h.0.mlp.act")
    assert shown("weights", module="").endswith("float32 8x1024x4096  weights, line 12")
    assert shown("data", "clone", module="").endswith("float32 8x1024x4096  clone, line 12")
    assert shown(operation="", shape=None).endswith(" 13 x 128.0 MiB  activations in h.0.mlp.act, …")  # FSDP's


def test_every_number_of_a_real_gpu_is_measured():
    real = replace(MEMORY, peak_used=None, peak_line=None, peak_shares=())
    report = replace(
        REPORT, gpu="NVIDIA H200", numbers="measured", gpus=(Gpu(0, real),), steps=(replace(STEPS, busy_share=None),)
    )
    text = as_text(report, hints(report))
    assert "virtual" not in text
    assert "on NVIDIA H200" in text
    spare = "14,095 MiB to spare beside the context (93%, measured)"
    assert f"Verdict: fits on NVIDIA H200 with {spare} Memory (measured)" in " ".join(text.split())
    assert "Speed (measured)" in text


def test_waiting_for_data_is_this_machines_whatever_the_gpu_and_told_once():
    waits = (replace(STEPS, waited=0.0123, waited_share=0.41),)
    virtual, real = replace(REPORT, steps=waits), replace(REPORT, steps=waits, gpu="NVIDIA H200", numbers="measured")
    for report in (virtual, real):
        (hint,) = hints(report)
        assert hint == (
            "The loop waits for data 41% of the time, 12.3 ms a step, as this machine loads it; the rest of a step "
            "takes 17.7 ms. From num_workers=1 on, with a core for each, loading keeps up."
        )
    with_workers = (STEPS, replace(waits[0], workers=2))  # each at work for two steps of 30 ms to load a batch
    assert hints(replace(virtual, steps=with_workers))[0].endswith("From num_workers=4 on, with a core for each, "
                                                                   "loading keeps up.")  # fmt: skip
    later = (replace(with_workers[1], median=0.2, parts=(("data", 0.12), ("forward", 0.08))),)  # not those loaded ahead
    (hint,) = hints(replace(virtual, steps=later))
    assert "60% of the time, 120 ms a step" in hint
    assert "takes 80.0 ms. From num_workers=5 on" in hint
    nothing_else = (replace(waits[0], waited_share=1.0),)
    assert hints(replace(real, steps=nothing_else))[0].endswith("the rest of a step takes 0 µs.")
    little = replace(real, steps=(replace(STEPS, waited=0.001, waited_share=0.05),))
    assert hints(little) == hints(replace(REPORT, gpu="NVIDIA H200", numbers="measured"))


def test_a_step_is_split_and_has_its_rates():
    split = replace(
        STEPS, parts=(("data", 0.02), ("forward", 0.04), ("backward", 0.11), ("optimizer", 0.01)),
        waited=0.02, waited_share=0.1, samples=320.4, between=Between(2, 0.010, 0.006, 3.0, 5 * MiB),
    )  # fmt: skip
    text = " ".join(as_text(replace(REPORT, steps=(split,)), ()).split())
    parts = "data 20.0 ms, forward and other 40.0 ms, backward 110 ms, optimizer 10.0 ms; of it other ranks 6.00 ms"
    assert f"a step {parts} a second 320 samples between" in text
    tokens = " ".join(as_text(replace(REPORT, steps=(replace(split, tokens=12_345.6),)), ()).split())
    assert "a second 320 samples, 12,300 tokens" in tokens
    slow = as_text(replace(REPORT, steps=(replace(split, samples=5.44),)), ())
    assert "a second        5.44 samples" in slow
    assert "a second" not in as_text(REPORT, ())


def test_a_loop_of_short_kernels_is_launch_bound():
    short = replace(TIME, busy=0.1)
    text = as_text(replace(REPORT, gpus=(replace(REPORT.gpus[0], time=short),)), ())
    assert "80% of the time from step to step, launch-bound" in text


def test_how_far_off_a_time_may_be_is_what_the_document_says():
    text = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| step time, the \w+ (?:is|are) the limit (\|.*)$", text, re.MULTILINE)
    kernels, host = ([round(float(each)) for each in re.findall(r"median ([\d.]+) %", row)] for row in rows)
    found = {gpu: f"{low} to {high}%" for gpu, low, high in zip(("H100", "H200"), kernels, host, strict=True)}
    for gpu, row in (
        ("A100-80", "NVIDIA DLE, A100-80"), ("A100-40", "rasbt gpt2 by hand, A100-40"),
        ("V100-16", "NVIDIA DLE, V100-16"), ("L40S", "HF SDPA tables, L40S"),
        ("RTX3090", "train-amp-nhwc-pt112-cu113-rtx3090"), ("RTX4090", "infer-amp-nhwc-pt240-cu124-rtx4090"),
        ("RTX5090", "infer-amp-nchw-pt291-cu130-5090"), ("RTXPRO6000-MAXQ", "infer-amp-nchw-pt291-cu130-pro6000maxq"),
    ):  # fmt: skip
        found[gpu] = re.search(rf"^\| {re.escape(row)} \| \d+ \| [^|]+ \| (\d+) % \|", text, re.MULTILINE)[1] + "%"
    assert found == OFF
    assert "Speed (virtual, published rates; median error 18%)" in as_text(replace(REPORT, gpu="A100-80"), ())


def test_what_goes_between_ranks_says_what_is_waiting():
    def shown(waited):
        between = Between(2, 0.010, 0.006, 3.0, 5 * MiB, waited)
        return " ".join(as_text(replace(REPORT, steps=(replace(STEPS, between=between),)), ()).split())

    row = "between ranks 10.0 ms of a step in 3 collectives of 5.0 MiB, 6.00 ms exposed, 4.00 ms beside kernels"
    assert row in shown(0.0)
    assert "is there" not in shown(0.0)
    assert f"{row} in 4.00 ms of it this rank is there and another is not yet" in shown(0.004)


def test_a_rank_that_is_ended_in_a_wait_says_where_and_for_whom():
    for_whom = "for rank 1, which waits in barrier (collective 9 of ranks 0, 1)"
    waits = f"all_reduce of 260 bytes (collective 9 of ranks 0, 1), {for_whom}"
    ended = Ending(143, "terminated", "SIGTERM")
    report = replace(REPORT, ending=ended, ended_at=LINE, waits_in=waits)
    assert as_text(report, ()).splitlines()[1:6] == [
        "Verdict: ended by SIGTERM, after 31.4 s here (measured)",
        "  at              train.py:12  loss.backward()",
        "  waits in        all_reduce of 260 bytes (collective 9 of ranks 0, 1), for rank",
        "                  1, which waits in barrier (collective 9 of ranks 0, 1)",
        "Memory (virtual)",
    ]
    assert as_json(report, "", ())["waits_in"] == waits


def test_ranks_and_several_gpus_are_named():
    second = replace(REPORT.gpus[0], index=1, memory=replace(MEMORY, peak_allocated=100 * MiB))
    idle = Gpu(2, replace(MEMORY, peak_allocated=0))
    text = as_text(replace(REPORT, gpus=(*REPORT.gpus, second, idle), rank=1, world_size=2), ())
    assert text.startswith("gpulab run: train.py on a virtual T4, rank 1 of 2\n")
    assert "Verdict: fits on a T4 with 13,795 MiB to spare (91%, virtual); cuda:0 is the fullest" in " ".join(
        text.split()
    )
    assert "peak            cuda:0: 900.0 MiB" in text
    assert "peak            cuda:1: 100.0 MiB" in text
    assert "cuda:2" not in text
    assert text.count("held by") == 1  # of the GPU that holds most


@pytest.mark.parametrize(
    ("ending", "says"),
    [
        (Ending(1, "error", "ValueError: no"), "ended by ValueError: no, exit code 1, after 31.4 s here (measured)"),
        (Ending(7, "exit", "sys.exit(7)"), "ended by sys.exit(7), after 31.4 s here (measured)"),
        (Ending(0, "exit", "sys.exit(0)"), "fits on a T4 with 13,795 MiB to spare (91%, virtual)"),
        (Ending(143, "terminated", "SIGTERM"), "ended by SIGTERM, after 31.4 s here (measured)"),
    ],
)
def test_the_end_is_told(ending, says):
    assert as_text(replace(REPORT, ending=ending), ()).splitlines()[1] == f"Verdict: {says}"


@pytest.mark.parametrize("gpu", ["T4", "RTXPRO6000-MAXQ", "A100-80"])
def test_no_line_is_longer_than_the_screen(gpu):
    long = Line("a/very/long/path/" * 4 + "train.py", 12, "loss = " + "model(x).sum() + " * 20)
    each = Tensors(MiB, 3, "activations", (1024,) * 9, "float32", "native_batch_norm", "layer" * 9, long)
    found = Breakdown(2, "backward", "convolution", "layer" * 20, MiB, (("weights", MiB),) * 9, (each,) * 5)
    memory = replace(MEMORY, peak_line=long, peak_shares=(Share(long, 600 * MiB),), breakdown=found)
    report = replace(
        short(replace(SHORT, line=long, shares=(Share(long, 9 * GiB),))), gpu=gpu, name="long" * 40, rank=3,
        world_size=64, imagined=True, steps=(STEPS,) * 5, ended_at=long, waits_in="all_reduce " * 20,
    )  # fmt: skip
    for each in (report, replace(report, gpus=(Gpu(0, memory, TIME),), ending=Ending(1, "error", "Error: " * 99))):
        assert max(map(len, as_text(each, hints(each)).splitlines())) <= 80


def test_what_ran_without_a_step_is_no_promise_for_training():
    text = as_text(replace(REPORT, steps=()), ())
    assert "Verdict: what ran fits on a T4 with 13,795 MiB to spare (91%, virtual)" in text


@pytest.mark.parametrize(("gpu", "named"), [("V100-16", "a V100-16"), ("H100", "an H100"), ("RTX4090", "an RTX4090")])
def test_a_gpu_has_its_article(gpu, named):
    assert f"Verdict: fits on {named} with" in as_text(replace(REPORT, gpu=gpu), ())


def test_many_optimizers_are_counted():
    text = as_text(replace(REPORT, steps=(STEPS,) * 5), ())
    assert text.count("20 of AdamW") == 3
    assert "and of 2 more optimizers: --json has all" in text


# -- hints -----------------------------------------------------------------------------------------------------------


def test_a_run_in_order_has_no_hint():
    assert hints(REPORT) == ()
    measured = replace(REPORT, numbers="measured")
    assert "What to change" not in as_text(measured, hints(measured))


@pytest.mark.parametrize(
    ("changes", "can"),
    [
        ({}, True),
        ({"rank": 0, "world_size": 8, "imagined": True}, True),
        ({"rank": 0, "world_size": 2}, False),  # torchrun's, which --what-if does not take
        ({"steps": ()}, False),
        ({"ending": Ending(1, "error", "ValueError: no")}, False),
        ({"ending": OUT, "steps": ()}, True),
        ({"numbers": "measured"}, False),
    ],
)
def test_what_if_is_named_where_it_can_say_more(changes, can):
    assert ("--what-if tries" in as_text(replace(REPORT, **changes), ())) == can


def test_what_is_reserved_in_vain_is_told():
    found = hints(with_memory(peak_allocated=10 * GiB, peak_reserved=14 * GiB, peak_used=T4 - GiB // 2))
    assert any(hint.startswith("4,096 MiB more were reserved than ever allocated") for hint in found)
    assert not any("reserved" in hint for hint in hints(with_memory(peak_allocated=13 * GiB, peak_reserved=14 * GiB)))
    plenty = with_memory(peak_allocated=3 * GiB, peak_reserved=5 * GiB, peak_used=T4 // 2)
    assert hints(plenty) == ()  # more is left than was reserved in vain


def test_a_full_gpu_that_gave_its_cache_back_is_told():
    assert any("Memory was full once" in hint for hint in hints(with_memory(retries=1)))
    assert any("Memory was full 12 times" in hint for hint in hints(with_memory(retries=12)))


def idle(share, busy=0.1, count=20, **more):
    time = replace(TIME, busy=busy)
    steps = (replace(STEPS, busy_share=share, count=count, **more),)
    return hints(replace(REPORT, gpus=(replace(REPORT.gpus[0], time=time),), steps=steps))


def test_a_gpu_that_waits_is_told_with_the_reason_where_it_is_known():
    (hint,) = idle(0.09)
    assert hint.startswith("From step to step the GPU waits for launches: ")
    assert "a kernel takes 3.3 µs on average, its launch 5.0 µs" in hint
    assert idle(0.09, busy=30.0) == ()  # large kernels: launches are not the reason
    assert "waits for launches" in idle(0.6)[0]
    assert idle(0.8) == ()
    assert idle(0.09, count=2) == ()
    (hint,) = idle(0.09, python=0.15)  # and launches take 7.5 ms a step
    assert hint.endswith("Python between the operations, which takes 150 ms a step on the host (measured here).")
    (hint,) = idle(0.09, python=0.001)
    assert "its launch 5.0 µs" in hint
    (hint,) = idle(0.09, waited=0.1, waited_share=0.5)  # for data, and that is said once
    assert hint.startswith("The loop waits for data 50% of the time, 100 ms a step")


def test_memory_that_grows_is_told():
    (hint,) = hints(replace(REPORT, steps=(replace(STEPS, growth=3 * MiB),)))
    assert hint == (
        "Allocated memory grows by 3.0 MiB a step of AdamW on average: the script keeps tensors of its steps."
    )
    (hint,) = hints(replace(REPORT, steps=(replace(STEPS, growth=3 * MiB, state_growth=3 * MiB),)))
    assert hint.endswith("on average: the optimizer's own state does, by 3.0 MiB.")


SHORT = Shortage(
    requested=6 * GiB, free=2 * GiB, allocated=10 * GiB, reserved=11 * GiB, room=T4 - 300 * MiB, line=LINE,
    shares=(Share(LINE, 9 * GiB),),
)  # fmt: skip


def short(shortage=SHORT, ending=OUT, **changes):
    memory = replace(MEMORY, failures=1, **changes)
    return replace(REPORT, ending=ending, gpus=(Gpu(0, memory, TIME, shortage),), steps=())


def test_out_of_memory_says_what_was_missing_and_which_gpu_has_it():
    text = as_text(short(), hints(replace(short(), steps=(STEPS,))))
    assert "Verdict: does not fit on a T4: 4,096 MiB missing up to that line (virtual)" in text
    assert "ran out         asked for 6,144 MiB, of which 4,096 MiB were missing" in text
    assert "asked at        train.py:12  loss.backward()" in text
    assert "held then by       9,216 MiB  train.py:12  loss.backward()" in text
    # 15,095 - 2,048 + 6,144 MiB; an RTX 3060, a T4 and a V100-16 have less.
    text = " ".join(text.split())
    assert (
        "Up to that line the run needs 19,191 MiB (virtual). The smallest GPU of the table with so much is L4" in text
    )
    assert "Speed" not in text  # the pieces of a step tell nothing of its time
    assert "--gpu L4 --shapes-only" in text
    assert "expandable_segments" not in text


def test_out_of_memory_beyond_every_gpu():
    (hint,) = hints(short(replace(SHORT, requested=1000 * GiB)))
    assert hint.endswith("MiB (virtual). No GPU of the table has so much.")


# What 13_fragmentation.py of pytorch#35901 meets on a T4.
PIECES = replace(SHORT, requested=9 * GiB, free=5579 * MiB, allocated=800 * MiB, reserved=9216 * MiB)
TRIED = Tried("end", 9 * GiB, 18_732 * MiB, "L4", expands=False, expandable=10_320 * MiB)


def test_memory_in_pieces_is_told_from_too_little_memory():
    found = hints(short(PIECES))
    assert found[0] == (
        "Memory is fragmented: 800.0 MiB are allocated, 9,216 MiB were asked for, and the allocator may have "
        "14,795 MiB (virtual); but what it has free is in pieces that are too small."
    )
    assert not any("fragmented" in hint for hint in hints(short()))
    full = replace(PIECES, allocated=T4 - 300 * MiB - PIECES.requested)
    assert full.fragmented
    assert not replace(full, allocated=full.allocated + 1).fragmented


def test_a_setting_that_was_not_tried_is_not_advised():
    assert "expandable_segments" not in " ".join(hints(short(PIECES)))


def test_what_was_tried_is_told_with_how_far_it_came():
    assert hints(short(replace(PIECES, tried=TRIED)))[1:] == (
        "With PYTORCH_ALLOC_CONF=expandable_segments:True it fits on the T4, with a peak of 10,320 MiB (virtual): "
        "tried with the same allocations to the script's end.",
        "The smallest GPU of the table with so much is L4 (22,518 MiB): --gpu L4 --shapes-only shows the whole run.",
    )
    step = short(replace(SHORT, tried=replace(TRIED, until="step", expandable=None)))
    assert as_text(step, hints(step)).count("18,732 MiB") == 1  # in the verdict
    assert (
        "Verdict: does not fit on a T4: the whole run takes 18,732 MiB, 3,637 MiB more than it has (virtual); in "
        "expandable segments it fits, with "
    ) in " ".join(as_text(short(replace(PIECES, tried=TRIED)), ()).split())
    (line,) = hints(short(replace(SHORT, tried=replace(TRIED, until="", expandable=None, gpu=None))))
    assert line == (
        "Up to that line, before the first optimizer step, the run needs 19,191 MiB (virtual). No GPU of the table has "
        "so much."
    )


def test_a_setting_that_would_not_help_is_told_where_pytorch_s_own_text_names_it():
    useless = "PYTORCH_ALLOC_CONF=expandable_segments:True does not help: tried with the same allocations"
    for much in (PIECES, replace(SHORT, reserved=17 * GiB)):
        found = hints(short(replace(much, tried=replace(TRIED, expandable=None))))
        assert sum(hint.startswith(useless) for hint in found) == 1
    on = replace(TRIED, expandable=None, expands=True)
    assert "expandable_segments" not in " ".join(hints(short(replace(PIECES, tried=on))))


def test_out_of_memory_that_the_script_survived():
    report = short(ending=Ending(0), retries=1)
    text = as_text(report, hints(report))
    assert "ran out last    asked for 6,144 MiB" in text
    assert "to spare (91%, virtual); ran out once, and went on" in " ".join(text.split())
    assert "Up to that line" not in text


def test_out_of_memory_before_the_first_step_says_so():
    (hint,) = hints(short())
    assert hint.startswith("Up to that line, before the first optimizer step, the run needs 19,191 MiB (virtual). The")


NO_STEP = "No optimizer step was seen: what training takes is not in these numbers."
CUT_SHORT = "These numbers go as far as the script came, and nothing else follows from them."


def test_without_a_step_nothing_is_said_of_training():
    assert hints(replace(REPORT, steps=())) == (NO_STEP,)
    # The optimizer's numbers may be the host's: then training was seen.
    assert hints(replace(REPORT, steps=(), host_steps=3)) == hints(REPORT)


@pytest.mark.parametrize(
    "ending",
    [Ending(1, "error", "ValueError: no"), Ending(7, "exit", "sys.exit(7)"), Ending(1, "error", "AcceleratorError: x")],
)
@pytest.mark.parametrize("steps", [(), (replace(STEPS, busy_share=0.1, growth=3 * MiB),)])
def test_after_an_error_nothing_is_concluded(ending, steps):
    report = replace(with_memory(peak_used=T4 - T4 // 25, retries=3), ending=ending, steps=steps)
    assert hints(report) == (CUT_SHORT,)
    nothing = replace(report, gpus=(Gpu(0, replace(MEMORY, peak_allocated=0)),), steps=())
    assert hints(nothing) == ()


@pytest.mark.parametrize("ending", [Ending(143, "terminated", "SIGTERM"), Ending(130, "interrupted", "")])
def test_a_run_that_was_ended_says_what_holds_until_then(ending):
    assert hints(replace(REPORT, ending=ending)) == ()
    assert hints(replace(REPORT, ending=ending, steps=())) == (NO_STEP,)


def test_nothing_on_the_gpu_is_told_where_the_script_ended_well():
    nothing = replace(REPORT, gpus=(Gpu(0, replace(MEMORY, peak_allocated=0)),), steps=())
    assert hints(nothing)[0].startswith("Nothing was put on the GPU.")
    assert hints(replace(nothing, ending=Ending(1, "error", "SyntaxError: no"))) == ()
    assert len(as_text(nothing, ()).splitlines()) == 2


def test_values_that_shapes_only_does_not_have():
    failed = replace(REPORT, shapes_only=True, ending=Ending(1, "error", "NoValues: a branch on a tensor"))
    assert hints(failed)[0].startswith("The script reads values, which --shapes-only does not have")


# -- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("AcceleratorError: CUDA error: device-side assert triggered", "out of range"),
        ("RuntimeError: Expected to mark a variable ready only once. This error is caused by", "use_reentrant=False"),
        ("IndexError: Target 11 is out of bounds.", "ignore_index"),
        ("RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly", "num_workers=0"),
        ("DistNetworkError: The server socket EADDRINUSE, message: address already in use", "port"),
    ],
)
def test_a_known_error_has_its_row_of_the_document(why, says):
    row, last = hints(replace(REPORT, ending=Ending(1, "error", why)))
    assert row.startswith("A known cause of this message (docs/errors.md): ")
    assert says in row
    assert re.search(r" Lesson \d\d\.$", row)
    assert last == CUT_SHORT


@pytest.mark.parametrize(
    "why",
    [
        "ValueError: load_state_dict",
        "RuntimeError",
        "KeyError: 'checkpoint_sequential'",
        "RuntimeError: worker 3 has 1.50 GiB, and no more",  # the document's is 17179869184.00 GiB
        "RuntimeError: worker 3: Tried to allocate 128.00 MiB",  # 20.00 MiB
        "ZeroDivisionError: integer division or modulo by zero",  # without a GPU: here is one
        "ValueError: invalid literal for int() with base 10: '12a'",  # Python's own words, for many causes
        "ValueError: range() arg 3 must not be zero",
        "OSError: [Errno 22] Invalid argument: 'a:b'",
    ],
)
def test_an_error_that_the_document_does_not_have_gets_no_row(why):
    assert hints(replace(REPORT, ending=Ending(1, "error", why))) == (CUT_SHORT,)


def test_json_has_all_of_it():
    read = json.loads(json.dumps(as_json(short(), "a line", ("a hint",))))
    assert read["gpus"][0]["shortage"]["shares"][0]["line"] == {"file": "train.py", "line": 12, "code": LINE.code}
    assert read["gpus"][0]["time"]["kernels"] == 30_000
    assert (read["verdict"], read["hints"]) == ("a line", ["a hint"])


@pytest.mark.parametrize(
    ("path", "rank", "name"), [("r.json", None, "r.json"), ("r.json", 0, "r.rank0.json"), ("r", 3, "r.rank3")]
)
def test_each_rank_has_a_file(path, rank, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json_path(path, rank) == tmp_path / name


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "0 µs"), (3.21e-6, "3.21 µs"), (0.00085, "850 µs"), (0.0009996, "1.00 ms"), (0.16449, "164 ms"),
     (0.9996, "1.00 s"), (12.34, "12.3 s"), (119.6, "120 s"), (125, "2 min 05 s"), (7200, "120 min 00 s")],
)  # fmt: skip
def test_durations(seconds, says):
    assert duration(seconds) == says


@pytest.mark.parametrize(
    ("number", "says"),
    [(1.31e12, "1.31 T"), (45.2e6, "45.2 M"), (850, "850 "), (999.7e9, "1.00 T"), (9.55e3, "9.55 k")],
)
def test_amounts(number, says):
    assert with_prefix(number) == says
