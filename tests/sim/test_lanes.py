import re

import pytest

from gpulab.sim.base.lanes import Axis, beside, blocks, inside, joined, round_step, total, veil
from virtualgpu.pictures import svg
from virtualgpu.pictures.style import INK, SKY

AXIS = Axis(100, 500, 2.0)  # 200 pixels a second


def test_time_takes_the_room_from_left_to_right():
    assert [AXIS.x(seconds) for seconds in (0, 1, 2)] == [100, 300, 500]
    assert AXIS.seen(0.5) == 100


@pytest.mark.parametrize(("least", "step"), [(1, 1), (1.1, 2), (3, 5), (6, 10), (0.03, 0.05), (7e-6, 1e-5)])
def test_marks_are_at_round_distances(least, step):
    assert round_step(least) == pytest.approx(step)


@pytest.mark.parametrize(("seconds", "words"), [(3.0, "0.5 s"), (7e-3, "1 ms"), (7e-4, "100 µs"), (14.0, "2 s")])
def test_marks_of_time_have_a_unit_and_stay_inside(seconds, words):
    drawn = "".join(Axis(100, 500, seconds).draw(20, 50))
    assert f">{words}<" in drawn
    assert all(100 <= float(x) <= 500 for x in re.findall(r'x="([\d.]+)"', drawn))


def test_time_that_is_shared_counts_once():
    assert total([]) == 0
    assert total([(0, 1), (2, 3)]) == 2
    assert total([(2, 5), (0, 3), (1, 2)]) == 5


def test_what_cannot_be_told_apart_is_one_bar():
    assert joined([(2, 3), (0, 1)], 0.1) == [(0, 1), (2, 3)]
    assert joined([(0, 1), (1, 2)], 0.1) == [(0, 1), (1, 2)]
    thin = [(k * 0.01, k * 0.01 + 0.005) for k in range(100)]
    assert joined(thin, 0.1) == [(0, pytest.approx(0.995))]


def test_many_bars_are_one_piece_and_none_vanishes():
    drawn = blocks(AXIS, [(0, 0.5), (1, 1.0001)], 10, 20, fill=SKY, stroke=INK)
    assert drawn.count("<path") == 1
    assert re.findall(r"M([\d.]+) 10h([\d.]+)v20", drawn) == [("100", "100"), ("300", "0.5")]
    assert blocks(AXIS, [], 10, 20, fill=SKY) == ""
    assert blocks(AXIS, [(0, 1)], 10, 20, fill=SKY, hatched=True).count("<path") == 2


def test_words_stand_in_a_bar_only_if_they_fit():
    assert ">step 1<" in inside(AXIS, (0, 1), ("step 1", "1"), 50)
    assert ">1<" in inside(AXIS, (0, 0.1), ("step 1", "1"), 50)
    assert inside(AXIS, (0, 0.01), ("step 1", "1"), 50) == ""


@pytest.mark.parametrize(("x", "at", "anchor"), [(200, 208, "start"), (800, 792, "end")])
def test_words_stand_beside_a_line_where_they_have_room(x, at, anchor):
    first, second = beside(x, 20, "some words", "more of them")
    assert first == svg.text(at, 20, "some words", size=svg.SMALL, anchor=anchor, halo=True)
    assert 'y="38"' in second


def test_what_comes_later_is_paler():
    assert veil(AXIS, 2.0, 0, 10) == ""
    assert f'x="300" y="0" width="{svg.num(200)}"' in veil(AXIS, 1.0, 0, 10)
    assert 'fill-opacity="0.6"' in veil(AXIS, 1.0, 0, 10)
