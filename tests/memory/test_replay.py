"""PyTorch's own history of its own allocator, replayed: it passes through PyTorch's own counts at every step."""

import json
from pathlib import Path

import pytest

from gpulab.memory.replay import SMALL, Blocks, Unclear, replay

RUNS = json.loads((Path(__file__).parent / "torch_history" / "recording.json").read_text())
EMPTY = {"segments": []}


def events(*rows):
    return [{"action": action, "addr": address, "size": size} for action, address, size in rows]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["settings"] or "defaults")
def test_passes_through_every_count_of_pytorch_in_order(run):
    points = replay(run["first"], events(*run["events"]), 0).points
    start = run["counts"][0][2]
    counts = [(allocated, reserved, requests - start) for allocated, reserved, requests in run["counts"]]
    seen = iter(points)
    for wanted in (count for before, count in zip([None, *counts], counts, strict=False) if count != before):
        assert any(point.counts == wanted for point in seen), wanted
    assert points[-1].counts == counts[-1]
    assert max(point.allocated for point in points) == max(count[0] for count in counts)


def test_the_recordings_reach_what_they_are_for():
    actions = {run["settings"]: {event[0] for event in run["events"]} for run in RUNS}
    assert {"segment_map", "segment_unmap"} <= actions["expandable_segments:True"]
    assert {"segment_alloc", "segment_free"} <= actions[""]
    assert all(run["counts"][0][0] > 0 for run in RUNS)


@pytest.mark.parametrize(
    ("segment", "requested", "given"),
    [
        (2 * SMALL, 1, 512),
        (2 * SMALL, 512, 512),
        (2 * SMALL, SMALL, SMALL),
        (20 * SMALL, SMALL + 1, SMALL + 512),
        (20 * SMALL, 19 * SMALL, 20 * SMALL),
        (20 * SMALL, 19 * SMALL - 1, 20 * SMALL),
        (20 * SMALL, 19 * SMALL - 512, 19 * SMALL - 512),
    ],
)
def test_a_block_is_rounded_and_its_rest_split_off_as_the_allocator_does(segment, requested, given):
    points = replay(EMPTY, events(("segment_alloc", 0x1000, segment), ("alloc", 0x1000, requested)), 0).points
    assert [point.counts for point in points] == [(0, 0, 0), (0, segment, 0), (given, segment, 1)]


def test_neighbouring_segments_stay_apart():
    rows = [("segment_alloc", 0, 2 * SMALL), ("segment_alloc", 2 * SMALL, 2 * SMALL), ("segment_free", 0, 2 * SMALL)]
    assert [point.reserved for point in replay(EMPTY, events(*rows), 0).points] == [0, 2 * SMALL, 4 * SMALL, 2 * SMALL]


def test_another_gpus_segments_do_not_count():
    other = {"device": 1, "address": 0, "total_size": 512, "blocks": [{"address": 0, "size": 512, "state": "inactive"}]}
    assert Blocks({"segments": [other]}, 0).reserved == 0
    assert Blocks({"segments": [other]}, 1).reserved == 512


def test_a_block_waiting_for_another_stream_is_not_allocated_but_not_free():
    rows = [("segment_alloc", 0, 2 * SMALL), ("alloc", 0, 512), ("free_requested", 0, 512)]
    points = replay(EMPTY, events(*rows), 0).points
    assert points[-1].allocated == 0
    with pytest.raises(Unclear):
        replay(EMPTY, events(*rows, ("alloc", 0, 512)), 0)


@pytest.mark.parametrize(
    "rows",
    [
        [("alloc", 0, 512)],
        [("free_requested", 0, 512)],
        [("segment_alloc", 0, 512), ("alloc", 0, 1024)],
        [("segment_free", 0, 512)],
        [("segment_alloc", 0, 2 * SMALL), ("alloc", 0, 512), ("segment_free", 0, 2 * SMALL)],
    ],
)
def test_a_record_with_its_beginning_missing_is_refused(rows):
    with pytest.raises(Unclear):
        replay(EMPTY, events(*rows), 0)


def test_rules_that_are_not_known_are_refused():
    with pytest.raises(Unclear, match="roundup"):
        replay({"segments": [], "allocator_settings": {"roundup_power2_divisions": {"256": 4}}}, [], 0)
