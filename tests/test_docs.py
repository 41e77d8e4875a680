"""The reference pages agree with the notebooks: what they point to is there, and what they quote is said there."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from gpulab import course
from virtualgpu.gpus.specs import spec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LESSONS = {f"{lesson.number:02d}": lesson for lesson in course.LESSONS}


@cache
def notebook(number):
    """The headings of a lecture, and all that its cells and outputs say."""
    parts, headings = [], []
    path = ROOT / "notebooks" / f"{LESSONS[number].name}.ipynb"
    for cell in nbformat.read(path, as_version=4).cells:
        parts.append(cell.source)
        if cell.cell_type == "markdown":
            headings += re.findall(r"^#{2,3} (.+)$", cell.source, re.MULTILINE)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += [output.get("text", ""), output.get("evalue", ""), data.get("text/plain", "")]
    return headings, flat("\n".join(parts))


def flat(text):
    """Without what markdown and line breaks add."""
    return re.sub(r"[\s#`*“”\"]+", " ", text).lower()


def rows(page):
    """(lesson's number, cells) of every table row of a page, below the heading of its lesson where there is one."""
    number, found = None, []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## (\d\d) ·", line):
            number = heading[1]
        elif line.startswith("| ") and not line.startswith(("| the web says", "| message")):
            found.append((number, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]))
    return found


MYTHS, ERRORS = rows("myths.md"), [cells for _, cells in rows("errors.md")]


def quoted(message):
    """What stands between backquotes."""
    return " … ".join(re.findall(r"`+ ?(.+?) ?`+(?!\w)", message))


def test_there_are_myths_of_every_lesson_that_is_written():
    assert {number for number, _ in MYTHS} == set(LESSONS) - {"00"}
    assert len(MYTHS) > 60


@pytest.mark.parametrize(("number", "cells"), MYTHS, ids=[cells[0][:50] for _, cells in MYTHS])
def test_a_myth_says_what_holds_and_where_it_is_tested(number, cells):
    claim, holds, tested = cells
    assert claim
    assert holds
    headings, _ = notebook(number)
    sections = re.findall(r"\*([^*]+)\*", tested)
    assert sections or tested == "[Which GPU?](cards.md)", f"no section in {tested!r}"
    for section in sections:
        assert any(flat(heading).startswith(flat(section)) for heading in headings), section


@pytest.mark.parametrize("cells", ERRORS, ids=[cells[0][:50] for cells in ERRORS])
def test_a_message_is_one_that_its_lesson_shows(cells):
    message, cause, fix, lesson = cells
    assert cause
    assert fix
    found = re.fullmatch(r"(\d\d)(?: \*([^*]+)\*)?", lesson)
    assert found, f"no lesson in {lesson!r}"
    assert found[1] in LESSONS, lesson
    if not found[2]:
        return
    headings, told = notebook(found[1])
    assert any(flat(heading).startswith(flat(found[2])) for heading in headings), lesson
    pieces = [flat(piece).strip()[:24] for piece in re.split(r"…|\.\.\.|Error: |Warning: |[()]", quoted(message))]
    assert any(len(piece) > 11 and piece in told for piece in pieces), pieces


def test_every_error_that_a_lecture_raises_is_in_the_index():
    index = flat((DOCS / "errors.md").read_text(encoding="utf-8"))
    for lesson in LESSONS.values():
        for cell in nbformat.read(ROOT / "notebooks" / f"{lesson.name}.ipynb", as_version=4).cells:
            for output in cell.get("outputs", []):
                own = output.get("ename") in ("NotAttempted", "CheckFailed") or "raise RuntimeError(" in cell.source
                if output.output_type == "error" and not own:
                    of_rank = re.search(r"^\w+Error: (.+)", output.evalue, re.MULTILINE)
                    told = of_rank[1] if output.ename == "RankFailed" and of_rank else output.evalue
                    assert flat(told)[:25].strip() in index, told


def test_each_message_is_there_once():
    pieces = [
        [flat(piece).strip() for piece in re.split(r"…|\.\.\.|Error: |Warning: ", quoted(cells[0])) if len(piece) > 20]
        for cells in ERRORS
    ]
    for i, mine in enumerate(pieces):
        others = [flat(quoted(cells[0])) for j, cells in enumerate(ERRORS) if j != i]
        assert not mine or not any(all(piece in other for piece in mine) for other in others), ERRORS[i][0]


