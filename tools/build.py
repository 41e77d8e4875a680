"""Build the notebooks from their text sources: `python tools/build.py [--check] [--force] [--measure] [NAME ...]`.

lessons/NN_topic/lecture.py   → notebooks/NN_topic.ipynb   executed, outputs kept
lessons/NN_topic/exercises.py → solutions/NN_topic.ipynb   executed, outputs kept
                              → exercises/NN_topic.ipynb   solutions cleared, no outputs
lessons/NAME.py               → notebooks/NAME.ipynb       a notebook that belongs to no lesson

Only what changed is executed, known by the hash of the source that each notebook carries; `--force` executes all.
What depends on the machine keeps its saved output while its code is the same; `--measure` takes it anew, on a quiet
machine: after a change of what such a cell calls, and where a sum was not printed beside what it is the sum of.
What answers a prediction is folded in a lecture, until its reader runs it. A turn of the reader's is written solved in
the source; the lecture has the code to change, and the solution folded under it.
`--check` builds nothing: it fails, and says why, when a notebook is not what its source gives. Both fail where a text
of a lecture tells the answer of a prediction too early.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from courselib import spoilers
from courselib.patience import HANG_SECONDS
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from traitlets.config import Config

from gpulab import capstone
from gpulab.notebook.predict import UNFOLDED

ROOT = Path(__file__).resolve().parent.parent
GPU = "virtual:T4"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
COVER = nbformat.v4.new_output("display_data")  # without data: it renders as nothing
COLUMNS = 100  # of a line of code that JupyterLab shows at 1280 px without scrolling sideways: 107 less a margin
FORM = "1"  # raise it when this file gives other notebooks for the same sources

TAGS = {
    "solution": "the answer's code, between BEGIN SOLUTION and END SOLUTION; a stub in the exercise",
    "script": "the capstone's script, written by %%writefile: sound in the solution, with its faults in the exercise",
    "your-turn": "a lecture's, for the reader to write or change: solved between BEGIN SOLUTION and END SOLUTION",
    "check": "calls gpulab.check on the student's object",
    "needs-answer": "uses the student's object, so it raises in an unsolved exercise",
    "host-dependent": "prints measured times, the host or the reader's progress; the saved output is not compared",
    "raises-exception": "fails on purpose",
}


class SourceError(Exception):
    """A source that cannot be built; the message names the file and the cell."""


@dataclass(frozen=True)
class Source:
    """One text source; `folder` is where its notebook goes."""

    path: Path
    folder: str

    @property
    def name(self) -> str:
        return self.path.stem if self.path.parent.name == "lessons" else self.path.parent.name

    @property
    def notebook(self) -> Path:
        return ROOT / self.folder / f"{self.name}.ipynb"

    @property
    def exercise(self) -> Path | None:
        return ROOT / "exercises" / f"{self.name}.ipynb" if self.folder == "solutions" else None

    def digest(self) -> str:
        return hashlib.sha256(FORM.encode() + self.path.read_bytes()).hexdigest()[:16]


def sources(names: list[str]) -> list[Source]:
    """All sources, or those whose name begins with one of `names`."""
    places = (("*/lecture.py", "notebooks"), ("*.py", "notebooks"), ("*/exercises.py", "solutions"))
    found = [Source(path, folder) for pattern, folder in places for path in sorted((ROOT / "lessons").glob(pattern))]
    return [s for s in found if not names or s.name.startswith(tuple(names))]


def parse(source: Source) -> NotebookNode:
    """The notebook without outputs: every cell named, its id a hash of lesson and name, tags checked."""
    read = jupytext.reads(source.path.read_text(encoding="utf-8"), fmt="py:percent")
    where = source.path.relative_to(ROOT)
    seen: set[str] = set()
    cells = []
    for number, cell in enumerate(read.cells, 1):
        name = cell.metadata.get("title")
        first = cell.source.split("\n", 1)[0]
        if not name:
            raise SourceError(f"{where}: cell {number} has no name ({first!r}): write '# %% name' above it")
        if name in seen:
            raise SourceError(f"{where}: two cells are named {name!r}")
        seen.add(name)
        tags = list(cell.metadata.get("tags", []))
        if unknown := set(tags) - set(TAGS):
            raise SourceError(f"{where}: cell {name!r} has the tag {unknown.pop()!r}; known tags: {', '.join(TAGS)}")
        cells.append(_cell(cell, _identity(source, name), tags))
        if "script" in tags:
            cells[-1].source = f"{first}\n{capstone.sound().rstrip()}"
        if "your-turn" in tags:
            cells[-1:] = _turn(cells, source, name)
        if "solution" in tags or "check" in tags:
            cells[-1].metadata["nbgrader"] = _grading(name, solution="solution" in tags)
    if source.folder == "notebooks":
        predictions(cells, where.as_posix())  # a SourceError comes before anything is run
    else:
        _narrow(cells, where.as_posix())
    notebook: NotebookNode = nbformat.v4.new_notebook(cells=cells)
    notebook.nbformat_minor = 5
    notebook.metadata = NotebookNode(
        gpulab={"source": where.as_posix(), "source_hash": source.digest()},
        kernelspec={"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    return notebook


def _narrow(cells: list[NotebookNode], where: str) -> None:
    """SourceError where a line of code is cut at the right of a window; text wraps by itself."""
    for cell in cells:
        if cell.cell_type == "code":
            for line in cell.source.splitlines():
                if len(line) > COLUMNS:
                    raise SourceError(f"{where}: a line of code has {len(line)} columns, more than {COLUMNS}: {line!r}")


def _identity(source: Source, name: str) -> str:
    """The id of the cell of this name."""
    return hashlib.sha256(f"{source.folder}/{source.name}/{name}".encode()).hexdigest()[:12]


def _names(source: Source) -> list[str]:
    return re.findall(r"^# %% (\S+)", source.path.read_text(encoding="utf-8"), re.MULTILINE)


def predictions(cells: list[NotebookNode], where: str) -> list[tuple[str, list[NotebookNode]]]:
    """The variable of each `gpulab.predict(…)`, and the code cells whose output can give its answer away: from the next
    one to the first `.compare`, but those that ask themselves. SourceError where the answer does not come."""
    code = [(cell, *_asked_and_compared(cell.source, where)) for cell in cells if cell.cell_type == "code"]
    found = []
    for number, (_, names, _) in enumerate(code):
        for name in names:
            rest = code[number + 1 :]
            last = next((i for i, (_, asks, compared) in enumerate(rest) if name in compared or name in asks), None)
            if last is None or name in rest[last][1]:
                raise SourceError(f"{where}: {name!r} asks, and no later cell answers: write {name}.compare(…)")
            if rest[last][1]:
                raise SourceError(f"{where}: {name}.compare(…) stands in a cell that asks, and would fold the question")
            if any("your-turn" in cell.metadata.get("tags", []) for cell, _, _ in rest[: last + 1]):
                raise SourceError(f"{where}: a turn stands between {name!r} and its answer, and would be folded")
            found.append((name, [cell for cell, asks, _ in rest[: last + 1] if not asks]))
    return found


def spoiled(source: Source, cells: list[NotebookNode]) -> Iterator[str]:
    """A sentence for each text of an executed lecture that tells a prediction's answer before the reader has guessed,
    or right below, by the rule of `courselib.spoilers`. What explains the number belongs in `compare(…, because="…")`.
    """
    where = source.path.relative_to(ROOT).as_posix()
    named = {_identity(source, name): name for name in _names(source)}
    asked: dict[str, str] = {}
    for cell in cells:
        if cell.cell_type == "code":
            questions = re.findall(r"^Predict: (.*)", printed(cell), re.MULTILINE)
            asked |= dict(zip(_asked_and_compared(cell.source, where)[0], questions, strict=False))
    for name, answers in predictions(cells, where):
        compared = list(dict.fromkeys(re.findall(r"\b(\w+)\.compare\(", answers[-1].source)))
        found = dict(zip(compared, spoilers.compared(printed(answers[-1])), strict=False))
        if name not in found or name not in asked:
            yield f"{where}: {name} printed no question or no answer"
            continue
        answer = spoilers.Answer(asked[name], *found[name])
        for cell, sentence in spoilers.tellers(answer, cells, cells.index(answers[-1])):
            place = named.get(cell.id, cell.id)
            yield f"{where}: cell {place!r} tells the answer of “{answer.question}”, {answer}: {sentence}"


def printed(cell: NotebookNode) -> str:
    """The text of all outputs of a code cell."""
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def _asked_and_compared(source: str, where: str) -> tuple[list[str], set[str]]:
    """The variables that a cell assigns a prediction to, and those that it calls `.compare` of."""
    asked, compared, calls = [], set(), 0
    if source.startswith("%%writefile "):  # a script for other processes, which ask nothing
        return [], set()
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError as error:
        raise SourceError(f"{where}: a cell is no Python ({error.msg}): {source.splitlines()[0]!r}") from None
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Name("gpulab"), "predict")):
                calls += 1
            case ast.Call(ast.Attribute(ast.Name(name), "compare")):
                compared.add(name)
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name("gpulab"), "predict"))):
                asked.append(name)
    if calls != len(asked):
        raise SourceError(f"{where}: write NAME = gpulab.predict(…), so that the build knows where it is answered")
    return asked, compared


def _cell(cell: NotebookNode, identity: str, tags: list[str]) -> NotebookNode:
    if "host-dependent" in tags:
        tags = [*tags, "nbval-ignore-output"]
    metadata = NotebookNode(tags=tags) if tags else NotebookNode()
    if cell.cell_type == "code":
        made: NotebookNode = nbformat.v4.new_code_cell(cell.source, id=identity, metadata=metadata)
    else:
        made = nbformat.v4.new_markdown_cell(cell.source, id=identity, metadata=metadata)
    return made


BEGIN, INSTEAD, END = "### BEGIN SOLUTION", "### INSTEAD OF", "### END SOLUTION"
_TURN = re.compile(rf"^( *){BEGIN}\n(.*?)(?:^ *{INSTEAD}\n(.*?))?^ *{END}\n", re.MULTILINE | re.DOTALL)


def _turn(cells: list[NotebookNode], source: Source, name: str) -> list[NotebookNode]:
    """The cells that a turn, the last of `cells`, becomes: the code for the reader, and its solution folded.

    The reader gets, in the place of the solution, the lines under INSTEAD OF without their `# `, or a stub.
    """
    where = f"{source.path.relative_to(ROOT)}: cell {name!r}"
    cell, before = cells[-1], cells[-2] if len(cells) > 1 else None
    if source.folder != "notebooks":
        raise SourceError(f"{where} is tagged your-turn, which is for lectures: here it is 'solution'")
    if before is None or before.cell_type != "markdown" or "**Your turn**" not in before.source:
        raise SourceError(f"{where} is tagged your-turn: write a text cell above it that says **Your turn** and asks")
    found = list(_TURN.finditer(cell.source))
    if len(found) != 1 or cell.source.count("SOLUTION") != 2:
        raise SourceError(f"{where} is tagged your-turn: its solution stands once between {BEGIN} and {END}")
    if not re.fullmatch(r"gpulab\.turn\.(\w+)\(\w+\)", cell.source.splitlines()[-1]):
        raise SourceError(f"{where} is tagged your-turn: its last line is gpulab.turn.NAME(…), which answers")
    indent, solution, instead = found[0].groups()
    lines = (instead or f"{indent}# raise gpulab.NotAttempted\n").splitlines()
    if not all(line.startswith(f"{indent}# ") for line in lines):
        raise SourceError(f"{where}: under {INSTEAD} each line is code behind '# ', indented as the marker")
    given = "".join(f"{indent}{line.removeprefix(f'{indent}# ')}\n" for line in lines)
    solved = re.sub(r"^ *# TODO.*\n", "", _TURN.sub(lambda _: solution, cell.source), flags=re.MULTILINE)
    cell.source = _TURN.sub(lambda _: given, cell.source)
    identity = _identity(source, f"{name}/solution")
    shown = solved.rpartition("gpulab.turn.")[0].rstrip()
    text = f"<details><summary>A solution</summary>\n\n```python\n{shown}\n```\n\n</details>"
    return [cell, nbformat.v4.new_markdown_cell(text, id=identity)]


def solved(lecture: NotebookNode) -> NotebookNode:
    """A copy of the lecture in which each turn's cell has the code that is folded under it."""
    notebook: NotebookNode = nbformat.from_dict(lecture)
    for cell, below in pairwise(notebook.cells):
        if "your-turn" in cell.metadata.get("tags", []):
            shown = re.search("```python\n(.*?)\n```", below.source, re.DOTALL)
            assert shown, "parse() puts the solution under each turn"
            cell.source = f"{shown.group(1)}\n\n\n{cell.source.splitlines()[-1]}"
    return notebook


