"""Scenes of a check: any two values of two edges meet, in few scenes, and only in possible ones."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.exercise.scenes import MOST, Pairs

EDGES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def pairs_of(scene):
    return set(itertools.combinations(sorted(vars(scene).items()), 2))


@given(EDGES, st.integers(0, 2**31), st.integers(2, 9))
def test_any_two_values_meet_that_can_and_no_other(sizes, seed, divisor):
    edges = {f"edge_{number}": range(size) for number, size in enumerate(sizes)}

    def possible(scene):
        values = tuple(vars(scene).values())
        return not any(values) or sum(values) % divisor != 0

    pairs = Pairs(edges, possible)
    scenes = pairs.draw(random.Random(seed))
    everything = [pairs._scene(row) for row, _ in pairs.rows]
    assert all(map(possible, scenes))
    assert set().union(*map(pairs_of, scenes)) == set().union(*map(pairs_of, everything))
    assert scenes == pairs.draw(random.Random(seed))


def test_there_are_far_fewer_than_combinations():
    edges = {name: range(4) for name in "abcde"}
    scenes = Pairs(edges, lambda scene: True).draw(random.Random(0))
    assert 16 <= len(scenes) <= 30  # of 1,024


@pytest.mark.parametrize(
    ("edges", "possible", "words"),
    [
        ({"a": [1], "b": []}, True, "the edge 'b' has no values"),
        ({"a": [1], "b": [2]}, False, "no combination of the edges a, b is possible"),
        (
            {name: range(40) for name in "abc"},
            True,
            f"64,000 combinations of edges; at most {MOST:,} are looked through",
        ),
    ],
)
def test_edges_that_cannot_be(edges, possible, words):
    with pytest.raises(ValueError, match=words):
        Pairs(edges, lambda scene: possible)


@pytest.mark.parametrize("hidden", [("b", "c"), ("a", "b", "c")])
def test_a_scene_in_which_hardly_an_edge_matters_is_drawn_too(hidden):
    edges = {name: range(3) for name in "abc"}
    pairs = Pairs(edges, lambda scene: True, lambda scene: hidden if scene.a == 2 else ())
    for seed in range(50):
        assert 2 in {scene.a for scene in pairs.draw(random.Random(seed))}
