"""Every simulator in JupyterLab in Chromium: each control moved to its ends and its middle, played, listened to.

One notebook with all of them; what they compute is tested without a browser.
"""

import pytest
from browser.reading import LOWEST_CONTRAST, OPERABLE, nameless, picture, settled, slider, wait_until

from gpulab import sim

pytestmark = pytest.mark.browser

NAMES = sorted(sim.__all__)


@pytest.fixture(scope="module")
def all_of_them(open_notebook, lab):
    """A notebook with a cell for each simulator, run."""
    sources = ["import gpulab", *(f"gpulab.sim.{name}()" for name in NAMES)]
    notebook = open_notebook(lab.write("notebooks/all_simulators.ipynb", *sources))
    notebook.run_all()
    return notebook


@pytest.fixture(scope="module")
def opened(all_of_them, request):
    """(notebook, its box, its class) of one simulator, for all of its tests one after the other."""
    name = request.param
    cell = 1 + NAMES.index(name)
    all_of_them.console.clear()
    all_of_them.run(cell)
    box = all_of_them.shown(cell).locator(".gpulab-sim")
    box.locator(".gpulab-picture svg[role=group]").wait_for()
    box.locator("details").evaluate_all("(folded) => folded.forEach((one) => { one.open = true; })")
    return all_of_them, box, getattr(sim, name)


each = pytest.mark.parametrize("opened", NAMES, indirect=True)
playing = pytest.mark.parametrize(
    "opened",
    [n for n in NAMES if any(hasattr(c, "frames_per_second") for c in getattr(sim, n).controls)],
    indirect=True,
)


