"""The reference pages agree with the notebooks: what they point to is there, and what they quote is said there."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest

from gpulab import course

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
        elif line.startswith("| ") and not line.startswith(("| you will read", "| message")):
            found.append((number, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]))
    return found


MYTHS, ERRORS = rows("myths.md"), rows("errors.md")


def test_there_are_myths_of_every_lesson_that_is_written():
    assert {number for number, _ in MYTHS} == set(LESSONS) - {"00"}
    assert len(MYTHS) > 60


@pytest.mark.parametrize(("number", "cells"), MYTHS, ids=[cells[0][:50] for _, cells in MYTHS])
def test_a_myth_has_source_verdict_and_a_section_that_tests_it(number, cells):
    claim, source, verdict, tested, instead = cells
    assert all((claim, verdict, instead))
    assert re.fullmatch(r"00[0-4](, 00[0-4])*|web", source), source
    headings, _ = notebook(number)
    sections = re.findall(r"\*([^*]+)\*", tested)
    assert sections, f"no section in {tested!r}"
    for section in sections:
        assert any(flat(heading).startswith(flat(section)) for heading in headings), section


@pytest.mark.parametrize(("number", "cells"), ERRORS, ids=[cells[0][:50] for _, cells in ERRORS])
def test_a_message_is_one_that_its_lesson_shows(number, cells):
    message, cause, repair, lessons = cells
    assert cause
    assert repair
    numbers = [number for number in re.findall(r"\b(\d\d)\b", lessons) if number in LESSONS]
    assert numbers, f"no lesson in {lessons!r}"
    if lessons.endswith("(explained here only)"):
        return
    quoted = " … ".join(re.findall(r"`+ ?(.+?) ?`+(?!\w)", message))
    pieces = [flat(piece).strip()[:24] for piece in re.split(r"…|\.\.\.|Error: |Warning: |[()]", quoted)]
    told = [notebook(number)[1] for number in numbers]
    assert any(len(piece) > 11 and piece in text for piece in pieces for text in told), pieces


def test_every_error_that_a_lecture_raises_is_in_the_index():
    index = flat((DOCS / "errors.md").read_text(encoding="utf-8"))
    for lesson in LESSONS.values():
        for cell in nbformat.read(ROOT / "notebooks" / f"{lesson.name}.ipynb", as_version=4).cells:
            for output in cell.get("outputs", []):
                own = output.get("ename") in ("NotAttempted", "CheckFailed") or "raise RuntimeError(" in cell.source
                if output.output_type == "error" and not own:
                    assert flat(output.evalue)[:25].strip() in index, output.evalue


def test_the_messages_are_in_alphabetical_order_and_each_is_there_once():
    names = [re.sub(r"[^a-z0-9 ]", "", cells[0].lower()).strip() for _, cells in ERRORS]
    assert names == sorted(names)
    quotes = [" … ".join(re.findall(r"`+ ?(.+?) ?`+(?!\w)", cells[0])) for _, cells in ERRORS]
    pieces = [
        [flat(p).strip() for p in re.split(r"…|\.\.\.|Error: |Warning: ", quote) if len(p) > 20] for quote in quotes
    ]
    for i, mine in enumerate(pieces):
        others = [flat(quote) for j, quote in enumerate(quotes) if j != i]
        assert not mine or not any(all(piece in other for piece in mine) for other in others), quotes[i]


@pytest.mark.parametrize(("number", "cells"), ERRORS, ids=[cells[0][:50] for _, cells in ERRORS])
def test_a_row_is_understood_without_its_neighbour(number, cells):
    assert not re.match(r"the same\b|as above|see above", " ".join(cells[1:]).lower())


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
    if page == "lecture":
        text = notebook_source("05", "the order is that of the price")
        rows = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)[1:]
        return "\n".join(rows)
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


@pytest.mark.parametrize("page", ["lecture", "cheatsheet.md", "interview.md"])
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
        ("lessons/06_less_memory/lecture.py", "Memory that costs no time comes first", "A plan is a prediction"),
        {"kernels that write less": "attention kernel", "autocast": "mixed precision"},
    ),
    "13": (
        ("lessons/13_sharding/lecture.py", "where several GPUs are there anyway", "# %%"),
        {"offloading": "**offload**", "several gpus": "more gpus"},
    ),
    "interview, the whole story": (
        ("docs/interview.md", "take remedies by price:", "`empty_cache`"),
        {"autocast": "16 bits"},
    ),
    "gpulab run": (
        ("virtualgpu/running/hints.py", "def _out_of_memory", "def _room"),
        {"expandable segments": "expandable_segments", "several gpus": "smallest gpu of the table"},
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
