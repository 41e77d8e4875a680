"""The front end of the simulators on a page without Jupyter: its script needs a model of a few functions.

What the picture offers is dragged with the mouse, and all of it by keyboard. That JupyterLab shows the same is tested
in test_simulators.py.
"""

import io
import json
from dataclasses import dataclass
from importlib.resources import files

import pytest
from PIL import Image

from gpulab.sim.base.controls import Choice, Flag, Play, Script, Slider
from gpulab.sim.base.live import Live
from gpulab.sim.base.simulator import Result, Simulator, State
from gpulab.sim.base.touch import Grip, clickable, command, draggable, named
from virtualgpu.pictures.style import INK, SKY
from virtualgpu.pictures.svg import Picture, rect, text

pytestmark = pytest.mark.browser

PAGE = """<!doctype html><body style="margin:0;background:GROUND"><div id="el" style="width:WIDTHpx"></div>
<script type="module">
SCRIPT
const state = STATE, heard = {};
const model = {
  get: (key) => state[key],
  set: (key, value) => { state[key] = value; },
  on: (event, hear) => { (heard[event] ??= []).push(hear); },
  off: (event, hear) => { heard[event] = heard[event].filter((one) => one !== hear); },
  async save_changes() {
    window.questions = (window.questions ?? 0) + 1;
    state.view = await window.answer(JSON.stringify(state.asked));
    for (const hear of heard["change:view"] ?? []) hear();
  },
};
window.close_it = front.render({ model, el: document.getElementById("el") });
</script>"""
SCRIPT = (files("gpulab.sim.base") / "front.js").read_text(encoding="utf-8").replace("export default", "const front =")
READ = {"left", "right"}


@dataclass(frozen=True)
class Seen(Result):
    values: dict

    @property
    def finding(self):
        return "; ".join(f"{name} {value}" for name, value in self.values.items())

    def rows(self):
        return [(name, str(value), "virtual") for name, value in self.values.items()]


def read(words):
    steps = [step.strip() for step in words.split(";") if step.strip()]
    for step in steps:
        if step not in READ:
            raise ValueError(f"{step!r} is no step")
    return steps


def draw(seen):
    x = 100 + 400 * (seen.values["moment"] / 100)
    cursor = rect(x - 8, 20, 16, 60, fill=SKY)
    at = 100 + 400 * (seen.values["tasks"] / 1000) ** 0.5
    body = (
        draggable(cursor, "the moment", Grip("moment", 100, 500, 0, 100)),
        draggable(
            rect(at - 8, 90, 16, 16, fill=INK),
            "tasks and weight",
            Grip("tasks", 100, 500, 1, 10_000, log=True),
            Grip("weight", 200, 100, 0.0, 1.0, axis="y"),
        ),
        clickable(rect(20, 20, 40, 20, fill=SKY), "the second kind", kind="b"),
        command(rect(20, 60, 40, 20, fill=SKY), "one to the left", "steps", "left"),
        named(text(20, 150, "hello"), "what it is"),
    )
    return Picture(600, 220, seen.finding, seen.describe(), body)


class Toy(Simulator):
    controls = (
        Slider("tasks", "Tasks", 1, 10_000, 100, log=True),
        Play("moment", "Moment", 0, 100, 40, unit="%", step=10, frames_per_second=20),
        Slider("weight", "Weight", 0.0, 1.0, 0.5, step=0.05),
        Choice("kind", "Kind", {"a": "the first", "b": "the second"}, "a"),
        Flag("on", "Switched on", False),
        Script(
            "steps", "Steps", "left; right", read, examples={"back": "right; right"}, buttons={"To the left": "left"}
        ),
    )
    states = (
        State("few", {"tasks": 1}, "One task."),
        State("some", {"tasks": 100}, "A hundred."),
        State("many", {"tasks": 10_000}, "All of them."),
    )
    model = staticmethod(lambda **values: Seen(values))
    draw = staticmethod(draw)
    leaves_out = "All else."