def twice():
    loss = torch.ones(3, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


def overwritten():
    x = torch.ones(3, requires_grad=True).exp()
    x.add_(1)
    x.sum().backward()


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(nn.Linear(2, 2))


# What raises a message of the page on any machine.
RAISED = {
    "backward twice": twice,
    "in place": overwritten,
    "no graph": lambda: torch.ones(3).sum().backward(),
    "module.": lambda: Wrapped().load_state_dict(nn.Sequential(nn.Linear(2, 2)).state_dict()),
    "label": lambda: F.cross_entropy(torch.zeros(1, 10), torch.tensor([10])),
    "device": lambda: torch.zeros(1, device="gpu"),
    "NumPy": lambda: torch.ones(1, requires_grad=True).numpy(),
    "bfloat16": lambda: torch.ones(1, dtype=torch.bfloat16).numpy(),
    "dtype": lambda: nn.Linear(2, 2)(torch.ones(2, 2).half()),
    "overflow": lambda: torch.ones(2).half().fill_(-1e9),
    "view": lambda: torch.ones(2, 3).t().view(-1),
    "batch of 0": lambda: DataLoader(torch.ones(3), batch_size=0),
}


@pytest.mark.parametrize("name", RAISED)
def test_a_message_is_quoted_as_pytorch_prints_it(name):
    with pytest.raises((RuntimeError, IndexError, TypeError, ValueError)) as raised:
        RAISED[name]()
    said = f"{raised.typename}: {raised.value}"
    rows = [[part.strip() for part in quoted(cells[0]).split("…") if len(part) > 5] for cells in ERRORS]
    assert any(row and all(part in " ".join(said.split()) for part in row) for row in rows), said


def test_the_contents_name_the_symptoms_in_their_order():
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    contents = text.partition("\n## ")[0].splitlines()  # words, not links: headings get other ids in other viewers
    assert [line.removesuffix(" ·") for line in contents if line.removesuffix(" ·") in headings] == headings


@pytest.mark.parametrize("cells", ERRORS, ids=[cells[0][:50] for cells in ERRORS])
def test_a_row_is_understood_without_its_neighbour(cells):
    assert not re.match(r"the same\b|as above|see above", " ".join(cells[1:]).lower())


GPUS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (DOCS / "cards.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("cells", GPUS, ids=[cells[0] for cells in GPUS])
def test_the_table_of_gpus_is_what_the_virtual_gpu_computes_with(cells):
    gpu = spec(cells[0].strip("`"))
    newest = [form for form, first in (("bf16", (8, 0)), ("fp8", (8, 9)), ("fp4", (10, 0))) if gpu.capability >= first]
    numbers = [gpu.memory_gb, gpu.bandwidth_gbps, *(gpu.tflops[form] for form in ("fp32", "tf32", "fp16"))]
    link = gpu.gpu_link and gpu.gpu_link.both_ways_gbps
    expected = ["–" if number is None else f"{number:g}" for number in (*numbers, gpu.watts, link)]
    assert [*cells[1:6], *cells[7:9]] == expected
    assert cells[6] == (newest or ["fp16"])[-1]
    assert all(piece in gpu.source for piece in cells[9].split("; "))


# What to try when memory runs out, by what it costs: the lecture, the checklist and the interview say one order.
REMEDIES = (
    "garbage",
    "no_grad",
    "expandable segments",
    "kernels that write less",
    "autocast",
    "micro-batches",
    "checkpointing",
    "offloading",
    "lora",
    "several gpus",
)


def remedies_of(page):
    if page.startswith("lecture"):
        text = notebook_source(page[-2:], "the order is that of the price")
        return " ".join(text.split()).partition("The order is that of the price")[2]
    text = (DOCS / page).read_text(encoding="utf-8")
    if page == "cheatsheet.md":
        return "\n".join(
            re.findall(r"^\d+\. (.+)$", text.partition("## When it does not fit")[2].partition("\n## ")[0], re.M)
        )
    return re.search(r"^\*\*In which order do you try remedies\?\*\* (.+)$", text, re.MULTILINE)[1]


def notebook_source(number, words):
    """The cell of a lecture's text that has these words."""
    path = ROOT / "notebooks" / f"{LESSONS[number].name}.ipynb"
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    return next(source for source in cells if words in " ".join(source.split()).lower())


@pytest.mark.parametrize("page", ["lecture 05", "lecture 08", "cheatsheet.md", "interview.md"])
def test_the_remedies_are_in_the_same_order_everywhere(page):
    text = remedies_of(page).lower()
    places = {name: text.find(name) for name in REMEDIES}
    assert -1 not in places.values(), places
    assert sorted(places, key=places.get) == list(REMEDIES)


def source_of(path, start, end):
    """What stands in a file between two pieces of its text."""
    text = (ROOT / path).read_text(encoding="utf-8")
    assert start in text, f"{path} no longer says {start!r}"
    return text.partition(start)[2].partition(end)[0].lower()


# Where some of them are tried or named one after the other, and other words for a remedy there.
IN_PART = {
    "06, bars": (
        ("lessons/06_less_memory/lecture.py", "prices = {", "show(prices)"),
        {"kernels that write less": '"kernel"', "checkpointing": "+ checkpointing"},
    ),
    "06, text": (
        ("lessons/06_less_memory/lecture.py", "What costs no time comes first", "A plan is a prediction"),
        {"kernels that write less": "attention kernel", "autocast": "mixed precision"},
    ),
    "13": (
        ("lessons/13_sharding/lecture.py", "where you have several GPUs anyway", "# %%"),
        {"offloading": "**offload**", "several gpus": "more gpus"},
    ),
    "interview, the whole story": (
        ("docs/interview.md", "try remedies from the cheapest on:", "`empty_cache`"),
        {"autocast": "16 bits"},
    ),
    "gpulab run": (
        ("virtualgpu/running/hints.py", "def _out_of_memory", "def _room"),
        {"expandable segments": "expandable_segments", "several gpus": "smallest gpu of the table"},
    ),
    "gpulab run --what-if": (
        ("virtualgpu/running/remedies.py", "found = [", "return ["),
        {
            "expandable segments": "_expandable()",
            "kernels that write less": '"fused"',
            "autocast": '"autocast"',
            "micro-batches": '"micro-batch"',
            "checkpointing": "_checkpointing(",
            "several gpus": "_ranks(",
        },
    ),
    "15": (("lessons/15_capstone/lecture.py", "**It does not fit:**", "**It is slow:**"), {}),
}


@pytest.mark.parametrize("place", IN_PART)
def test_who_names_some_of_them_keeps_the_order(place):
    where, words = IN_PART[place]
    text = source_of(*where)
    found = [position for name in REMEDIES if (position := text.find(words.get(name, name))) >= 0]
    assert len(found) >= 2
    assert found == sorted(found)


def test_the_glossary_is_in_alphabetical_order_and_names_lessons_that_are_there():
    lines = (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [line for line in lines if line.startswith("**")]
    names = [re.sub(r"[^a-z0-9 ]", "", line.split("**")[1].lower()) for line in terms]
    assert len(names) > 80
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    for line in terms:
        found = re.search(r"\(lessons? ([\d, and]+)\)$", line)
        assert found, line
        assert set(re.findall(r"\d\d", found[1])) <= {f"{lesson.number:02d}" for lesson in course.LESSONS}, line


def test_the_checklist_has_its_eighteen_rows():
    text = (DOCS / "cheatsheet.md").read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)] == list(range(1, 19))


def test_interview_questions_are_answered():
    text = (DOCS / "interview.md").read_text(encoding="utf-8")
    questions = re.findall(r"^\*\*(.+?)\*\* (.+)$", text, re.MULTILINE)
    assert len(questions) > 25
    assert all(question.endswith(("?", ".")) and len(answer.split()) > 15 for question, answer in questions)


# Where an address may lead. One that is not here: look at it, then add its host; the test itself opens none.
HOSTS = {
    *("docs.pytorch.org", "pytorch.org", "docs.nvidia.com", "forums.developer.nvidia.com", "docs.python.org"),
    *("github.com", "huggingface.co", "arxiv.org", "doi.org", "ui.perfetto.dev"),
    *("docs.aws.amazon.com", "cloud.google.com", "learn.microsoft.com", "slurm.schedmd.com", "man7.org"),
    *("creativecommons.org", "www.apache.org", "www.w3.org"),
}
NAMESPACES = {"http://www.w3.org/2000/svg"}  # a name, and no address
READ = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "LICENSE", "LICENSE-TEXT")),
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "lessons").glob("*/*.py")),
    *sorted((ROOT / "lessons").glob("*/quiz.toml")),
]


