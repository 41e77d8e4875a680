"""Commands as a control: from code, in the box, by a menu of examples, by buttons."""

import re
from dataclasses import dataclass

import pytest

from gpulab.sim.base.simulator import Result, Script, Simulator, Slider
from virtualgpu.pictures import svg

from .page import Page


@dataclass(frozen=True)
class Walk(Result):
    steps: tuple[str, ...]
    miles: int

    @property
    def finding(self) -> str:
        return f"{len(self.steps)} steps"

    def rows(self):
        return [("steps", " ".join(self.steps) or "none", "")]


def read(text):
    steps = [word for word in re.split(r"[;\s]+", text) if word]
    for step in steps:
        if step not in ("left", "right"):
            raise ValueError(f"{step!r} is no step. Known: left, right.")
    return steps


EXAMPLES = {"there": "left; left", "back": "right; right"}


class Stroll(Simulator[Walk]):
    controls = (
        Script("steps", "Steps", "there", read, examples=EXAMPLES, buttons={"To the left": "left"}),
        Slider("miles", "Miles", 0, 9, 1),
    )
    leaves_out = "The weather."
    model = staticmethod(lambda steps, miles: Walk(tuple(read(EXAMPLES.get(steps, steps))), miles))
    draw = staticmethod(lambda walk: svg.Picture(600, 80, walk.finding, walk.describe(), ()))


class TestFromCode:
    def test_an_example_by_its_name_and_commands_as_text(self):
        assert Stroll().result.steps == ("left", "left")
        assert Stroll(steps="back").result.steps == ("right", "right")
        assert Stroll(steps="left right").result.steps == ("left", "right")
        assert Stroll(steps="").result.steps == ()

    def test_what_was_asked_for_is_what_values_say(self):
        sim = Stroll(steps="back")
        assert sim.values["steps"] == "back"
        sim.set(steps="left;right")
        assert sim.values["steps"] == "left;right"

    @pytest.mark.parametrize(
        ("steps", "error", "message"),
        [
            ("jump", ValueError, "stroll(steps='jump'): 'jump' is no step. Known: left, right."),
            ("jump", ValueError, "Or the name of an example: there, back."),
            (7, TypeError, "stroll(steps=7): steps must be text, not int"),
            (b"left", TypeError, "steps must be text, not bytes"),
            (["left"], TypeError, "steps must be text, not list"),
        ],
    )
    def test_what_is_wrong_is_named(self, steps, error, message):
        with pytest.raises(error, match=re.escape(message)):
            Stroll(steps=steps)

    def test_a_bad_set_changes_nothing(self):
        sim = Stroll()
        with pytest.raises(ValueError, match=re.escape("stroll.set(steps='jump')")):
            sim.set(miles=3, steps="jump")
        assert sim.values == {"steps": "there", "miles": 1}

    def test_a_long_text_does_not_fill_the_page(self):
        with pytest.raises(ValueError, match="no step") as caught:
            Stroll(steps="left " * 5000 + "jump")
        assert len(str(caught.value)) < 300


class TestOnThePage:
    def test_it_opens_with_the_text_of_the_example(self):
        assert Page(Stroll()).view["values"]["steps"] == "left; left"

    def test_the_page_knows_examples_and_buttons(self):
        (control, _) = Page(Stroll()).live.front.spec["controls"]
        assert control == {
            "kind": "script",
            "name": "steps",
            "label": "Steps",
            "examples": EXAMPLES,
            "buttons": {"To the left": "left"},
        }

    def test_what_cannot_be_run_is_said_and_what_was_right_stays(self):
        page = Page(Stroll())
        view = page.ask(steps="left jump")
        assert "'jump' is no step. Known: left, right." in view["error"]
        assert view["values"]["steps"] == "left; left"
        assert page.simulator.result.steps == ("left", "left")
        assert page.ask(miles=5)["error"] == ""
        assert page.simulator.values == {"steps": "there", "miles": 5}