@pytest.fixture
def open_page(browser):
    """Open a toy simulator on a page of its own; returns the page, the simulator beside it as `page.toy`."""
    contexts = []

    def open_one(*, dark=False, width=940, calm=False, presented=False):
        context = browser.new_context(
            viewport={"width": 950, "height": 720}, reduced_motion="reduce" if calm else "no-preference"
        )
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.toy = toy = Toy()
        toy._live = live = Live(toy)

        def answer(asked):
            live.front.asked = json.loads(asked)
            return live.front.view

        page.expose_function("answer", answer)
        names = ("spec", "view", "look", "scale", "asked")
        state = {name: getattr(live.front, name) for name in names} | {"presented": presented}
        text = PAGE.replace("SCRIPT", SCRIPT).replace("STATE", json.dumps(state).replace("</", "<\\/"))
        page.set_content(text.replace("GROUND", "#111" if dark else "#fff").replace("WIDTH", str(width)))
        page.locator(".gpulab-picture svg").wait_for()
        return page

    yield open_one
    for context in contexts:
        for page in context.pages:
            assert page.complaints == []
        context.close()


def becomes(page, name, value):
    """Wait until the simulator has this value, and the page shows its answer."""
    page.locator(".gs-headline", has_text=f"{name} {value}").wait_for()
    assert page.toy.values[name] == value


def control(page, label):
    return page.get_by_role("slider", name=label, exact=True)


def grip(page, label):
    return control(page, f"{label}, in the picture")


def drag(page, place, dx=0, dy=0):
    """Drag by so many pixels of the picture."""
    box = place.bounding_box()
    scale = page.locator(".gpulab-picture svg").evaluate("(svg) => svg.getScreenCTM().a")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + dx * scale, y + dy * scale, steps=4)
    page.mouse.up()


def test_what_is_dragged_in_the_picture_moves_its_control(open_page):
    page = open_page()
    drag(page, grip(page, "the moment"), dx=120)
    becomes(page, "moment", 70)
    drag(page, grip(page, "the moment"), dx=2000)
    becomes(page, "moment", 100)


def test_a_grip_of_two_controls_moves_both_and_a_decade_is_a_decade(open_page):
    page = open_page()
    place = grip(page, "tasks and weight")
    box = page.locator(".gpulab-picture svg").bounding_box()
    scale = page.locator(".gpulab-picture svg").evaluate("(svg) => svg.getScreenCTM().a")
    place.hover()
    page.mouse.down()
    page.mouse.move(box["x"] + 400 * scale, box["y"] + 125 * scale)
    page.mouse.up()
    becomes(page, "weight", 0.75)
    assert page.toy.values["tasks"] == 1000


def test_a_grip_answers_to_keys_and_keeps_the_focus(open_page):
    page = open_page()
    grip(page, "the moment").focus()
    for moment in (50, 60):
        page.keyboard.press("ArrowRight")
        becomes(page, "moment", moment)
    page.keyboard.press("Home")
    becomes(page, "moment", 0)
    assert grip(page, "the moment").get_attribute("aria-valuenow") == "0"
    assert grip(page, "the moment").get_attribute("aria-valuetext") == "0 %"
    grip(page, "tasks and weight").focus()
    page.keyboard.press("ArrowUp")
    becomes(page, "weight", 0.55)


@pytest.mark.parametrize("how", ["mouse", "Enter", "Space"])
def test_what_is_clicked_sets_values_and_adds_commands(open_page, how):
    page = open_page()
    for label, name, value in (("the second kind", "kind", "b"), ("one to the left", "steps", "left; right; left")):
        button = page.get_by_role("button", name=label, exact=True)
        button.click() if how == "mouse" else button.press(how)
        becomes(page, name, value)


