"""What a check says that is no error: a card in a notebook, a line elsewhere."""

import html
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

import gpulab
from gpulab.notebook import check_output
from virtualgpu.pictures import display, style


@pytest.fixture
def notebook(monkeypatch):
    """A notebook is played: the bundles that are displayed land here."""
    found = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr(check_output, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: found.append(data))
    return found


def test_a_pass_is_a_line_outside_of_a_notebook(capsys):
    check_output.passed("window", "all fit", "(your function printed: 1 < 2)", "progress not recorded: no room")
    assert capsys.readouterr().out == (
        "✔ window: all fit\n  (your function printed: 1 < 2)\n  progress not recorded: no room\n"
    )


def test_a_pass_is_a_card_with_the_same_line_in_a_notebook(notebook, capsys):
    check_output.passed("window", "all fit", "(your function printed: 1 < 2)")
    (bundle,) = notebook
    assert bundle["text/plain"] == "✔ window: all fit\n  (your function printed: 1 < 2)"
    assert "<strong>window</strong> passed: all fit\n(your function printed: 1 &lt; 2)</div>" in bundle["text/html"]
    assert capsys.readouterr() == ("", "")


class Cell(InteractiveShell):
    """An IPython cell, whose tracebacks end up in `tracebacks`."""

    def _showtraceback(self, etype, evalue, stb):
        self.tracebacks = [*getattr(self, "tracebacks", []), "\n".join(stb)]


@pytest.fixture
def run():
    """Run the source of a cell, and return the traceback that is shown."""
    shell = Cell()
    shell.user_ns["gpulab"] = gpulab

    def one(source):
        shell.run_cell(source)
        return shell.tracebacks[-1]

    return one


STUB = """
class Window:
    def __init__(self, x):
        {body}
"""


def test_a_cell_that_uses_a_stub_gets_one_calm_note_that_names_it(notebook, run):
    traceback = run(STUB.format(body="raise gpulab.NotAttempted") + "\nWindow(1)")
    (bundle,) = notebook
    assert bundle["text/plain"] == "○ Window: not attempted yet"
    assert "write it in the cell of Window, then run this one again" in bundle["text/html"]
    assert ".jp-OutputArea-child:has(.gpulab-not-yet) + " in bundle["text/html"]
    assert traceback == "not attempted yet: this exercise is not written yet"


def test_a_stub_outside_of_a_function_gets_a_note_without_a_name(notebook, run):
    run("raise gpulab.NotAttempted")
    assert [bundle["text/plain"] for bundle in notebook] == ["○ this exercise: not attempted yet"]


def test_an_exception_of_the_student_stays_as_it_is(notebook, run):
    traceback = run(STUB.format(body="x.nothing") + "\nWindow(1)")
    assert notebook == []
    assert "AttributeError" in traceback
    assert "x.nothing" in traceback


def test_a_failure_is_one_card_with_all_that_the_error_says(notebook, run):
    traceback = run(
        "def double(x):\n    return x.nothing_of_this_name\n"
        "failed = gpulab.CheckFailed('window', 'it raised <Type>', got='a & b', likely='word ' * 40)\n"
        "failed.notes.append('in double, line 2: return x')\nraise failed"
    )
    (bundle,) = notebook
    assert bundle["text/plain"] == traceback
    page = bundle["text/html"]
    words = html.unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)).split()
    assert words == f"✘ window : it raised <Type> got a & b likely {'word ' * 40} in double, line 2: return x".split()
    assert ".jp-OutputArea-child:has(.gpulab-failed) + " in page
    assert "overflow-wrap: break-word" in page


@pytest.mark.parametrize("right", [True, False])
def test_the_text_of_a_card_reads_on_its_colour_in_both_themes(right):
    colour = re.search("background: #(..)(..)(..)1f;", check_output.look(right)).groups()
    for ground, ink in ((style.PAPER, style.INK), (style.DARK[style.PAPER], style.DARK[style.INK])):
        below = [int(ground[i : i + 2], 16) for i in (1, 3, 5)]
        share = 0x1F / 255
        card = [int(c, 16) * share + b * (1 - share) for c, b in zip(colour, below, strict=True)]
        dark, light = sorted((luminance(card), luminance([int(ink[i : i + 2], 16) for i in (1, 3, 5)])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(parts):
    """WCAG 2's relative luminance of red, green and blue from 0 to 255."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_is_not_attempted_is_a_quiet_line_in_a_notebook_and_nothing_elsewhere(notebook, monkeypatch, capsys):
    check_output.not_attempted("window: not attempted yet")
    (bundle,) = notebook
    assert bundle["text/plain"] == "○ window: not attempted yet"
    assert "write it in the cell above" in bundle["text/html"]
    monkeypatch.setattr(check_output, "in_notebook", lambda: False)
    check_output.not_attempted("window: not attempted yet")
    assert len(notebook) == 1
    assert capsys.readouterr() == ("", "")
