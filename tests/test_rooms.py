"""The rooms of the package, lowest first: what stands above may import what stands below, never the other way round.

Imports at run time count, also those inside functions; imports for annotations alone do not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VIRTUAL_GPU = ROOT / "virtualgpu"

# Rooms on one line stand side by side: they do not import each other.
HOUSE = """
    lessons calls
    course
    sim capstone crash data
    machine notebook
    memory
    devices timing monitor
    transfers distributed
    exercise
    check turn
    __init__
    __main__
"""
VIRTUAL = """
    units own_code release control_groups nvml collecting
    gpus
    memory
    clock
    scope
    operations
    ranks
    surface
    gpu
    observe choice lending readings pictures
    planning
    running validate
    testing
    __init__
    __main__
"""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path for package in ("virtualgpu", "gpulab") for path in sorted((ROOT / package).rglob("*.py"))
}


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node`, but what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from at_run_time(child)


def imports(name: str) -> set[str]:
    """The modules of the package that `name` imports."""
    path, found = MODULES[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            home = ".".join(filter(None, [base, node.module]))
            found |= {f"{home}.{alias.name}" if f"{home}.{alias.name}" in MODULES else home for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & MODULES.keys()) - {name}


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Those of each module. Read when it is asked for: each process that runs tests loads this file."""
    return {name: imports(name) for name in MODULES}


def order(house: str) -> dict[str, int]:
    return {room: level for level, line in enumerate(house.strip().splitlines()) for room in line.split()}


def room(name: str, of: str) -> str:
    """The room of `of` that a module stands in; the package itself is the room `__init__`."""
    return name.removeprefix(of).lstrip(".").partition(".")[0] or "__init__"


@pytest.mark.parametrize(("of", "house"), [("gpulab", HOUSE), ("virtualgpu", VIRTUAL)])
def test_imports_run_downwards(of: str, house: str) -> None:
    level = order(house)
    assert {room(name, of) for name in MODULES if name == of or name.startswith(of + ".")} == set(level)
    upwards = [
        f"{name} imports {other}"
        for name, others in all_imports().items()
        if name == of or name.startswith(of + ".")
        for other in others
        if other == of or other.startswith(of + ".")
        if room(name, of) != room(other, of) and level[room(other, of)] >= level[room(name, of)]
    ]
    assert not upwards


def test_the_virtual_gpu_knows_nothing_of_the_course() -> None:
    for name, others in all_imports().items():
        assert name.startswith("gpulab") or not {other for other in others if other.startswith("gpulab")}, name


@pytest.mark.parametrize(
    "file", sorted((ROOT / "lessons").glob("*/**/*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_lesson_imports_no_other(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 2
            assert not (node.module or "").startswith("gpulab.lessons")


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter(all_imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize("lower", ["gpus", "memory", "clock"])
def test_the_lower_rooms_of_the_virtual_gpu_know_no_torch(lower: str) -> None:
    for path in (VIRTUAL_GPU / lower).glob("*.py"):
        for node in at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            home = node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
            assert not any(name.partition(".")[0] == "torch" for name in [*names, home]), path.name


def test_each_folder_says_what_it_is() -> None:
    for name, path in MODULES.items():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{name} has no docstring"


SIMULATORS = sorted({name.split(".")[2] for name in MODULES if name.startswith("gpulab.sim.")} - {"base", "presenting"})


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_model_knows_no_picture_and_a_picture_no_controls(simulator: str) -> None:
    here = f"gpulab.sim.{simulator}."
    assert "from .controls" not in MODULES[here + "picture"].read_text(encoding="utf-8")  # nor for annotations
    for name in (name for name in MODULES if name.startswith(here)):
        above = {"controls": set(), "picture": {"controls"}}.get(name.removeprefix(here), {"controls", "picture"})
        assert not {here + part for part in above} & all_imports()[name], name
        elsewhere = [other for other in all_imports()[name] if other.startswith("gpulab.sim.")]
        assert all(other.startswith((here, "gpulab.sim.base")) for other in elsewhere), name