def ends_and_middle(places):
    """Of a menu: each of its options is drawn in the tests of the simulators, and here it is seen to answer."""
    return sorted({places[place] for place in (0, len(places) // 2, -1) if places})


def whole(box):
    return not box.locator("[role=alert]").is_visible() and box.locator(".gpulab-picture svg[role=group]").count() == 1


@each
def test_moving_a_control_changes_what_the_picture_says(opened, shoot):
    notebook, box, simulator = opened
    shoot(notebook, f"sim_{simulator.__name__.lower()}")
    before = settled(box)
    control = next(c for c in simulator.controls if hasattr(c, "low") and not hasattr(c, "frames_per_second"))
    slider(box, control.label).focus()
    notebook.page.keyboard.press("Home" if control.value == control.high else "End")
    wait_until(notebook.page, lambda: picture(box) != before, f"another picture after {control.label}")
    assert notebook.console == []


@playing
def test_play_moves_the_picture_and_stop_goes_back(opened):
    notebook, box, simulator = opened
    control = next(c for c in simulator.controls if hasattr(c, "frames_per_second"))
    handle = slider(box, control.label)
    handle.focus()
    notebook.page.keyboard.press("Home")
    settled(box)
    start = handle.get_attribute("aria-valuenow")
    box.get_by_role("button", name="Play", exact=True).click()
    wait_until(notebook.page, lambda: handle.get_attribute("aria-valuenow") != start, "the next frame")
    notebook.page.wait_for_timeout(600)
    box.get_by_role("button", name="Pause", exact=True).click()
    settled(box)
    paused = handle.get_attribute("aria-valuenow")
    notebook.page.wait_for_timeout(400)
    settled(box)
    assert handle.get_attribute("aria-valuenow") == paused
    box.get_by_role("button", name="Step", exact=True).click()
    wait_until(notebook.page, lambda: handle.get_attribute("aria-valuenow") != paused, "one step")
    box.get_by_role("button", name="Stop and go back", exact=True).click()
    wait_until(notebook.page, lambda: handle.get_attribute("aria-valuenow") == start, "the first frame")
    assert whole(box)
    assert notebook.console == []


dragged = pytest.mark.parametrize(
    "opened", [n for n in NAMES if "data-drag=" in getattr(sim, n)().picture.inner()], indirect=True
)


def drawn(box):
    """The picture that has come to rest: of some simulators no number says which moment it shows."""
    return settled(box), box.locator(".gpulab-picture").inner_html()


@dragged
def test_what_can_be_grasped_follows_the_pointer_and_the_keys(opened):
    notebook, box, _ = opened
    mouse = notebook.page.mouse
    grips = box.locator(".gpulab-picture [data-drag]")
    for place in range(grips.count()):
        before, seen = drawn(box), set()
        grip = grips.nth(place)
        grip.scroll_into_view_if_needed()
        around = grip.bounding_box()
        x, y = around["x"] + around["width"] / 2, around["y"] + around["height"] / 2
        mouse.move(x, y)
        mouse.down()
        for far in (-60, 60):
            mouse.move(x + far, y - far / 2, steps=3)
            seen.add(drawn(box))
        mouse.up()
        assert seen - {before}, grip.get_attribute("data-label")
        assert whole(box)
        before = drawn(box)
        for key in ("Home", "End"):
            grips.nth(place).focus()
            notebook.page.keyboard.press(key)
            seen.add(drawn(box))
        assert seen - {before}, grips.nth(place).get_attribute("aria-label")
        assert whole(box)
    assert notebook.console == []


def is_hidden(simulator, control):
    """Whether this control has no say at the values that the simulator has."""
    limit = simulator.limits(simulator.values).get(control.name)
    return limit is not None and limit.hidden


@each
def test_every_control_has_a_name_that_is_spoken(opened):
    notebook, box, simulator = opened
    spoken = [node for node in notebook.spoken(box) if node.role in OPERABLE]
    shown = [control for control in simulator.controls if not is_hidden(simulator(), control)]
    assert len(spoken) >= len(shown)
    assert nameless(notebook, box) == []
    for control in shown:
        assert any(control.label in node.name for node in spoken), control.label


@each
def test_every_control_goes_to_both_ends_and_the_middle(opened, shoot):
    notebook, box, simulator = opened
    keyboard = notebook.page.keyboard
    for control in simulator.controls:
        if not box.get_by_label(control.label, exact=True).first.is_visible():
            continue  # it has no say here, and is hidden
        if hasattr(control, "low"):
            handle = slider(box, control.label)
            if handle.get_attribute("aria-disabled") == "true" or handle.is_disabled():
                continue
            for key in ("End", "Home"):
                handle.focus()
                keyboard.press(key)
                settled(box)
                assert whole(box), (control.name, key)
            for key in ("PageUp", "PageUp", "ArrowRight"):
                keyboard.press(key)
            settled(box)
        elif hasattr(control, "options"):
            menu = box.get_by_label(control.label, exact=True)
            for option in ends_and_middle(range(len(control.options))):
                menu.select_option(index=option)
                settled(box)
                assert whole(box), (control.name, option)
        elif hasattr(control, "examples"):
            menu = box.get_by_label("Example", exact=True)
            for option in ends_and_middle(range(1, 1 + len(control.examples))):
                menu.select_option(index=option)
                settled(box)
                assert whole(box), (control.name, option)
        else:
            for _ in range(2):
                box.get_by_label(control.label, exact=True).press("Space")
                settled(box)
                assert whole(box), control.name
    shoot(notebook, f"sim_{simulator.__name__.lower()}_moved")
    assert notebook.console == []


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_controls_can_be_read_in_both_themes(all_of_them, shoot, theme):
    all_of_them.theme(f"JupyterLab {theme}")
    try:
        for number, name in enumerate(NAMES, 1):
            outputs = all_of_them.shown(number).locator(".gpulab-sim")
            ratio, words = outputs.evaluate(LOWEST_CONTRAST)
            assert ratio >= 4.5, f"{theme}, {name}: {words!r} has a contrast of {ratio:.1f}"
            shoot(all_of_them, f"sim_{name}_{theme.lower()}")
    finally:
        all_of_them.theme("JupyterLab Light")


def test_after_all_that_nothing_is_in_the_log(all_of_them, lab):
    assert lab.complaints() == []
