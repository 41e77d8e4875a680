"""`gpulab.present`: which simulator it opens, and what it says of a wrong name."""

import re
import sys

import pytest

import gpulab
from virtualgpu.pictures import display


def shown(monkeypatch, *args, **values):
    """The bundle that `present` puts on the page."""
    bundles = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: bundles.append(bundle))
    gpulab.present(*args, **values)
    (bundle,) = bundles
    return bundle


def test_it_opens_a_simulator_by_its_name_with_values(monkeypatch):
    bundle = shown(monkeypatch, "spot", interval=60)
    assert "one every 1 h of work" in bundle["text/plain"]
    assert bundle["text/html"].startswith("<img")
    assert display.WIDGET_VIEW in bundle


def test_one_that_is_there_already_is_moved_and_opens_at_once(monkeypatch):
    spot = gpulab.sim.spot()
    assert spot._widget() is spot._live.box
    assert not spot._live.front.presented
    shown(monkeypatch, spot, interval=30)
    assert spot.values["interval"] == 30
    assert spot._live.front.presented
    assert spot._live.front.view["values"]["interval"] == 30


def test_in_a_terminal_it_prints_the_table(capsys):
    gpulab.present("spot")
    assert "expected time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("simulator", "values", "error", "message"),
    [
        ("spott", {}, ValueError, "present('spott'): did you mean 'spot'? simulator must be one of accumulation, "),
        (7, {}, TypeError, "present(simulator=7): simulator must be a name, such as 'launch_queue', or a simulator"),
        ("spot", {"interval": 0}, ValueError, "spot(interval=0): interval must be from 1 to 720 min"),
    ],
)
def test_what_is_wrong_is_named(simulator, values, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gpulab.present(simulator, **values)


def test_without_anywidget_it_is_the_still_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpulab.sim.base.live", None)
    assert set(shown(monkeypatch, "spot")) == {"text/plain", "text/html", "image/svg+xml"}
