import pytest

from gpulab.sim.base.scene import Scale
from gpulab.sim.base.touch import Grip

LINEAR, LOG = Scale(100, 500, 0, 8), Scale(500, 100, 0.1, 1000, log=True)


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
