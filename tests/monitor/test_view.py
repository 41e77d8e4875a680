"""The live view without a browser: its widgets, its button, and what it leaves in the output."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ipywidgets
import pytest
from courselib.patience import HANG_SECONDS

from gpulab.monitor import Watch, view
from virtualgpu.pictures import display


def watching() -> int:
    return sum(thread.name == "gpulab.monitor" for thread in threading.enumerate())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


class Output:
    """The output of a cell: the bundles that were put into it, each replacing the one before."""

    def __init__(self) -> None:
        self.bundles: list[dict[str, Any]] = []

    def display(self, data: dict[str, Any], *, raw: bool, display_id: bool = False) -> Output:
        assert raw
        self.bundles.append(data)
        return self

    def update(self, data: dict[str, Any], *, raw: bool) -> None:
        assert raw
        self.bundles.append(data)


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[Output]:
    """A notebook is played: what is displayed lands here."""
    found = Output()
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr(view, "display", found.display)
    yield found
    background = sys.modules["gpulab.monitor.watch"]._background
    if background is not None:
        background.stop()


def live(seen: Watch) -> Any:
    box = seen._view.box
    assert isinstance(box, ipywidgets.VBox)
    return box.children[:-1]  # the last is the style for when the kernel is gone


def test_in_a_block_the_view_is_a_picture_and_in_the_end_a_still_one_with_its_text(
    fake_nvml: Any, output: Output
) -> None:
    with Watch(0.05, None, fake_nvml({})) as seen:
        (picture,) = live(seen)
        assert "measured: busy 87 % now</title>" in picture.value
        (first,) = output.bundles
        assert display.WIDGET_VIEW in first
        before = picture.value
        until(lambda: picture.value != before)
    first, last = output.bundles
    assert set(last) == {"text/plain", "image/svg+xml", "text/html"}
    assert last["text/plain"] == repr(seen.summary())
    assert "busy 87 % of the time" in last["image/svg+xml"]
    assert picture.comm is None, "the widgets are closed: nothing of them stays in kernel or page"


def started(nvml: Any) -> Watch:
    seen = Watch(0.05, None, nvml)
    seen.start()
    return seen


def test_beside_the_cells_it_has_a_button_that_ends_it(fake_nvml: Any, output: Output) -> None:
    seen = started(fake_nvml({}))
    picture, button = live(seen)
    assert button.description == "Stop watching"
    assert output.bundles[0][display.WIDGET_VIEW]
    button.click()
    assert watching() == 0
    assert not seen.running
    assert set(output.bundles[1]) == {"text/plain", "image/svg+xml", "text/html"}
    assert (picture.comm, button.comm) == (None, None)
    button.click()
    seen.stop()
    assert len(output.bundles) == 2


def test_the_button_may_be_pressed_on_another_thread_while_the_watch_is_stopped(fake_nvml: Any, output: Output) -> None:
    for _ in range(5):
        seen = started(fake_nvml({}))
        presser = threading.Thread(target=live(seen)[1].click)
        presser.start()
        seen.stop()
        presser.join()
        assert watching() == 0
    assert len(output.bundles) == 10


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_cell_leaves_the_still_picture_too(
    fake_nvml: Any, output: Output, error: type[BaseException]
) -> None:
    with pytest.raises(error), Watch(0.05, None, fake_nvml({})):
        raise error
    assert watching() == 0
    assert "image/svg+xml" in output.bundles[-1]


def test_last_in_a_cell_it_starts_and_lives_beside_the_next_cells_until_another_is_started(
    fake_nvml: Any, output: Output
) -> None:
    one: Watch | None = Watch(0.05, None, fake_nvml({}))
    assert one is not None
    one._ipython_display_()
    sampler = one._sampler
    del one
    gc.collect()
    taken = len(sampler.samples)
    until(lambda: len(sampler.samples) > taken + 1)
    two = Watch(0.05, None, fake_nvml({}))
    two._ipython_display_()
    assert not sampler.running
    assert watching() == 1
    live(two)[1].click()
    assert watching() == 0


def test_shown_when_it_is_over_it_is_its_picture_once_more(
    fake_nvml: Any, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(display, "show", lambda text, **kinds: shown.append({"text": text, **kinds}))
    with Watch(0.05, None, fake_nvml({})) as seen:
        pass
    seen._ipython_display_()
    assert shown[0]["text"] == repr(seen)
    assert shown[0]["svg"].startswith("<svg")
    assert watching() == 0


def test_a_picture_that_cannot_be_drawn_costs_no_sample_and_is_told(
    fake_nvml: Any, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Watch(0.05, None, fake_nvml({})) as seen:
        monkeypatch.setattr(view, "render", lambda *_, **__: 1 / 0)
        until(lambda: seen._sampler.trouble is not None)
        taken = len(seen.samples)
        until(lambda: len(seen.samples) > taken)
    assert watching() == 0
    assert "could not be drawn: ZeroDivisionError" in repr(seen)


def test_an_interrupt_between_start_and_view_leaves_no_thread(
    fake_nvml: Any, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(view, "display", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Watch(0.05, None, fake_nvml({})).start()
    assert watching() == 0


def test_a_watch_that_is_over_before_it_is_seen_shows_its_still_picture(
    fake_nvml: Any, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Watch(0.05, 0.001, fake_nvml({}))
    shows = view.View.show

    def late(self: Any) -> None:
        until(lambda: not seen.running)
        shows(self)

    monkeypatch.setattr(view.View, "show", late)
    with seen:
        (only,) = output.bundles
        assert "image/svg+xml" in only
        assert display.WIDGET_VIEW not in only


def test_without_ipywidgets_it_collects_and_shows_nothing_live(
    fake_nvml: Any, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpulab.monitor.view", None)
    with Watch(0.05, None, fake_nvml({})) as seen:
        until(lambda: len(seen.samples) > 1)
    assert output.bundles == []


def test_the_picture_is_drawn_more_rarely_the_longer_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.1, 101.0, 104.9, 106.0, 106.1])
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: next(times)))
    drawn: list[int] = []

    class Drawn:
        def text(self, **_: Any) -> str:
            drawn.append(1)
            return "<svg/>"

    monkeypatch.setattr(view, "render", lambda *_, **__: Drawn())
    one = view.View(lambda: (), lambda: None)
    for expected in (1, 1, 1, 2):  # at 100 s, which takes 0.1 s; then not at 101 nor 104.9, and again at 106 s
        one.draw()
        assert len(drawn) == expected