def _grading(name: str, *, solution: bool) -> NotebookNode:
    """nbgrader's cell metadata: an answer to write, or a check that is worth one point."""
    grading = NotebookNode(
        grade=not solution, grade_id=name, locked=not solution, schema_version=3, solution=solution, task=False
    )
    if not solution:
        grading["points"] = 1
    return grading


def exercise_of(solution: NotebookNode) -> NotebookNode:
    """The students' notebook: answers cleared by nbgrader's own preprocessor, no outputs, what needs an answer
    marked so that the cells after it still run."""
    from nbgrader.preprocessors import ClearSolutions

    notebook: NotebookNode = nbformat.from_dict(solution)
    stub = Config({"ClearSolutions": {"code_stub": {"python": "raise gpulab.NotAttempted"}}})
    notebook, _ = ClearSolutions(config=stub).preprocess(notebook, {})
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "script" in tags:
            cell.source = cell.source.partition("\n")[0] + f"\n{capstone.script().rstrip()}"
        if {"check", "needs-answer"} & set(tags) and "raises-exception" not in tags:
            cell.metadata["tags"] = [*tags, "raises-exception"]
        cell.metadata.get("nbgrader", {}).pop("checksum", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run all cells in place as CI does, and bring the outputs into their canonical form."""
    with tempfile.TemporaryDirectory() as scratch:
        progress = str(Path(scratch) / "progress.json")
        client = NotebookClient(
            notebook,
            timeout=HANG_SECONDS,
            kernel_name="python3",
            record_timing=False,
            store_widget_state=False,
            config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # else each kernel warns
            resources={"metadata": {"path": str(folder)}},
        )
        # One thread: sums come out the same on any number of processors, and so do the plots drawn from them.
        chosen = {"GPULAB_GPU": GPU, "GPULAB_PROGRESS": progress, "OMP_NUM_THREADS": "1"}
        # Without its bytecode, torch takes three times as long to be imported, in each process of a notebook.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        client.execute(env=kept | chosen)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [_clean(output) for output in _merged(cell.outputs)]
    notebook.metadata["language_info"] = NotebookNode(name="python")


def _merged(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """The outputs with neighbouring pieces of one stream put together: how they are cut is chance."""
    held: NotebookNode | None = None
    for output in outputs:
        if held is not None and output.output_type == "stream" and output.name == held.name:
            held.text += output.text
            continue
        if held is not None:
            yield held
        held = output if output.output_type == "stream" else None
        if held is None:
            yield output
    if held is not None:
        yield held


def _clean(output: NotebookNode) -> NotebookNode:
    if output.output_type == "stream":
        output.text = re.sub(r"[^\n]*\r(?!\n)", "", _without_paths(output.text))
    elif output.output_type == "error":
        output.traceback = [_without_paths(line) for line in output.traceback]
        output.evalue = _without_paths(output.evalue)
    else:
        widget = output.data.pop(WIDGET_VIEW, None)
        if "text/plain" in output.data:
            text = _without_paths(output.data["text/plain"])
            output.data["text/plain"] = f"{text}\n{UNFOLDED}" if widget and text.startswith("Predict: ") else text
    return output


def _without_paths(text: str) -> str:
    """The text without this machine's folders: a library's file from site-packages on, a cell as <cell>."""
    folder = r"(?:[A-Za-z]:[/\\]|~?/)(?:[\w.+~-]+[/\\])*"
    text = re.sub(folder + r"ipykernel_\d+[/\\]\d+\.py", "<cell>", text)
    text = re.sub(folder + r"site-packages[/\\]", "site-packages/", text)
    return text.replace(str(ROOT), "gpulab-course")


def keep_host_dependent(notebook: NotebookNode, old: NotebookNode | None) -> None:
    """Cells that print measured times keep the outputs they had, as long as their code is the same."""
    kept: dict[str, Any] = {c.id: c for c in old.cells} if old else {}
    for cell in notebook.cells:
        before = kept.get(cell.id)
        if "host-dependent" in cell.metadata.get("tags", []) and before and _same_code(before.source, cell.source):
            cell.outputs = before.outputs


def _same_code(one: str, other: str) -> bool:
    """Whether the two do the same: where lines are broken, and what comments say, makes no difference."""
    if one == other:
        return True
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except SyntaxError:  # a magic of IPython's
        return False


def keep_outputs(notebook: NotebookNode, old: NotebookNode) -> bool:
    """Take the outputs from `old` where it was built from the same source; returns whether it was."""
    inputs = [[(c.id, c.cell_type, c.source) for c in n.cells] for n in (notebook, old)]
    if old.metadata.get("gpulab") != notebook.metadata.gpulab or inputs[0] != inputs[1]:
        return False
    for cell, before in zip(notebook.cells, old.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return True


def fold_answers(notebook: NotebookNode, source: Source) -> None:
    """Fold the outputs of a lecture that answer a prediction, and put COVER before them: JupyterLab writes the first
    line of the first output on the fold. In COVER nbval finds nothing to compare. A cell without outputs stays as it
    is, since its fold would show."""
    if source.folder != "notebooks":
        return
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output != COVER]
    for _, answers in predictions(notebook.cells, source.name):
        for cell in answers:
            if cell.outputs and cell.outputs[0] != COVER:
                # JupyterLab reads either, opens the output when the cell is run, and saves both.
                cell.metadata |= {"collapsed": True, "jupyter": {"outputs_hidden": True}}
                cell.outputs.insert(0, COVER)


def canonical(notebook: NotebookNode) -> str:
    """The one text form of a notebook: keys sorted, one space of indentation, a newline at the end."""
    text: str = nbformat.writes(notebook, version=4, indent=1, sort_keys=True, ensure_ascii=False)
    return text.rstrip("\n") + "\n"


def read(path: Path) -> NotebookNode | None:
    return nbformat.read(path, as_version=4) if path.exists() else None


def build(source: Source, *, force: bool = False, measure: bool = False) -> str:
    """Write what `source` gives; returns what was done."""
    old = read(source.notebook)
    notebook = parse(source)
    if force or measure or old is None or not keep_outputs(notebook, old):
        started = time.monotonic()
        execute(notebook, source.notebook.parent)
        if not measure:
            keep_host_dependent(notebook, old)
        fold_answers(notebook, source)
        _write(source.notebook, canonical(notebook))
        done = f"executed in {time.monotonic() - started:.1f} s"
    else:
        fold_answers(notebook, source)
        changed = _write(source.notebook, canonical(notebook))
        done = "metadata written" if changed else "unchanged"
    if source.exercise:
        _write(source.exercise, canonical(exercise_of(parse(source))))
    return done


def _write(path: Path, text: str) -> bool:
    """Write `text` where it is not there already; returns whether it was not."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8", newline="\n")
    new.replace(path)
    return True


