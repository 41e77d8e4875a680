"""What `python` would do with a script: names, arguments, paths, exit codes, tracebacks; and what cannot be run."""

import subprocess
import sys

import pytest

from virtualgpu.running import target
from virtualgpu.running.target import CannotRun, execute


@pytest.fixture
def ends(tmp_path, capfd):
    """`ends(source, *arguments)`: how it ended, and what it wrote."""

    def go(source, *arguments):
        path = tmp_path / "script.py"
        path.write_text(source)
        capfd.readouterr()
        with target.interpreter_restored():
            ending = execute(target.script_target(str(path), arguments))
        return ending, *capfd.readouterr()

    return go


WHAT = """
import sys
print(__name__, __file__, __spec__, __package__, __doc__, type(__loader__).__name__, __builtins__)
print(sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals(), sorted(globals()))
"""


def test_a_script_finds_what_it_finds_under_python(ends, tmp_path):
    ending, out, err = ends(WHAT, "--gpu", "3")
    alone = subprocess.run([sys.executable, tmp_path / "script.py", "--gpu", "3"], capture_output=True, text=True)
    assert ending == target.Ending(0)
    assert out == alone.stdout
    assert err == alone.stderr == ""


def test_a_module_finds_what_it_finds_under_python(tmp_path, monkeypatch, capfd):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(WHAT + "\nfrom . import other\nprint(__spec__.name)")
    (package / "other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with target.interpreter_restored():
        assert execute(target.module_target("pack", ["-m", "x"])).code == 0
    alone = subprocess.run([sys.executable, "-m", "pack", "-m", "x"], capture_output=True, text=True)
    sys.modules.pop("pack"), sys.modules.pop("pack.other")
    assert [_without_addresses(line) for line in capfd.readouterr().out.splitlines()] == [
        _without_addresses(line) for line in alone.stdout.splitlines()
    ]


def _without_addresses(line):
    return " ".join(word for word in line.split() if not word.startswith("0x"))


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(None)", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(True)", 1, ""),
        ("import sys; sys.exit(41)", 41, ""),
        ("import sys; sys.exit('a last word')", 1, "a last word\n"),
        ("import sys; sys.exit(2.5)", 1, "2.5\n"),
        ("raise SystemExit(3)", 3, ""),
    ],
)
def test_exit_codes_are_the_script_s(ends, source, code, said):
    ending, _, err = ends(source)
    assert ending.code == code
    assert err == said


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return 1 / 0\n\nf()\n",
        "try:\n    {}['x']\nexcept KeyError as error:\n    raise ValueError('two\\nlines') from error\n",
        "x = = 1\n",
        "import no_such_module_at_all\n",
        "def f(): f()\nf()\n",
        "class Own(BaseException): pass\nraise Own\n",
        "import sys\nsys.excepthook = lambda *a: print('mine:', a[0].__name__, file=sys.stderr)\nraise ValueError\n",
    ],
)
def test_tracebacks_are_those_of_python(ends, source, tmp_path):
    before = sys.excepthook
    ending, _, err = ends(source)
    sys.excepthook = before
    alone = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert ending.kind == "error"
    assert ending.code == alone.returncode == 1
    if "f(): f()" in source:  # as deep as there are frames left
        err, alone.stderr = (text.partition("[Previous line")[0] for text in (err, alone.stderr))
    assert err == alone.stderr


def test_ctrl_c_ends_as_for_a_shell(ends):
    ending, _, err = ends("raise KeyboardInterrupt")
    assert (ending.code, ending.kind) == (130, "interrupted")
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def test_the_interpreter_is_given_back(ends):
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    ends("import sys; sys.path.append('here'); sys.argv.append('x'); sys.argv = 3")
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("none.py", None, "no such file. Python files there: train.py"),
        ("", None, "is a directory"),
        ("weights.pt", b"PK\3\4\0\0", "not Python source: it has bytes of value 0"),
        ("lesson.ipynb", b"{}", "a notebook: open it in Jupyter"),
        ("start.sh", b"python train.py", "a shell script"),
    ],
)
def test_what_is_no_script_is_said_before_anything_runs(tmp_path, name, what, says):
    (tmp_path / "train.py").write_text("")
    if what is not None:
        (tmp_path / name).write_bytes(what)
    with pytest.raises(CannotRun, match=says) as caught:
        target.script_target(str(tmp_path / name))
    assert repr(str(tmp_path / name).rstrip("/"))[:-1] in str(caught.value)


def test_a_package_given_as_a_directory_names_the_file(tmp_path):
    (tmp_path / "__main__.py").write_text("")
    with pytest.raises(CannotRun, match=r"Give the Python file to run: .*__main__\.py"):
        target.script_target(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [("no_such_package", "no module of this name"), ("train.py", "without -m: train.py"), ("", "-m :")],
)
def test_what_is_no_module_is_said_before_anything_runs(name, says):
    with pytest.raises(CannotRun, match=says):
        target.module_target(name)


def test_a_module_that_its_package_does_not_have_ends_as_under_python(capfd):
    with target.interpreter_restored():
        assert execute(target.module_target("json.nothing")).code == 1
    assert capfd.readouterr().err.startswith("No module named json.nothing")