def test_a_logarithmic_slider_reaches_each_decade_and_an_arrow_key_the_next_number(open_page):
    page = open_page()
    tasks = control(page, "Tasks")
    tasks.press("Home")
    becomes(page, "tasks", 1)
    tasks.press("ArrowRight")
    becomes(page, "tasks", 2)
    box = tasks.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("() => Number(document.querySelector('input[type=range]').ariaValueNow) > 50")
    assert 80 <= page.toy.values["tasks"] <= 125


def test_a_number_is_typed(open_page):
    page = open_page()
    number = page.get_by_role("textbox", name="Tasks, as a number")
    number.fill("1,234")
    number.press("Enter")
    becomes(page, "tasks", 1234)
    number.fill("many")
    number.press("Enter")
    assert number.input_value() == "1,234"
    number.fill("20000")
    number.press("Enter")
    becomes(page, "tasks", 10_000)


def test_many_moves_before_an_answer_are_one_question(open_page):
    page = open_page()
    page.evaluate("""() => {
        const range = document.querySelector("input[type=range]");
        for (let at = 1; at <= 100; at++) {
            range.value = at * 10;
            range.dispatchEvent(new Event("input"));
        }
    }""")
    becomes(page, "tasks", 10_000)
    assert page.evaluate("window.questions") == 2  # the first, and where it came to rest


def test_commands_are_typed_chosen_added_undone_and_cleared(open_page):
    page = open_page()
    page.locator("summary", has_text="More settings").click()
    box = page.get_by_role("textbox", name="Steps", exact=True)
    page.get_by_role("button", name="To the left", exact=True).click()
    becomes(page, "steps", "left; right; left")
    page.get_by_role("combobox", name="Example").select_option("back")
    becomes(page, "steps", "right; right")
    box.fill("right; jump")
    box.press("Enter")
    page.get_by_role("alert").filter(has_text="'jump' is no step").wait_for()
    assert page.toy.values["steps"] == "right; right"
    assert box.input_value() == "right; jump"  # what was typed is there, to be mended
    page.get_by_role("button", name="Undo").click()
    becomes(page, "steps", "right; right")
    assert box.input_value() == "right; right"
    page.get_by_role("button", name="Undo").click()
    becomes(page, "steps", "right")
    assert not page.get_by_role("alert").is_visible()
    page.get_by_role("button", name="Clear").click()
    page.locator(".gs-headline", has_text="steps").wait_for()
    page.wait_for_function("() => document.querySelector('[aria-label=Steps]').value === ''")
    assert page.toy.values["steps"] == ""


def test_play_runs_to_the_end_pauses_steps_and_goes_back(open_page):
    page = open_page()
    page.get_by_role("button", name="Play").click()
    becomes(page, "moment", 100)
    page.get_by_role("button", name="Play").wait_for()  # by itself
    page.get_by_role("button", name="Stop and go back").click()
    becomes(page, "moment", 0)
    page.get_by_role("button", name="Step").click()
    becomes(page, "moment", 10)


def test_where_motion_is_reduced_a_frame_lasts_a_second(open_page):
    page = open_page(calm=True)
    page.evaluate(
        "() => { window.delays = []; const own = setInterval; "
        "window.setInterval = (f, ms) => { window.delays.push(ms); return own(f, ms); }; }"
    )
    page.get_by_role("button", name="Play").click()
    assert page.evaluate("window.delays") == [1000]


def test_states_are_stepped_by_arrow_keys_and_a_moved_control_leaves_them(open_page):
    page = open_page()
    states = page.get_by_role("radiogroup", name="See it move")
    some = states.get_by_role("radio", name="some")
    assert some.is_checked()  # as it opens
    some.press("ArrowRight")
    becomes(page, "tasks", 10_000)
    assert states.get_by_role("radio", name="many").is_checked()
    control(page, "Tasks").press("ArrowLeft")
    page.wait_for_function("() => !document.querySelector('input[type=radio]:checked')")


