"""Shows quiz questions from a lesson's `quiz.toml`, with a reason for every option.

With a kernel they are radio buttons, and right answers go into the progress file. Without one, each option unfolds to
its reason, or is plain text.
"""

from __future__ import annotations

import html
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from virtualgpu.pictures.display import show

from .. import course
from . import front_end, progress
from .check_output import look


@dataclass(frozen=True)
class Option:
    text: str
    right: bool
    why: str


@dataclass(frozen=True)
class Question:
    """One question with exactly one right option; texts may contain `code` in backticks. `see` is the number of another
    lesson to link to."""

    lesson: int
    id: str
    text: str
    options: tuple[Option, ...]
    see: int | None = None


def quiz(lesson: int, *ids: str) -> None:
    """Show the questions of a lesson: all, or those with these ids, in that order.

    Raises ValueError for an id that the lesson does not have.
    """
    known = {question.id: question for question in questions(lesson)}
    if unknown := [i for i in ids if i not in known]:
        raise ValueError(f"ids: lesson {lesson:02d} has no question {unknown[0]!r}; it has: {', '.join(known)}")
    chosen = [known[i] for i in ids] if ids else list(known.values())
    for number, question in enumerate(chosen, 1):
        show(
            _as_text(question, number),
            html=_as_html(question, number),
            widget=lambda question=question, number=number: _as_widget(question, number),  # type: ignore[misc]
        )
        if question.see is not None:  # an output of its own: JupyterLab follows links there, and not in widgets
            about = course.lesson(question.see)
            link = f'<a href="../notebooks/{about.name}.ipynb">{about.name}</a>'
            show(f"Question {number} is about lesson {about.name}", html=f"<p>Question {number} is about {link}</p>")


def questions(lesson: int) -> tuple[Question, ...]:
    file = course.lesson(lesson).folder / "quiz.toml"
    if not file.exists():
        return ()
    return tuple(
        Question(
            lesson,
            entry["id"],
            " ".join(entry["text"].split()),
            tuple(
                Option(" ".join(o["text"].split()), bool(o.get("right", False)), " ".join(o["why"].split()))
                for o in entry["option"]
            ),
            entry.get("see"),
        )
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["question"]
    )


def _letters(question: Question) -> list[tuple[str, Option]]:
    return list(zip("ABCDEFGH", question.options, strict=False))


def _as_text(question: Question, number: int) -> str:
    lines = [f"Question {number}: {question.text}"]
    lines += [f"  {letter}) {option.text}" for letter, option in _letters(question)]
    return "\n".join(lines)


def _as_html(question: Question, number: int) -> str:
    """Return a page for readers without a kernel: each option unfolds to its verdict and reason."""
    options = "".join(
        f"<details><summary>{letter}) {_inline(option.text)}</summary>"
        f'<p style="margin: 0.2em 0 0.6em 1.4em; {look(option.right)}">{_verdict(option)}</p></details>'
        for letter, option in _letters(question)
    )
    return f"<section><p><strong>Question {number}.</strong> {_inline(question.text)}</p>{options}</section>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))


def _verdict(option: Option) -> str:
    mark = "✔ <strong>Right.</strong>" if option.right else "✘ <strong>Not so.</strong>"
    return f"{mark} {_inline(option.why)}"


def _as_widget(question: Question, number: int) -> Any:
    """Return radio buttons and a button; a wrong answer shows its reason, the right one all reasons. A question that
    was answered in an earlier session shows its answer.
    """
    import ipywidgets as widgets

    letters = _letters(question)
    asked = widgets.HTML(f"<p><strong>Question {number}.</strong> {_inline(question.text)}</p>")
    choice = widgets.RadioButtons(
        options=[(f"{letter}) {option.text.replace('`', '')}", i) for i, (letter, option) in enumerate(letters)],
        value=None,
        layout={"width": "auto", "max_width": "100%"},
    )
    button = widgets.Button(description="Check answer", tooltip=f"Check the answer to question {number}")
    feedback = widgets.HTML()

    def reasons(place: int) -> list[str]:
        """Return the reason of the chosen option, and if it is right those of all others."""
        chosen = letters[place]
        others = [each for each in letters if each != chosen] if chosen[1].right else []
        return [
            f'<p style="{look(option.right)}">{letter}) {_verdict(option)}</p>' for letter, option in (chosen, *others)
        ]

    def answer(_: Any) -> None:
        if choice.value is None:
            feedback.value = "<p>Choose an option first: arrow keys, then Tab and Enter.</p>"
            return
        lines = reasons(choice.value)
        if question.options[choice.value].right:
            notes = progress.record_passed("questions", question.lesson, question.id)
            lines += [f"<p>{html.escape(note)}</p>" for note in notes]
        feedback.value = "".join(lines)

    kept = progress.read_progress()
    said = [f"<p>{html.escape(note)}</p>" for note in kept.notes]
    if question.id in kept.questions.get(question.lesson, ()):
        choice.value = next(place for place, option in enumerate(question.options) if option.right)
        said += ["<p>You have answered this one.</p>", *reasons(choice.value)]
    feedback.value = "".join(said)
    button.on_click(answer)
    label = f"Question {number}: {question.text.replace('`', '')}"
    return front_end.box([asked, choice, button, feedback], answer=feedback, label=label)
