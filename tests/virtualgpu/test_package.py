"""The package by itself: its names, its command line, and that it needs nothing of the course."""

import importlib.util
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path
from zipfile import ZipFile

import pytest

import gpulab
import virtualgpu
from gpulab.__main__ import main as course
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


@pytest.mark.parametrize(("batch", "code", "says"), [("32", 0, "fits on a T4"), ("50000000", 12, "does not fit")])
def test_a_step_of_a_file_is_planned(file, capsys, batch, code, says):
    assert main(["plan", f"{file}:build", "--batch", batch, "--gpu", "T4"]) == code
    assert says in capsys.readouterr().out


def test_the_example_of_the_help_is_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = capsys.readouterr().out
    function = text.partition("where train.py has:\n")[2].partition("\n\n")[0]
    Path("train.py").write_text("import torch\n" + textwrap.dedent(function), encoding="utf-8")
    examples = [line.split()[3:] for line in text.splitlines() if line.startswith("  python -m virtualgpu plan")]
    assert [main(words) for words in examples] == [0, 0]
    assert capsys.readouterr().out.count("fits on a") >= 2


@pytest.mark.parametrize("program", [main, course])
def test_without_pytorch_a_sentence_says_so(program, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: (name != "torch" and found(name, *rest)) or None
    )
    assert program(["run", "train.py"]) == program(["validate"]) == 2
    assert capsys.readouterr().err == 2 * (
        f"PyTorch is not installed for {sys.executable}. What to do: pip install torch\n"
    )


def test_the_source_distribution_has_what_the_wheel_is_built_from_and_no_more(tmp_path):
    code = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"

    def built(what, folder):
        done = subprocess.run([sys.executable, "-c", code, what, tmp_path], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return tmp_path / done.stdout.split()[-1]

    here = Path(gpulab.__file__).parents[1]
    with tarfile.open(built("build_sdist", here)) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    parts = {part for path in source.rglob("*") for part in path.relative_to(source).parts}
    assert not parts & {"tests", "answers", "exercises.py", "lecture.py", "solutions"}
    of_source, of_tree = (
        {item.filename: item.CRC for item in ZipFile(built("build_wheel", folder)).infolist()}
        for folder in (source, here)
    )
    assert of_source == of_tree


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("{}:bild", (), "steps.py has no function 'bild'"),
        ("{}:LIMIT", (), "steps.py has no function 'LIMIT'"),
        ("nowhere.py:build", (), "target is 'nowhere.py:build'; it must be FILE.py:FUNCTION, of an existing file"),
        ("{}", (), "it must be FILE.py:FUNCTION"),
        ("{}:build", ("--gpu", "T5"), "gpu='T5' names no machine"),
        ("{}:build", ("--gpu", "real"), "gpu='real': a plan is for a kind of GPU, one of T4"),
        ("{}:build", ("--batch", "0"), "batch must be 1 or more, not 0"),
    ],
)
def test_what_cannot_be_planned_is_said(file, capsys, target, options, says):
    assert main(["plan", target.format(file), "--batch", "4", *options]) == 2
    assert says in capsys.readouterr().err


def test_an_error_of_the_file_is_shown_as_python_shows_it(file, capsys):
    assert main(["plan", f"{file}:broken", "--batch", "4", "--gpu", "T4"]) == 1
    shown = capsys.readouterr()
    assert "ValueError: a mistake of the file's own" in shown.err
    assert "planned.py" not in shown.err
    assert "ended by ValueError" in shown.out
