"""The package by itself: its names, its command line, and that it needs nothing of the course."""

import subprocess
import sys

import pytest

import gpulab
import virtualgpu
from virtualgpu.__main__ import main

STEP = """
import torch


def build(batch):
    model = torch.nn.Linear(1000, 1000).to("cuda")
    x = torch.randn(batch, 1000, device="cuda")
    return lambda: model(x).sum().backward()


def broken(batch):
    raise ValueError("a mistake of the file's own")


LIMIT = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "steps.py"
    path.write_text(STEP, encoding="utf-8")
    return str(path)


def test_the_courses_names_are_the_packages():
    assert gpulab.VirtualGPU is virtualgpu.VirtualGPU
    assert gpulab.plan is virtualgpu.plan
    assert gpulab.without_gpu is virtualgpu.without_gpu
    with pytest.raises(AttributeError, match="it has: VirtualGPU, plan, without_gpu"):
        virtualgpu.setup  # noqa: B018


def test_all_of_it_loads_without_the_course(tmp_path):
    code = """if True:
        import pkgutil, sys, virtualgpu
        class NoCourse:
            def find_spec(self, name, path=None, target=None):
                assert name.partition(".")[0] != "gpulab", name
        sys.meta_path.insert(0, NoCourse())
        for module in pkgutil.walk_packages(virtualgpu.__path__, "virtualgpu."):
            if not module.name.endswith(("__main__", "forked")):
                __import__(module.name)
        print(sorted({"gpulab", "virtualgpu"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("['virtualgpu']\n", 0), done.stderr


@pytest.mark.parametrize(("batch", "code", "says"), [("32", 0, "fits on a T4"), ("50000000", 1, "does not fit")])
def test_a_step_of_a_file_is_planned(file, capsys, batch, code, says):
    assert main(["plan", f"{file}:build", "--batch", batch, "--gpu", "T4"]) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("{}:bild", (), "steps.py has no function 'bild'"),
        ("{}:LIMIT", (), "steps.py has no function 'LIMIT'"),
        ("nowhere.py:build", (), "target is 'nowhere.py:build'; it must be FILE.py:FUNCTION, of a file that is there"),
        ("{}", (), "it must be FILE.py:FUNCTION"),
        ("{}:build", ("--gpu", "T5"), "gpu='T5' names no machine"),
        ("{}:build", ("--batch", "0"), "batch must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_planned_is_said(file, capsys, target, options, says):
    assert main(["plan", target.format(file), "--batch", "4", *options]) == 2
    assert says in capsys.readouterr().err


def test_an_error_of_the_file_passes_through(file):
    with pytest.raises(ValueError, match="a mistake of the file's own"):
        main(["plan", f"{file}:broken", "--batch", "4", "--gpu", "T4"])