def problems(source: Source) -> Iterator[str]:
    """What is wrong with the notebooks of `source`, a sentence each."""
    name = source.notebook.relative_to(ROOT)
    stored = read(source.notebook)
    if stored is None:
        yield f"{name} is missing"
        return
    if source.notebook.read_text(encoding="utf-8") != canonical(stored):
        yield f"{name} is not in canonical form"
    wanted = parse(source)
    if stored.metadata != wanted.metadata:
        yield f"{name} was built from another version of {source.path.relative_to(ROOT)}"
    if keep_outputs(wanted, stored):
        fold_answers(wanted, source)
    inputs = [[(c.id, c.cell_type, c.source, c.metadata) for c in n.cells] for n in (stored, wanted)]
    if inputs[0] != inputs[1]:
        yield f"{name}: cells differ from the source; notebooks are edited in lessons/ only"
    elif stored.cells != wanted.cells:
        yield f"{name}: a fold is not covered, and JupyterLab would write a line of the answer on it"
    if inputs[0] == inputs[1] and source.folder == "notebooks":
        yield from spoiled(source, stored.cells)
    for cell in stored.cells:
        if cell.cell_type == "code" and cell.execution_count is None and cell.source.strip():
            yield f"{name}: cell {cell.id} has no execution count, so its output would not be compared"
    if source.exercise:
        text = canonical(exercise_of(parse(source)))
        if not source.exercise.exists() or source.exercise.read_text(encoding="utf-8") != text:
            yield f"{source.exercise.relative_to(ROOT)} is not what the solution gives"


