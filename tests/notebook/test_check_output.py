"""What a check says that is no error: a card in a notebook, a line elsewhere."""

import pytest

from gpulab.notebook import check_output
from virtualgpu.pictures import display


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


def test_what_is_not_attempted_is_a_quiet_line_in_a_notebook_and_nothing_elsewhere(notebook, monkeypatch, capsys):
    check_output.not_attempted("window: not attempted yet")
    (bundle,) = notebook
    assert bundle["text/plain"] == "○ window: not attempted yet"
    assert "write it in the cell above" in bundle["text/html"]
    monkeypatch.setattr(check_output, "in_notebook", lambda: False)
    check_output.not_attempted("window: not attempted yet")
    assert len(notebook) == 1
    assert capsys.readouterr() == ("", "")