def test_in_the_whole_window_arrow_keys_go_through_the_states_with_a_note(open_page):
    page = open_page(presented=True)
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    box = dialog.bounding_box()
    assert (box["width"], box["height"]) == (950, 720)
    assert "A hundred." in dialog.inner_text()  # of the state that it opens in
    page.keyboard.press("ArrowRight")
    becomes(page, "tasks", 10_000)
    assert "All of them." in dialog.inner_text()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    becomes(page, "tasks", 1)
    picture = page.locator(".gpulab-picture svg").bounding_box()
    assert picture["y"] + picture["height"] <= 720
    page.keyboard.press("Escape")
    page.locator("#el .gpulab-sim").wait_for()
    assert not dialog.is_visible()
    page.get_by_role("button", name="Whole window").click()
    dialog.wait_for()


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_follows_the_theme(open_page, dark):
    page = open_page(dark=dark)
    page.wait_for_timeout(50)
    ground, ink = page.evaluate("""() => {
        const box = document.querySelector(".gpulab-sim");
        return [getComputedStyle(box).backgroundColor,
                getComputedStyle(box.querySelector("svg text")).fill];
    }""")
    seen = ("rgb(22, 22, 22)", "rgb(242, 242, 242)") if dark else ("rgb(255, 255, 255)", "rgb(17, 17, 17)")
    assert (ground, ink) == seen


@pytest.mark.parametrize("width", [360, 940])
def test_nothing_is_cut_at_any_width(open_page, width):
    page = open_page(width=width)
    assert page.evaluate(
        """() => {
        const box = document.querySelector(".gpulab-sim");
        return box.scrollWidth <= box.clientWidth && box.getBoundingClientRect().right <= WIDTH;
    }""".replace("WIDTH", str(width + 1))
    )


def test_where_there_is_room_the_controls_stand_beside_the_picture(open_page):
    page = open_page(width=940)  # the toy's picture is 600 wide
    side, picture = page.locator(".gs-side").bounding_box(), page.locator(".gpulab-picture").bounding_box()
    assert side["x"] >= picture["x"] + picture["width"]
    assert page.get_by_text("A hundred.", exact=True).is_visible()  # the state’s question


def test_in_a_narrow_box_the_picture_is_scrolled_and_stays_legible(open_page):
    page = open_page(width=360)
    wide, seen = page.locator(".gpulab-picture").evaluate("(node) => [node.scrollWidth, node.clientWidth]")
    assert wide >= 600 > seen
    assert page.get_by_text("A hundred.", exact=True).is_visible()


def test_what_is_chosen_in_the_picture_is_said_and_what_can_be_dragged_says_so(open_page):
    page = open_page()
    button = page.get_by_role("button", name="the second kind")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    becomes(page, "kind", "b")
    assert button.get_attribute("aria-pressed") == "true"
    assert grip(page, "the moment").locator("title").text_content() == "drag: the moment"


def test_a_closed_view_hears_nothing_any_more(open_page):
    page = open_page()
    page.evaluate("() => { window.close_it(); window.close_it = null; }")
    page.toy.set(tasks=7)  # no complaint comes: the fixture looks


STILL = """(scheme) => {
    document.documentElement.style.colorScheme = scheme;
    return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def test_a_still_picture_follows_the_theme_of_its_page(browser, tmp_path):
    page = browser.new_page(viewport={"width": 620, "height": 300})
    page.set_content(f'<body style="margin:0">{Toy()._still()}')
    grounds = {}
    for scheme in ("light", "dark"):
        page.evaluate(STILL, scheme)
        shot = page.screenshot(clip={"x": 10, "y": 10, "width": 1, "height": 1})
        grounds[scheme] = Image.open(io.BytesIO(shot)).convert("RGB").getpixel((0, 0))
    page.close()
    assert grounds == {"light": (255, 255, 255), "dark": (22, 22, 22)}
