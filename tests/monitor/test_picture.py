"""The picture of a watch: readable whatever was told, and what its curves stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulab.monitor import Reading, Readings, Sample, Slice
from gpulab.monitor.picture import COLUMNS, HEIGHT, as_html, as_svg, render
from virtualgpu.pictures.style import BLUE

MIB = 2**20
T4 = Reading(
    0,
    "measured",
    name="Tesla T4",
    device="cuda:0",
    used_bytes=3000 * MIB,
    total_bytes=15360 * MIB,
    utilization=80,
    temperature_c=61,
    power_w=65,
    power_limit_w=70,
    sm_clock_mhz=1590,
    energy_j=1000,
)
UNTOLD = Reading(0, "measured", unread=("the GPU: lost",))


def taken(*readings: Reading, seconds: float = 1.0) -> list[Sample]:
    return [Sample(i * seconds, Readings([reading])) for i, reading in enumerate(readings)]


def heights(text: str, colour: str) -> list[float]:
    """The heights of the areas of one colour, in parts of the chart, from left to right."""
    found = []
    for points in re.findall(rf'<polygon points="([^"]*)" fill="{colour}"', text):
        levels = [float(point.split(",")[1]) for point in points.split()]
        found += [round((levels[0] - level) / HEIGHT, 2) for level in levels[1:-1]]
    return found


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    "samples",
    [
        [],
        [
            Sample(
                0.0, Readings((), "no NVIDIA driver is installed here (NVMLError_LibraryNotFound: NVML Shared Library)")
            )
        ],
        taken(T4),
        taken(T4, T4, UNTOLD, T4),
        taken(UNTOLD, UNTOLD),
        taken(
            replace(
                T4, mig=True, utilization=None, slices=tuple(Slice(i, "A100 MIG 1g.5gb", f"MIG-{i}") for i in range(7))
            )
        ),
        taken(replace(T4, name="NVIDIA RTX 6000 Ada Generation, a very long name", power_w=300, power_limit_w=700), T4),
        [Sample(i, Readings(replace(T4, index=n, device=f"cuda:{n}") for n in range(8))) for i in range(3)],
        taken(*(Reading(0, "virtual", name="Tesla T4", used_bytes=MIB, total_bytes=9 * MIB) for _ in range(2))),
    ],
    ids=["none", "no driver", "one", "gap", "untold", "slices", "long", "eight", "virtual"],
)
def test_it_can_be_read(check_picture: Callable[[str], None], samples: list[Sample], running: bool) -> None:
    text = as_svg(render(samples, running=running))
    check_picture(text)
    assert "busy busy" not in text


def test_the_title_is_the_finding_and_says_what_kind_of_number_it_is() -> None:
    samples = taken(T4, replace(T4, utilization=40), T4)
    assert render(samples, running=True).title == "GPU 0 (cuda:0), measured: busy 80 % now"
    assert render(samples, running=False).title == "GPU 0 (cuda:0), measured: busy 60 % of the time"
    both = [Sample(at, Readings([T4, replace(T4, index=1, device="cuda:1", utilization=9)])) for at in (0, 1)]
    assert render(both, running=False).title == "2 GPUs, measured: busy 9 % to 80 % of the time"
    one = [Sample(at, Readings([T4, replace(T4, index=1, device="cuda:1", utilization=None)])) for at in (0, 1)]
    assert render(one, running=False).title == "2 GPUs, measured: busy 80 % of the time, 1 of them told"
    no_rates = taken(replace(T4, utilization=None))
    assert render(no_rates, running=True).title == "GPU 0 (cuda:0), measured: at most 3,000 of 15,360 MiB in use"


def test_a_reading_is_drawn_as_the_time_before_it() -> None:
    text = as_svg(render(taken(T4, replace(T4, utilization=50), replace(T4, utilization=100)), running=False))
    assert heights(text, BLUE) == [0.8, 0.8, 0.5, 0.5, 1.0, 1.0]


def test_what_was_not_told_is_a_gap_and_not_a_zero() -> None:
    text = as_svg(render(taken(T4, T4, UNTOLD, T4), running=False))
    assert heights(text, BLUE) == [0.8] * 6
    assert len(re.findall(rf'<polygon [^>]*fill="{BLUE}"', text)) == 2


def test_a_long_watch_is_no_larger_a_picture() -> None:
    text = as_svg(render(taken(*[replace(T4, utilization=i % 100) for i in range(5000)]), running=True))
    assert len(heights(text, BLUE)) <= 2 * COLUMNS
    assert len(text) < 12_000
    assert sum(heights(text, BLUE)) / len(heights(text, BLUE)) == pytest.approx(0.495, abs=0.02), "joined by their mean"


def test_names_are_escaped_and_the_page_has_the_words_for_a_screen_reader() -> None:
    samples = taken(replace(T4, name="<b> & co"))
    picture = render(samples, running=False)
    assert "<b>" not in as_svg(picture)
    html = as_html(picture, "the <words>")
    assert 'alt="GPU 0 (cuda:0), measured: busy 80 % of the time.' in html
    assert "the &lt;words&gt;" in html


anything = st.builds(
    Reading,
    index=st.integers(0, 1),
    numbers=st.sampled_from(["measured", "virtual"]),
    name=st.none() | st.just("T4"),
    used_bytes=st.none() | st.integers(0, 2**38),
    total_bytes=st.none() | st.integers(0, 2**38),
    utilization=st.none() | st.floats(0, 100),
    power_w=st.none() | st.floats(0, 1999),
    energy_j=st.none() | st.floats(0, 1e9),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.lists(anything, max_size=2)), max_size=6), st.booleans())
def test_any_readings_make_a_picture_that_can_be_read(
    check_picture: Callable[[str], None], moments: list[tuple[float, list[Reading]]], running: bool
) -> None:
    samples = [Sample(at, Readings(found)) for at, found in sorted(moments, key=lambda moment: moment[0])]
    check_picture(as_svg(render(samples, running=running)))