def strays() -> Iterator[str]:
    """Notebooks that no source gives."""
    known = {p for s in sources([]) for p in (s.notebook, s.exercise)}
    for folder in ("notebooks", "solutions", "exercises"):
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            if path not in known:
                yield f"{path.relative_to(ROOT)} has no source"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only sources whose name begins so, e.g. 08")
    parser.add_argument("--check", action="store_true", help="verify, write nothing")
    parser.add_argument("--force", action="store_true", help="execute also what has not changed")
    parser.add_argument("--measure", action="store_true", help="the same, and keep no saved measurement")
    args = parser.parse_args()
    chosen = sources(args.names)
    if not chosen:
        print(f"no source begins with {' or '.join(args.names)}; there are: {', '.join(s.name for s in sources([]))}")
        return 1
    try:
        if args.check:
            wrong = [p for s in chosen for p in problems(s)] + list(strays())
            print("\n".join(wrong) if wrong else f"{len(chosen)} sources and their notebooks agree")
            if wrong:
                print("run: make notebooks")
            return bool(wrong)
        wrong = []
        for source in chosen:
            print(
                f"{source.notebook.relative_to(ROOT)}: {build(source, force=args.force, measure=args.measure)}",
                flush=True,
            )
            if source.folder == "notebooks" and (built := read(source.notebook)):
                wrong += spoiled(source, built.cells)
        if wrong:
            print("\n".join(wrong))
            return 1
    except SourceError as error:
        print(error)
        return 1
    except CellExecutionError as error:
        print(f"{source.notebook.relative_to(ROOT)}: a cell failed, so nothing was written\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
