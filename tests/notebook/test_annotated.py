"""Code with explanations: what is named is found or refused, and each form holds every line and every note."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import annotated
from gpulab.notebook import annotated as module
from virtualgpu.pictures import display

CODE = """
    def step(x):

        y = x < 2 & 1
        return y
"""
NOTES = {"return": "At the end.", "x < 2": "Bits <b>first</b>."}


def show(code, notes, capsys):
    annotated(code, notes)
    return capsys.readouterr().out


@pytest.fixture
def page(monkeypatch):
    """The HTML that a notebook gets."""
    found = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: found.append(data))

    def shown(code, notes):
        annotated(code, notes)
        return found[-1]["text/html"]

    return shown


def test_in_a_terminal_an_explanation_is_a_comment_above_its_line(capsys):
    assert show(CODE, NOTES, capsys) == (
        "def step(x):\n\n    # Bits <b>first</b>.\n    y = x < 2 & 1\n    # At the end.\n    return y\n"
    )


def test_a_function_shows_its_own_source(capsys):
    assert show(display.in_notebook, {"def in_notebook": "Asks IPython."}, capsys).startswith(
        "# Asks IPython.\ndef in_notebook() -> bool:\n"
    )


def test_a_number_names_a_line_too(capsys):
    assert show(CODE, {4: "At the end."}, capsys).endswith("    # At the end.\n    return y\n")


def test_a_page_has_a_button_for_each_explained_line_and_none_else(page):
    html = page(CODE, NOTES)
    body = html.partition("</style>")[2]
    assert body.count("<input") == body.count("<blockquote") == 2
    assert body.count("<code ") == 4
    assert body.count(" checked>") == 1
    assert body.index(" checked>") < body.index("y = x &lt; 2 &amp; 1") < body.index("Bits &lt;b&gt;first&lt;/b&gt;.")
    for described in re.findall(r'aria-describedby="([^"]+)"', body):
        assert body.count(f'id="{described}"') == 1
    assert "<script" not in html


def test_a_page_is_the_same_each_time_and_its_buttons_are_a_group_of_their_own(page):
    def group(html):
        (name,) = set(re.findall(r'name="([^"]+)"', html))
        return name

    assert page(CODE, NOTES) == page(CODE, dict(reversed(NOTES.items())))
    assert group(page(CODE, NOTES)) != group(page(CODE, {"return": "At the end."}))


def test_without_a_style_the_page_reads_as_lines_with_explanations_below(page):
    words = re.sub(r"<[^>]+>", "\n", page(CODE, NOTES).partition("</style>")[2]).replace("&nbsp;", " ")
    read = [line for line in words.splitlines() if line.strip()]
    assert read == [
        "def step(x):",
        "    y = x &lt; 2 &amp; 1",
        "Bits &lt;b&gt;first&lt;/b&gt;.",
        "    return y",
        "At the end.",
    ]


@pytest.mark.parametrize(
    ("notes", "error", "words"),
    [
        ({"yield": "?"}, ValueError, r"^notes: 'yield' stands in no line of the code$"),
        ({"y": "?"}, ValueError, r"^notes: 'y' stands in lines 3, 4: give a longer piece$"),
        ({"": "?"}, ValueError, r"^notes: '' stands in no line of the code$"),
        ({5: "?"}, ValueError, r"^notes: there is no line 5; the code has lines 1 to 4$"),
        ({2: "?"}, ValueError, r"^notes: line 2 is blank, so there is nothing to explain$"),
        ({True: "?"}, TypeError, r"by a part of its text or by its number, not by True$"),
        ({"return": " "}, ValueError, r"^notes\['return'\] is empty"),
        ({"return": 3}, TypeError, r"^notes\['return'\] must be a text, not 3$"),
        ({"return": "a", 4: "b"}, ValueError, r"^notes\[4\] is the second note on line 4, 'return y'$"),
        ({}, ValueError, r"^notes is empty; it must explain at least one line$"),
    ],
)
def test_a_note_that_fits_no_line_is_refused_by_name(notes, error, words):
    with pytest.raises(error, match=words):
        annotated(CODE, notes)


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (3, TypeError, r"^code must be a text or a function, not 3$"),
        (print, ValueError, r"has no source that can be read; give the text itself$"),
        (" \n", ValueError, r"^code is empty; it must have at least one line$"),
    ],
)
def test_what_is_no_code_is_refused(code, error, words):
    with pytest.raises(error, match=words):
        annotated(code, {1: "a"})


@given(lines=st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1), min_size=1))
def test_without_its_comments_the_text_is_the_code(lines):
    code = module._lines("\n".join(lines))
    said = {number: f"note {number}" for number in range(1, 1 + len(code))}
    text = module._as_text(code, said).splitlines()
    assert [line for line in text if not line.startswith("# note ")] == code
