"""Training scripts of the kinds that people have, unmodified, in scripts/: none of them knows of gpulab."""

import json
import re
import runpy

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.operations.products import keeps_workspaces
from virtualgpu.running import sandbox

from .starting import SCRIPTS

SHAPES = ["--shapes-only"]
pytestmark = pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")


def gpu(done):
    (only,) = done.report.used
    return only


@pytest.mark.skipif(torch.cuda.is_available(), reason="the script takes the real GPU, and not the CPU")
def test_a_plain_loop_has_the_losses_of_the_cpu_and_a_report(run):
    host = runpy.run_path(str(SCRIPTS / "loop.py"), run_name="__main__")
    assert host["device"] == "cpu"
    done = run("loop")
    assert done.code == 0
    assert done.names["device"] == "cuda"
    assert done.names["losses"] == pytest.approx(host["losses"], rel=1e-5)

    memory, time = gpu(done).memory, gpu(done).time
    # Three layers' worth of weights, gradients and momenta; at the end the input, the last loss and they are left.
    assert 3 * 4 * (32 * 64 + 64 + 64 + 1) < memory.end_allocated < memory.peak_allocated < memory.peak_reserved
    assert memory.peak_reserved < memory.peak_used < memory.total
    assert sum(share.nbytes for share in memory.peak_shares) <= memory.peak_allocated
    assert memory.peak_line.code == "loss.backward()"
    assert 0 < time.busy < time.elapsed
    (steps,) = done.report.steps
    assert (steps.optimizer, steps.count, steps.parameters) == ("SGD", 12, 32 * 64 + 64 + 64 + 1)
    assert 0 < steps.median < time.elapsed / 11
    assert steps.growth == 0

    assert done.out.startswith("cuda: loss")  # only the script's
    assert "loop.py:17  loss.backward()" in done.text
    assert "12 of SGD" in done.text
    assert len(done.text.splitlines()) <= 28
    assert max(map(len, done.text.splitlines())) <= 80


def test_shapes_only_gives_the_same_memory_and_time_without_values(run):
    done, shapes = (run("loop", options=["--repeatable", *more]) for more in ((), SHAPES))
    assert set(map(str, shapes.names["losses"])) == {"unknown"}
    assert gpu(shapes).memory == gpu(done).memory
    assert gpu(shapes).time.busy == gpu(done).time.busy
    assert shapes.report.steps[0].median == pytest.approx(done.report.steps[0].median)
    assert "on a virtual T4, shapes only" in shapes.text
    assert 0.5 < shapes.report.remembered / shapes.report.operations < 1
    assert done.report.operations == 0


def test_an_image_classifier_gets_its_own_options(run):
    done = run("classifier", "--json", "-b", "4", "--gpu", "0", options=["--gpu", "L4"])
    assert done.code == 0
    assert done.out.startswith("{'epoch': 0, 'loss': ")
    assert done.report.gpu == "L4"
    assert done.report.argv[1:] == ("--json", "-b", "4", "--gpu", "0")
    assert done.report.steps[0].count == 4
    weights = 4 * done.report.steps[0].parameters
    assert gpu(done).memory.peak_allocated > 3 * weights  # with gradients and momenta


def test_an_image_classifier_in_shapes_only_takes_any_batch(run):
    done = run("classifier", "-b", "512", options=[*SHAPES, "--gpu", "A100-40"])
    assert done.code == 0
    assert gpu(done).memory.peak_allocated > 800 << 20


def gpt(run, *options):
    """nanoGPT's loop, which resets the peak after each step; the report's is that of the whole run."""
    done = run(SCRIPTS / "frameworks" / "nanogpt.py", "float16", "peaks", options=options)
    assert done.code == 0
    assert (done.report.steps[0].count, done.report.steps[0].optimizer) == (6, "AdamW")
    said = max(int(line.split()[1]) for line in done.out.splitlines() if line.startswith("peak"))
    assert gpu(done).memory.peak_allocated == said
    return done


@pytest.mark.parametrize("options", [[], SHAPES], ids=["values", "shapes"])
def test_a_gpt_with_accumulation_and_autocast(run, options):
    gpt(run, *options)


def test_a_gan_has_two_optimizers(run):
    done = run(SCRIPTS.parents[1] / "scripts" / "gan.py")
    assert done.code == 0
    assert [(steps.optimizer, steps.count) for steps in done.report.steps] == [("Adam", 6), ("Adam", 3)]
    assert done.report.steps[1].median > 1.5 * done.report.steps[0].median  # every other time


def test_checkpoints_are_plain_ones_and_training_goes_on_from_them(run, tmp_path):
    assert run("checkpoints", tmp_path, 2).code == 0
    saved = torch.load(tmp_path / "last.pt", map_location="cpu")  # no virtual GPU is in force here
    assert saved["epoch"] == 2
    assert saved["model"]["layers.0.weight"].device.type == "cpu"
    moments = saved["optimizer"]["state"][0]["exp_avg"]
    assert moments.abs().sum() > 0

    again = run("checkpoints", tmp_path, 4)
    assert "resumed from epoch 2 on cuda:0" in again.out
    assert again.report.steps[0].count == 2


