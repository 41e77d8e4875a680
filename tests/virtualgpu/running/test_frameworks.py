"""What people train with: scripts on well-known libraries in scripts/frameworks/, none of which knows of gpulab.

With values and on shapes alone they take the same memory to the byte; with values their losses are the CPU's.
"""

import functools
import gc
import json
import os
import runpy
import sys
from unittest import mock

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope.refusals import NoValues

from .starting import SCRIPTS, start

FOLDER = SCRIPTS / "frameworks"
GPU = "A100-40"
PRECISIONS = {"--fp16", "--bf16", "--amp", "fp16", "bf16", "16-mixed", "bf16-mixed", "float16", "bfloat16"}
NEEDS = {
    "trainer": "transformers accelerate", "lit": "lightning", "accelerated": "accelerate", "timm_step": "timm",
    "qlora": "bitsandbytes peft transformers accelerate",
}  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the scripts take the real GPU, and not the CPU"),
    pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes"),
    pytest.mark.filterwarnings("ignore:.*(GradScaler|CUDA is not available|dataloader|num_workers)"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _as_in_a_new_process(capfd):
    """What the libraries leave in the environment and in singletons is not the next script's."""
    with mock.patch.dict(os.environ):
        for name in ("GPULAB_GPU", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
        yield
        forget()


def forget():
    state = sys.modules.get("accelerate.state")
    if state is not None:  # it remembers the device
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def needed(script):
    for name in NEEDS.get(script, "").split():
        pytest.importorskip(name)


def names_of(script, *arguments):
    """What is left of a script at its end."""
    forget()
    with mock.patch.object(sys, "argv", [script, *arguments]):
        return runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")


@functools.cache
def losses_of_the_host(script, *arguments):
    return names_of(script, *arguments)["losses"]


@functools.cache
def on_gpu(script, *arguments, compute):
    """The losses as they are printed, and the memory: the peaks, and what is held at the end."""
    with VirtualGPU(GPU, compute=compute):
        names = names_of(script, *arguments)
        gc.collect()
        memory = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_allocated()
        losses = names["losses"]
        names.clear()
        gc.collect()
        if "bitsandbytes" in sys.modules:
            sys.modules["bitsandbytes"].functional.name2qmap.clear()  # a table, for as long as the program runs
        torch._C._cuda_clearCublasWorkspaces()  # of PyTorch before 2.15, for as long as the program runs
        assert torch.cuda.memory_allocated() == 0  # nothing of it stays
    return losses, memory


@pytest.mark.parametrize(
    "words",
    [
        "trainer", "trainer --fp16", "trainer --bf16", "lit", "lit 16-mixed", "lit bf16-mixed", "accelerated",
        "accelerated fp16", "timm_step resnet10t --amp", "timm_step vit_tiny_patch16_224", "nanogpt",
        "nanogpt float16", "nanogpt bfloat16", "encoder", "encoder float16", "diffusion", "diffusion float16",
        "qlora", "qlora bf16 double",
    ],
)  # fmt: skip
def test_the_memory_is_the_same_in_both_modes_and_the_losses_are_the_cpu_s(words):
    script, *arguments = words.split()
    needed(script)
    losses, memory = on_gpu(script, *arguments, compute=True)
    unknown, without_values = on_gpu(script, *arguments, compute=False)
    assert without_values == memory
    assert [str(loss) for loss in unknown] == ["unknown"] * len(losses)
    plain = [word for word in arguments if word not in PRECISIONS]
    within = 1e-5 if plain == arguments else 2e-2  # the CPU computes in 32 bits in any case
    assert losses == pytest.approx(losses_of_the_host(script, *plain), rel=within)


def test_a_detector_runs_with_values_and_names_what_needs_them():
    pytest.importorskip("torchvision")
    losses, (peak, _, held) = on_gpu("detection", compute=True)
    assert losses == pytest.approx(losses_of_the_host("detection"), rel=1e-5)
    assert peak > held > 12 * 18_000_000  # its weights, gradients and momenta
    with pytest.raises(NoValues, match=r"aten\.nonzero\.default depends on values"):
        on_gpu("detection", compute=False)


def test_what_a_model_in_four_bits_takes_by_hand():
    """A Llama of two layers of 256, 4 heads and 512 within, 512 tokens; each tensor takes a multiple of 512 bytes."""
    needed("qlora")

    def linear(weights):
        blocks = weights // 64  # a scale of 8 bits each, with a scale of 32 bits for 256 of them, and their mean
        return weights // 2 + blocks + taken(blocks // 256 * 4) + 512 + 1024 + taken(16 * 4)  # and the two tables

    layer = 4 * linear(256 * 256) + 3 * linear(256 * 512) + 2 * taken(256 * 2)
    embeddings = 2 * 512 * 256 * 2  # what reads tokens and what gives them stay as they are, in bfloat16
    others = 2 * taken(32 * 4) + 256 * 4  # rotary frequencies, and bitsandbytes' table for all layers
    with VirtualGPU(GPU, compute=False):
        assert names_of("qlora", "bf16", "double")["loaded"] == 2 * layer + embeddings + taken(256 * 2) + others


def taken(nbytes):
    return -(-nbytes // 512) * 512


@pytest.mark.parametrize(("script", "steps"), [("trainer", 8), ("lit", 8), ("accelerated", 6), ("qlora", 3)])
def test_the_report_of_a_library_s_loop(run, script, steps):
    needed(script)
    done = run(FOLDER / f"{script}.py", options=["--shapes-only", "--gpu", GPU])
    assert done.code == 0, done.err
    optimizer = "PagedAdamW8bit" if script == "qlora" else "AdamW"
    assert [(each.optimizer, each.count) for each in done.report.steps] == [(optimizer, steps)]
    memory = done.report.used[0].memory
    assert f"{script}.py" in str(memory.peak_line)  # the line of the script, not of the library
    _, (peak, reserved, _) = on_gpu(script, compute=True)
    assert (memory.peak_allocated, memory.peak_reserved) == (peak, reserved)


@pytest.mark.parametrize("words", ["trainer --bf16", "lit 16-mixed"])
def test_as_a_user_starts_it(words, tmp_path):
    script, *arguments = words.split()
    needed(script)
    options = ["--shapes-only", "--gpu", GPU, "--json", tmp_path / "report.json"]
    done = start(*options, FOLDER / f"{script}.py", *arguments)
    assert done.returncode == 0, done.stderr
    read = json.loads((tmp_path / "report.json").read_text())
    assert (read["ending"]["kind"], read["steps"][0]["count"]) == ("finished", 8)
    memory = read["gpus"][0]["memory"]
    _, (peak, reserved, _) = on_gpu(script, *arguments, compute=True)
    assert (memory["peak_allocated"], memory["peak_reserved"]) == (peak, reserved)
