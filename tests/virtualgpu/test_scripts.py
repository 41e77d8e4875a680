"""Ordinary training scripts, unchanged, on the virtual GPU: the losses of the CPU, no memory left, nothing said aloud.

scripts/ holds them, as students write them: none knows of gpulab.
"""

import functools
import gc
import math
import os
import runpy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch._dynamo  # it replaces torch.manual_seed, and is imported by the first optimizer anyway
from courselib.patience import HANG_SECONDS
from courselib.ready import PLACE, python_here, ranks_here

from gpulab.exercise.machines import without_gpu
from virtualgpu.gpu import VirtualGPU

SCRIPTS = Path(__file__).parent / "scripts"
UNKNOWN = "knows only shapes, not values"
START = """
import os, runpy, sys
from virtualgpu.gpu import VirtualGPU
VirtualGPU("T4", count=int(os.environ.get("GPUS", os.environ.get("LOCAL_WORLD_SIZE", "1")))).start()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Script:
    """A script and what it can be held to."""

    name: str
    args: tuple[str, ...] = ()
    host: bool = True  # it runs without a GPU too, with the same numbers
    shapes: bool = True  # it reads no values
    tolerance: float = 1e-5
    warns: tuple[str, ...] = ()
    count: int = 1
    keeps: int = 0  # bytes that PyTorch has for good from then on

    def __str__(self) -> str:
        return "-".join((self.name, *self.args))


ALL = [
    Script("amp", ("float16",), host=False),
    Script("amp", ("bfloat16",), host=False),
    Script("amp_old_names", host=False, warns=("torch.cuda.amp.GradScaler", "torch.cuda.amp.autocast")),
    Script("amp_overflow", host=False, shapes=False),
    Script("checkpointing"),
    # torch.jit is what PyTorch 2.11 imports with its compiler
    Script("compiled", warns=("torch.compile runs the code as it is written", "torch.jit.script_method")),
    Script("creation", host=False, warns=("Sparse invariant checks",)),
    Script("ema"),
    Script("encoder"),
    Script("evaluation"),
    Script("functional", warns=("torch.jit.script",)),
    Script("gan"),
    Script("gradient_penalty"),
    Script("halves", tolerance=1e-2),
    Script("hooks"),
    # Python 3.12 and later say it where a process with threads forks, whatever makes the workers
    Script("loader", warns=("use of fork() may lead to deadlocks in the child",)),
    Script("lora"),
    Script("many_losses"),
    Script("mnist"),
    Script("needs_values", shapes=False),
    Script("norms"),
    Script("optimizers", warns=("Sparse invariant checks",)),
    # The latter is of 2.11
    Script("profile_schedule", host=False, warns=("columns of memory are those of this machine", "Profiler clears")),
    Script("recurrent", keeps=24 * 40 * 1024),  # the state of cuDNN's dropout, for each thread that a T4 holds
    Script("resume"),
    Script("schedulers"),
    Script("several_gpus", host=False, count=2),
    Script("unet"),
    *(Script("vision", (name,)) for name in ("resnet18", "resnet50", "mobilenet_v3_small", "vit_b_16")),
    *(Script("vision", (name,)) for name in ("convnext_tiny", "swin_t")),
]


@dataclass(frozen=True)
class Result:
    losses: list[float]
    warnings: list[str]
    peak: int = 0
    left: int = 0


@functools.cache
def run(script: Script, mode: str) -> Result:
    """Run it in this process: on the "host", on a virtual GPU that can "compute", or on one of "shapes" only."""
    before = surface()
    argv, sys.argv = sys.argv, [script.name, *script.args]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if mode == "host":
                with without_gpu():  # a real one, of which there may be one, has other numbers
                    found = runpy.run_path(str(SCRIPTS / f"{script.name}.py"), run_name="__main__")
                result = Result(numbers(found), texts(caught))
            else:
                with VirtualGPU("T4", count=script.count, compute=mode == "compute"):
                    found = runpy.run_path(str(SCRIPTS / f"{script.name}.py"), run_name="__main__")
                    losses = numbers(found)
                    found.clear()
                    gc.collect()
                    torch._C._cuda_clearCublasWorkspaces()
                    peak, left = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
                result = Result(losses, texts(caught), peak, left)
    finally:
        sys.argv = argv
    after = surface()
    assert not [name for name in before if before[name] is not after.get(name)], "the scope has left patches behind"
    return result


def numbers(found: dict) -> list[float]:
    return [*found.get("losses", []), *found.get("values", [])]


def texts(caught: list) -> list[str]:
    return sorted({str(warning.message) for warning in caught if warning.category is not ResourceWarning})


def surface() -> dict:
    """The objects behind every public and private name that a scope may replace."""
    owners = torch, torch.Tensor, torch.UntypedStorage, torch.cuda, torch.accelerator, torch._C, torch.distributed
    return {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}


def unexpected(script: Script, result: Result, also: tuple[str, ...] = ()) -> list[str]:
    return [text for text in result.warnings if not any(known in text for known in (*script.warns, *also))]


@pytest.mark.parametrize("script", [s for s in ALL if s.host], ids=str)
def test_gives_the_numbers_of_the_cpu(script):
    host, gpu = run(script, "host"), run(script, "compute")
    assert gpu.losses == pytest.approx(host.losses, rel=script.tolerance, abs=script.tolerance)
    assert all(map(math.isfinite, gpu.losses))
    assert not unexpected(script, host), "on the CPU"


@pytest.mark.parametrize("script", ALL, ids=str)
def test_runs_quietly_and_gives_all_memory_back(script):
    result = run(script, "compute")
    assert result.left == script.keeps
    assert result.peak > 0
    assert not unexpected(script, result)


@pytest.mark.parametrize("script", [s for s in ALL if s.shapes], ids=str)
def test_takes_the_same_memory_without_values(script):
    result, computed = run(script, "shapes"), run(script, "compute")
    assert result.left == script.keeps
    assert result.peak == computed.peak
    assert len(result.losses) == len(computed.losses)
    assert not unexpected(script, result, (UNKNOWN,))
    assert sum(UNKNOWN in text for text in result.warnings) <= 1


# -- what needs a process of its own ---------------------------------------------------------------------------------


def start(*arguments, **environment):
    """Run a script as a user would."""
    command = [*python_here(), *(arguments if arguments[0] == "-m" else ("-c", *arguments))]
    env = {**os.environ, **ranks_here(), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=env, check=True)


def test_a_script_of_its_own_ends_cleanly_and_says_nothing_on_stderr(monkeypatch):
    monkeypatch.delenv(PLACE, raising=False)  # from its very start to its very end
    done = start(START, str(SCRIPTS / "mnist.py"))
    assert done.stdout.count("accuracy") == 2
    assert done.stderr == ""


def test_the_profiler_does_not_flood_stderr(capfd):
    run.__wrapped__(next(s for s in ALL if s.name == "profile_schedule"), "compute")
    said = capfd.readouterr().err
    assert "Exception raised" not in said
    assert "CUDA event" not in said


LAUNCH = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"


@pytest.mark.slow
def test_two_ranks_under_torchrun_train_with_the_losses_of_gloo(tmp_path):
    rank = tmp_path / "rank.py"
    rank.write_text(START)
    script = str(SCRIPTS / "ddp.py")
    host = [
        line for line in start(*LAUNCH, script, CUDA_VISIBLE_DEVICES="").stdout.splitlines() if line.startswith("epoch")
    ]
    done = start(*LAUNCH, str(rank), script, "view")
    lines = done.stdout.splitlines()
    assert len(host) == 2
    assert [line for line in lines if line.startswith("epoch")] == host
    assert done.stdout.count("on Tesla T4 cuda:") == 2, done.stdout  # two processes may write into one line
    assert "Error" not in done.stderr


@pytest.mark.slow
def test_spawned_processes_have_the_same_gpus():
    done = start(START, str(SCRIPTS / "ddp_spawn.py"), GPUS="2")
    for rank in range(2):  # two processes may write into one line
        assert done.stdout.count(f"rank {rank}: nccl on cuda:{rank}") == 1, done.stdout


@pytest.mark.slow
def test_a_script_that_chooses_its_gpu_at_the_top_may_start_processes():
    done = subprocess.run(
        [*python_here(), str(SCRIPTS / "spawn_setup.py")],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    for rank in range(2):
        assert done.stdout.count(f"rank {rank}: NVIDIA A100-SXM4-80GB 1000") == 1, done.stdout
    assert done.stdout.count("done") == 1