def anchors(path):
    """The names by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [path for path in READ if path.suffix in (".md", ".py")], ids=lambda page: page.name)
def test_a_link_leads_to_a_file_and_heading_that_are_there(page):
    folder = ROOT / "notebooks" if page.suffix == ".py" else page.parent  # lectures are read as notebooks
    for target in re.findall(
        r"\]\((?!\w+:)([^()\s]+\.(?:md|ipynb|py)(?:#[^()\s]+)?|#[^()\s]+)\)", page.read_text("utf-8")
    ):
        name, _, anchor = target.partition("#")
        path = folder / name if name else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), target


def addresses(text):
    """The addresses of the web in a text, without the full stop of its sentence."""
    return {found.rstrip(".,;:") for found in re.findall(r"\b\w+://[^\s<>\"'`)\]|]+", text)}


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_an_address_of_the_web_is_sound_as_far_as_it_can_be_seen_without_opening_it(page):
    for address in addresses(page.read_text(encoding="utf-8")) - NAMESPACES:
        if address.startswith(("tcp:", "file:", "chrome:", "env:", "http://localhost", "http://127.0.0.1")):
            continue  # of this machine
        assert address.startswith("https://"), address
        assert urlsplit(address).hostname in HOSTS, f"{address}: is its host right? Then add it to HOSTS"
        assert not re.search(r"pytorch\.org/(docs/)?\d", address), f"{address}: docs of one version; take stable"
        assert not address.startswith(("https://pytorch.org/docs", "https://pytorch.org/tutorials")), "docs.pytorch.org"


def test_addresses_are_found_and_faults_in_them_seen():
    assert addresses("see <https://docs.pytorch.org/a>, (https://arxiv.org/abs/1) or http://x.org/b.") == {
        "https://docs.pytorch.org/a",
        "https://arxiv.org/abs/1",
        "http://x.org/b",
    }
    assert sum(len(addresses(page.read_text(encoding="utf-8")) - NAMESPACES) for page in READ) >= 5
