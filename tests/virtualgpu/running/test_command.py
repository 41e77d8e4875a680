"""The options: what they choose, what is refused before anything runs; scripts that use `gpulab` themselves."""

import gc
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.running import command
from virtualgpu.running.target import CannotRun
from virtualgpu.scope import in_force

from .starting import SCRIPTS, options_of, start

LOOP = SCRIPTS / "loop.py"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("GPULAB_GPU", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def prepared(*arguments):
    return command.prepare(options_of(*arguments))


@pytest.mark.parametrize(
    ("arguments", "environment", "name", "count", "compute"),
    [
        ([], {}, "T4", 1, True),
        ([], {"GPULAB_GPU": "virtual:L4"}, "L4", 1, True),
        ([], {"GPULAB_GPU": "auto"}, "T4", 1, True),
        (["--gpu", "a100-80"], {"GPULAB_GPU": "L4"}, "A100-80", 1, True),
        (["--gpus", "3", "--shapes-only"], {}, "T4", 3, False),
        ([], {"LOCAL_WORLD_SIZE": "4"}, "T4", 4, True),
        (["--gpus", "2"], {"LOCAL_WORLD_SIZE": "4"}, "T4", 2, True),
    ],
)
def test_the_gpu_is_the_option_s_or_the_environment_s_or_a_t4(
    arguments, environment, name, count, compute, monkeypatch
):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    gpu = prepared(*arguments, LOOP).gpu
    assert (gpu.spec.name, gpu.count, gpu.compute) == (name, count, compute)
    assert in_force.current is None  # it is not in force yet


@pytest.mark.parametrize(
    ("arguments", "script", "theirs"),
    [
        ([LOOP], "loop.py", ()),
        ([LOOP, "--gpu", "T5", "-m", "x", "--", "y"], "loop.py", ("--gpu", "T5", "-m", "x", "--", "y")),
        (["--gpu", "L4", LOOP, "--shapes-only", "--json"], "loop.py", ("--shapes-only", "--json")),
        (["--", LOOP, "--help"], "loop.py", ("--help",)),
        (["--gpu", "L4", "-m", "json.tool", "--gpu", "x"], "-m json.tool", ("--gpu", "x")),
    ],
)
def test_what_comes_after_the_script_is_the_script_s(arguments, script, theirs):
    target = prepared(*arguments).target
    assert (target.name, target.argv[1:]) == (script, theirs)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no script is given"),
        (["-m"], "-m needs the name of a module"),
        (["nothing.py"], "no such file"),
        (["--gpu", "T5", LOOP], "gpu='T5' names no machine.*Known: T4"),
        (["--gpu", "A100", LOOP], "Did you mean 'A100-40' or 'A100-80'"),
        (["--gpus", "0", LOOP], "from 1 to 64, not 0"),
        (["--gpu", "real", "--gpus", "2", LOOP], "--gpus is for virtual GPUs"),
        (["--gpu", "real", "--shapes-only", LOOP], "--shapes-only is for virtual GPUs"),
        (["--json", "/no/such/folder/r.json", LOOP], "there is no directory '/no/such/folder'"),
        (["--json", "/", LOOP], "it is a directory"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(arguments, says):
    with pytest.raises((CannotRun, ValueError), match=says):
        prepared(*arguments)
    assert in_force.current is None


def test_the_hosts_own_time_counts_unless_times_are_to_repeat(run):
    assert command.prepare(options_of(LOOP)).gpu.counts_host
    assert not command.prepare(options_of("--repeatable", LOOP)).gpu.counts_host
    again = [run("loop", options=["--repeatable"]).report for _ in range(2)]
    assert again[0].steps[0].median == again[1].steps[0].median
    assert again[0].gpus == again[1].gpus
    assert again[0].steps[0].python is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
def test_a_real_gpu_is_asked_for_where_there_is_none(capfd):
    assert command.main(options_of("--gpu", "real", LOOP)) == 2
    said = capfd.readouterr().err
    assert said.startswith("gpulab run: --gpu real: PyTorch finds no CUDA GPU here.")
    assert "python -m gpulab doctor" in said


def test_everything_is_put_back_afterwards(run):
    def surroundings():
        from multiprocessing import spawn

        from torch.optim import optimizer

        return (
            sys.argv, sys.path[:], sys.modules["__main__"], signal.getsignal(signal.SIGTERM), VirtualGPU.start,
            VirtualGPU.__enter__, spawn.get_preparation_data, dict(optimizer._global_optimizer_post_hooks),
            torch.cuda.is_available, in_force.current,
        )  # fmt: skip

    before = surroundings()
    run("loop")
    assert surroundings() == before


# -- the help, and exit codes ----------------------------------------------------------------------------------------

PAGE = Path(command.__file__).parents[2] / "docs" / "virtual_gpu.md"


def the_help(*words):
    """What `python -m gpulab … --help` prints, and the examples in it."""
    text = start(*words, "--help", module="gpulab.__main__").stdout
    return text, [
        shlex.split(line, comments=True)
        for line in re.findall(r"^  (?:timeout 60 )?(python -m .*?)(?:   |$)", text, re.M)
    ]


def test_every_example_of_the_help_is_a_command_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(command, "check_json", lambda path: None)
    text, examples = the_help("run")
    assert len(examples) == 5
    assert max(map(len, text.splitlines())) <= 80
    for python, m, gpulab, run, *arguments in examples:
        assert [python, m, gpulab, run] == ["python", "-m", "gpulab", "run"]
        options = options_of(*arguments)
        assert "train" in (options.module or options.script)[0]
        if options.module is None:
            prepared(*arguments)  # raises for what is not there


def test_the_page_names_the_exit_codes_that_the_help_names():
    in_help = re.findall(r"^  (\d+) +\S", the_help("run")[0].partition("exit codes:")[2], re.MULTILINE)
    table = PAGE.read_text(encoding="utf-8").partition("| exit code of `run`")[2].partition("\n\n")[0]
    assert in_help == ["0", "2", "12", "130", "143"] == re.findall(r"^\| (\d+) \|", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "code", "verdict"),
    [
        ("x = torch.ones(9, device='cuda')", 0, "what ran fits on a T4"),
        ("x = torch.empty(99 << 30, dtype=torch.uint8, device='cuda')", 12, "does not fit on a T4"),
        (
            "try:\n    torch.empty(99 << 30, device='cuda')\nexcept torch.OutOfMemoryError:\n    pass",
            0,
            "what ran fits",
        ),
        (
            "try:\n    torch.empty(99 << 30, device='cuda')\nexcept torch.OutOfMemoryError:\n    sys.exit(3)",
            3,
            "ended by sys.exit(3)",
        ),
        ("raise MemoryError('the host has none')", 1, "ended by MemoryError: the host has none, exit code 1"),
        ("raise KeyboardInterrupt", 130, "ended by KeyboardInterrupt, exit code 130"),
    ],
)
def test_the_exit_code_says_how_it_ended(written, source, code, verdict):
    done = written(f"import sys\nimport torch\n{source}\n", ["--shapes-only"])
    assert done.code == code, done.err
    assert f"Verdict: {verdict}" in done.text


@pytest.mark.parametrize("arguments", [["nothing.py"], ["--gpu", "T5", LOOP], ["--scaling", LOOP], ["-m"], []])
def test_what_cannot_be_run_has_a_code_of_its_own(arguments, capfd):
    assert command.main(options_of(*arguments)) == 2
    assert capfd.readouterr().err.startswith("gpulab run: ")


def test_a_run_on_one_gpu_that_fails_is_said_and_not_a_traceback(monkeypatch, capfd):
    def fails(options):
        raise CannotRun("--scaling: on one GPU: no such file")

    monkeypatch.setattr(command, "run_on_one_gpu", fails)
    assert command.main(options_of("--ranks", "2", "--scaling", LOOP)) == 2
    assert capfd.readouterr().err == "gpulab run: --scaling: on one GPU: no such file\n"


# -- gpulab within a script ------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path, run):
    """`written(source, options=[…])` runs a script of this source."""

    def go(source, options=()):
        path = tmp_path / "lesson.py"
        path.write_text(source)
        return run(path, options=options)

    yield go
    gc.collect()


SETUP = "import gpulab, torch\nmachine = gpulab.setup({})\nx = torch.ones(1000, 1000).to(machine.device)\n"


@pytest.mark.parametrize(
    ("asked", "options", "gpu"),
    [
        ("", [], "T4"),
        ("", ["--gpu", "L4"], "L4"),  # what the command line chose, and not the environment
        ("'auto'", ["--gpu", "L4"], "L4"),
        ("'T4'", [], "T4"),
        ("'A100-80'", [], "A100-80"),  # the script decides where the command line does not
        ("'A100-80'", ["--gpu", "L4"], "L4"),
        ("'real'", ["--gpu", "L4"], "L4"),
        ("", ["--gpus", "2"], "T4"),
    ],
)
def test_a_script_that_calls_setup(written, asked, options, gpu):
    done = written(SETUP.format(asked), options)
    assert done.code == 0, done.err
    assert done.report.gpu == gpu
    assert done.report.used[0].memory.end_allocated == 4_000_256
    assert f"This notebook uses a virtual {gpu}" in done.out
    overruled = asked in ("'A100-80'", "'real'") and bool(options)
    assert (f"is overruled by `python -m gpulab run --gpu {gpu}`" in " ".join(done.out.split())) == overruled


def test_a_script_that_closes_its_machine(written):
    done = written(SETUP.format("") + "machine.close()\nprint(torch.cuda.is_available(), x.device)\n")
    assert done.code == 0, done.err
    assert done.out.endswith(f"{torch.cuda.is_available()} cpu\n")
    assert done.report.used[0].memory.peak_allocated == 4_000_256


def test_a_script_with_a_virtual_gpu_of_its_own(written):
    done = written(
        "import gpulab, torch\nwith gpulab.VirtualGPU('H100'):\n    x = torch.ones(1000, 1000, device='cuda')\n"
    )
    assert done.code == 0, done.err
    assert (done.report.gpu, done.report.used[0].memory.peak_allocated) == ("H100", 4_000_256)
    assert "The script put a virtual H100 of its own in place" in done.text


def test_a_script_with_a_stretch_without_gpu(written):
    done = written(
        "import gpulab, torch\nx = torch.ones(1000, 1000, device='cuda')\n"
        "with gpulab.without_gpu():\n    y = torch.ones(3000, 1000)\n    print(torch.cuda.is_available())\n"
        "print(x.device)\n"
    )
    assert done.code == 0, done.err
    assert done.out == f"{torch.cuda.is_available()}\ncuda:0\n"
    memory = done.report.used[0].memory
    assert memory.peak_allocated == memory.end_allocated == 4_000_256


def test_a_virtual_gpu_that_a_script_leaves_in_force_ends_with_it(written):
    done = written("import gpulab, torch\ngpu = gpulab.VirtualGPU('H100').start()\nx = torch.ones(9, device='cuda')\n")
    assert done.report.gpu == "H100"
    assert in_force.current is None
