import itertools
import re

import pytest

from gpulab.sim.base import scene
from gpulab.sim.base.scene import Plot, Scale
from gpulab.sim.base.touch import Grip
from virtualgpu.pictures import svg
from virtualgpu.pictures.style import MUTED, RULE, SKY

LINEAR, LOG = Scale(100, 500, 0, 8), Scale(500, 100, 0.1, 1000, log=True)
PLOT = Plot(LINEAR, Scale(90, 10, 0, 4))


def test_values_lie_between_the_ends():
    assert [LINEAR.at(value) for value in (0, 2, 8)] == [100, 200, 500]
    assert [LOG.at(value) for value in (0.1, 1, 10, 1000)] == pytest.approx([500, 400, 300, 100])


@pytest.mark.parametrize("scale", [LINEAR, LOG, Scale(0, 10, 5, -5)])
def test_beyond_the_ends_is_the_nearer_end(scale):
    assert {scale.at(-1e9), scale.at(1e9)} == {scale.start, scale.end}


@pytest.mark.parametrize("scale", [LINEAR, LOG])
def test_a_place_and_its_value_belong_together(scale):
    for place in (100, 123.4, 500):
        assert scale.at(scale.value(place)) == pytest.approx(place)


def test_decades_are_those_within():
    assert LOG.decades() == pytest.approx([0.1, 1, 10, 100, 1000])
    assert Scale(0, 1, 0.11, 999, log=True).decades() == pytest.approx([1, 10, 100])


def test_a_grip_is_the_scale():
    assert LOG.grip("rows") == Grip("rows", 500, 100, 0.1, 1000, log=True)


def test_a_scale_goes_on_beyond_its_ends():
    assert [LINEAR.beyond(value) for value in (-2, 4, 10)] == [0, 300, 600]
    assert LOG.beyond(0.01) == pytest.approx(600)


def test_a_plot_has_its_values_upwards():
    assert PLOT.at(2, 1) == (200, 70)
    assert PLOT.box() == (100, 10, 400, 80)
    assert PLOT.box(5) == (95, 5, 410, 90)
    assert PLOT.curve([(0, 0), (8, 4)]) == svg.polyline([(100, 90), (500, 10)])


def test_levels_and_ticks_stand_at_their_values():
    line, words = PLOT.levels({1: "one"})
    assert (line, words) == (svg.line(100, 70, 500, 70, stroke=RULE), scene.note(93, 75, "one", anchor="end"))
    mark, words = LINEAR.ticks(90, {2: "two"})
    assert (mark, words) == (svg.line(200, 90, 200, 95, stroke=MUTED), scene.note(200, 108, "two", anchor="middle"))
    assert LINEAR.ticks(90, {2: "two"}, top=10)[0] == svg.line(200, 10, 200, 90, stroke=RULE)


def test_a_bar_of_two_parts_has_its_value_behind_it():
    drawn = scene.named_bar(100, 50, "name", [(30, SKY, False), (20, RULE, True)], "5 s")
    assert re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', drawn) == [
        ("100", "35", "30"),
        ("130", "35", "20"),
    ]
    assert 'x="160" y="50"' in drawn


@pytest.mark.parametrize("ends", [False, True])
def test_keys_stand_apart_and_end_where_they_should(ends):
    drawn = "".join(scene.keys(300, 20, ("loads", SKY), ("waits for a batch", RULE, True), ends=ends))
    bars = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', drawn)]
    first, last = (22 + svg.length(words, svg.SMALL) for words in ("loads", "waits for a batch"))
    assert bars[1] - bars[0] == pytest.approx(first + 14, abs=0.1)
    assert (bars[1] + last if ends else bars[0]) == pytest.approx(300, abs=0.1)
    assert drawn.count("<path") == 1


def test_keys_without_room_begin_another_row():
    drawn = "".join(scene.keys(18, 20, *[(f"a rather long name, number {n}", SKY) for n in range(6)]))
    places = [(float(x), float(y)) for x, y in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', drawn)]
    assert [y for _, y in places] == [9, 9, 9, 29, 29, 29]
    assert [x for x, _ in places[:3]] == [x for x, _ in places[3:]]
    assert places[0][0] == 18


def test_chips_stand_side_by_side_and_hold_bold_words():
    drawn, after = scene.chip(10, 30, "one for all", weight="bold")
    wide = float(re.findall(r'width="([\d.]+)"', drawn)[0])
    assert wide >= svg.length("one for all", svg.SMALL, bold=True)
    assert after == pytest.approx(10 + wide + 6, abs=0.1)


def test_readouts_lie_under_one_another():
    drawn = scene.readouts(10, 200, 20, [("name", "1", "bold"), ("last", "2", "")], apart=20)
    found = re.findall(r'y="(\d+)".*?>([^<]+)<', "".join(drawn))
    assert found == [("20", "name"), ("20", "1"), ("40", "last"), ("40", "2")]
    assert ["bold" in one for one in drawn] == [True, True, False, False]


def test_the_first_words_that_have_room_stand_in_the_middle():
    assert ">long words<" in scene.fitted(0, 200, 10, "long words", "short")
    assert 'x="25"' in scene.fitted(0, 50, 10, "long words", "short")
    assert scene.fitted(0, 10, 10, "long words", "short") == ""


@pytest.mark.parametrize("x", [0, 150, 300])
def test_words_stay_between(x):
    half = svg.length("words") / 2
    found = float(re.findall(r'x="([\d.]+)"', scene.between(100, 200, x, 10, "words"))[0])
    assert found == pytest.approx(min(max(x, 100 + half), 200 - half), abs=0.1)


@pytest.mark.parametrize("ends", [{"a": 50, "b": 52, "c": 20}, {"a": 98, "b": 99, "c": 97}, {"a": 10}])
def test_names_at_ends_are_in_order_apart_and_above_the_lowest(ends):
    drawn = "".join(scene.beside_ends(10, 100, ends))
    found = [(float(y), name) for y, name in re.findall(r'y="([\d.]+)".*?>(\w)<', drawn)]
    assert [name for _, name in found] == sorted(ends, key=ends.get)
    places = [y for y, _ in found]
    assert all(later - earlier >= 17 for earlier, later in itertools.pairwise(places))
    assert places[-1] <= 103


def test_an_arrow_has_a_head_where_there_is_room():
    assert scene.arrow(10, 40, 5) == svg.line(10, 5, 31, 5, width=2) + svg.shape(
        [(40, 5), (31, 0), (31, 10)], fill="#111111"
    )
    assert scene.arrow(40, 10, 5).count("polygon") == 1
    assert scene.arrow(10, 15, 5) == svg.line(10, 5, 15, 5, width=2)
