"""Commands as a control: from code, in the box, by a menu of examples, by buttons."""

import re
from dataclasses import dataclass

import pytest

from gpulab.sim.base.live import Live
from gpulab.sim.base.simulator import Result, Script, Simulator, Slider
from virtualgpu.pictures import svg


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


@pytest.fixture
def stroll():
    """The simulator with its widgets: the box of text, the menu, and the buttons by their words."""
    sim = Stroll()
    sim._live = live = Live(sim)
    row = live.box.children[0].children[0]
    line, buttons = row.children
    sim.box, sim.menu = line.children
    sim.buttons = {button.description: button for button in buttons.children}
    return sim


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


class TestLive:
    def test_it_opens_with_the_text_of_the_example(self, stroll):
        assert stroll.box.value == "left; left"
        assert stroll.menu.value == "left; left"
        assert stroll.menu.label == "there"

    def test_typed_commands_are_run_and_the_menu_says_that_they_are_your_own(self, stroll):
        stroll.box.value = "left right"
        assert stroll.result.steps == ("left", "right")
        assert stroll.menu.label == "your own"

    def test_an_example_chosen_is_run(self, stroll):
        stroll.menu.label = "back"
        assert stroll.result.steps == ("right", "right")
        assert stroll.box.value == "right; right"

    def test_a_button_adds_its_command(self, stroll):
        stroll.buttons["To the left"].click()
        assert stroll.box.value == "left; left; left"
        assert stroll.result.steps == ("left",) * 3

    def test_a_button_twice_adds_it_twice(self, stroll):
        stroll.set(steps="")
        stroll.buttons["To the left"].click()
        stroll.buttons["To the left"].click()
        assert stroll.result.steps == ("left", "left")

    def test_undo_and_clear(self, stroll):
        stroll.buttons["Undo"].click()
        assert stroll.result.steps == ("left",)
        stroll.buttons["Clear"].click()
        assert stroll.result.steps == ()
        stroll.buttons["Undo"].click()
        assert stroll.result.steps == ()

    def test_what_cannot_be_run_is_said_in_the_picture_and_undone_first(self, stroll):
        stroll.box.value = "left jump"
        assert "&#x27;jump&#x27; is no step. Known: left, right." in stroll._live._picture.value
        assert "<svg" in stroll._live._picture.value  # of the commands before
        assert stroll.result.steps == ("left", "left")
        stroll.buttons["Undo"].click()
        assert stroll.box.value == "left; left"
        assert 'role="alert"' not in stroll._live._picture.value

    def test_a_button_after_what_cannot_be_run_goes_on_from_what_could(self, stroll):
        stroll.box.value = "jump"
        stroll.buttons["To the left"].click()
        assert stroll.result.steps == ("left",) * 3

    def test_another_control_puts_the_last_good_text_back(self, stroll):
        stroll.box.value = "jump"
        stroll._live._widgets["miles"].value = 5
        assert stroll.box.value == "left; left"
        assert stroll.values == {"steps": "there", "miles": 5}

    def test_set_moves_box_and_menu(self, stroll):
        stroll.set(steps="back")
        assert (stroll.box.value, stroll.menu.label) == ("right; right", "back")

    def test_box_and_menu_have_names(self, stroll):
        assert [part.description for part in (stroll.box, stroll.menu)] == ["Steps", "Example"]
        assert all(stroll.buttons)

    def test_half_a_command_is_not_sent(self, stroll):
        assert stroll.box.continuous_update is False

    def test_one_press_draws_once(self, stroll):
        drawn = []
        stroll._live._picture.observe(drawn.append, names="value")
        stroll.buttons["To the left"].click()
        stroll.menu.label = "back"
        assert len(drawn) == 2