def test_workers_that_are_forked_do_not_report(run):
    done = run("workers", "fork")
    assert done.out == "2 workers, main __main__\n"
    assert done.err.count("gpulab run:") == 1
    assert done.report.steps[0].count == 8


def test_out_of_memory_ends_in_pytorchs_traceback_and_says_what_would_help(run):
    done = run("too_large", options=SHAPES)
    assert done.code == 12
    trace, _, report = done.err.partition("\n\ngpulab run: ")
    assert re.findall(r'File ".*?(\w+\.py)", line \d+, in (\S+)', trace)[:2] == [
        ("too_large.py", "<module>"),
        ("too_large.py", "activations"),
    ]
    assert "/virtualgpu/" not in trace.replace(str(SCRIPTS), "")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.05 GiB. GPU 0 has a total" in trace
    short = gpu(done).shortage
    assert short.requested == -(-200_000 * 4096 * 4 // (2 << 20)) * (2 << 20)  # a segment is a multiple of 2 MiB
    assert short.line.code == 'return model(torch.randn(batch, 4096, device="cuda"))'
    assert short.free < short.requested
    assert sum(share.nbytes for share in short.shares) == short.allocated
    assert "The smallest GPU of the table with so much is" in " ".join(report.split())
    assert len(report.splitlines()) <= 28


NO_STEP = "No optimizer step was seen: what training takes is not in these numbers."
CUT_SHORT = "These numbers go as far as the script came, and nothing else follows from them."
SO_MUCH = 1_049_902 + 20 * keeps_workspaces()  # before 2.15 cuBLAS's workspace stays, in a segment of 20 MiB
NEED = f"the run needs {SO_MUCH:,} MiB (virtual). No GPU of the table has so much."
# On shapes a copy of the run goes on over the limit; with values that ends where this machine's memory does. What the
# allocator has cached, 20 MiB after training, it gives back only where it must.
ON = "No GPU of the table has so much."


@pytest.mark.parametrize("options", [[], SHAPES], ids=["values", "shapes"])
@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        ("load", 0, NO_STEP),
        ("infer", 0, NO_STEP),
        ("backward", 0, NO_STEP),
        ("train", 0, None),
        ("load raise", 1, CUT_SHORT),
        ("train raise", 1, CUT_SHORT),
        ("train exit", 3, CUT_SHORT),
        ("infer memory", 12, f"Up to that line, before the first optimizer step, {NEED}"),
        ("train memory", 12, f"Up to that line {NEED}"),
    ],
)
def test_conclusions_go_no_further_than_what_was_seen(run, tmp_path, options, arguments, code, hint):
    whole = ""
    if options and arguments.endswith("memory") and sandbox.is_supported():
        hint, whole = ON, f"the whole run takes {SO_MUCH + 20 * arguments.startswith('train'):,} MiB, "
    options = [*options, "--gpu", "A100-40", "--json", tmp_path / "report.json"]
    done = run("stages", *arguments.split(), options=options)
    assert done.code == code
    read = json.loads((tmp_path / "report.json").read_text())
    assert read["hints"] == ([] if hint is None else [hint])
    assert bool(read["steps"]) == arguments.startswith("train")
    told = " ".join(done.text.split())
    assert (f"What to change - {hint}" in told) == (hint is not None)
    assert whole in told
    assert ("Verdict: fits on an A100-40" in told) == (hint is None)
    # What was seen is told in any case.
    assert gpu(done).memory.peak_allocated > 1 << 30
    assert "peak 1,0" in told


def test_json_holds_the_report_and_its_hints(run, tmp_path):
    done = run("loop", options=["--json", tmp_path / "report.json"])
    read = json.loads((tmp_path / "report.json").read_text())
    assert read["format"] == "gpulab run, 2"
    assert (read["name"], read["gpu"], read["numbers"], read["rank"]) == ("loop.py", "T4", "virtual", None)
    assert read["ending"] == {"code": 0, "kind": "finished", "why": ""}
    assert read["gpus"][0]["memory"]["peak_allocated"] == gpu(done).memory.peak_allocated
    assert read["steps"][0]["count"] == 12
    assert isinstance(read["hints"], list)


def test_json_to_standard_output_comes_after_the_script_s(run):
    done = run("loop", options=["--json", "-"])
    first, _, rest = done.out.partition("\n")
    assert first.startswith("cuda: loss")
    assert json.loads(rest)["name"] == "loop.py"


def test_what_is_kept_with_every_step_is_told(run):
    done = run("keeps")
    assert done.report.steps[0].growth == 512
    assert "grows by 512 bytes a step of SGD on average: the script keeps tensors of its steps" in " ".join(
        done.text.split()
    )


def test_a_real_gpu_gives_measured_numbers(run):
    """torch.cuda answers for a real GPU; here a virtual one of which the run is not told stands behind it."""
    with VirtualGPU("L4"):
        before = torch.cuda.memory_allocated()
        done = gpt(run, "--gpu", "real")
        assert torch.cuda.memory_allocated() >= before
    report = done.report
    assert (report.gpu, report.numbers) == ("NVIDIA L4", "measured")
    assert gpu(done).time is None
    assert report.steps[0].median > 0
    assert "virtual" not in done.text
