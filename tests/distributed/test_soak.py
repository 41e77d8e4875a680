"""Starts and stops of tools/evidence/soak_ranks.py: nothing is left.

By the warm server to each end; by torchrun to one of which it stops the ranks, and one where the notebook does."""

import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the soak looks into /dev/shm and at the warm server", allow_module_level=True)

from evidence import soak_ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "warm"),
    [(list(soak_ranks.ENDS), True), (["is killed", "is interrupted"], False)],
    ids=["warm", "torchrun"],
)
def test_starts_and_stops_leave_nothing_behind(ends, warm):
    left = list(soak_ranks.soak(ends, warm))
    assert left == [(end, []) for end in ends]


def test_the_soak_sees_what_is_left(tmp_path):
    soak = soak_ranks.Soak(tmp_path, warm=False)
    assert soak.left() == []
    (soak.temporary / "gpulab-ranks-x").mkdir()
    (tmp_path / "pids").write_text("123456789\n")
    with open("/dev/shm/torch_123456789_1", "w"), open(os.devnull):
        left = soak.left()
    os.unlink("/dev/shm/torch_123456789_1")
    assert left[:2] == ["/dev/shm/torch_123456789_1", "folder gpulab-ranks-x"]
    assert "file descriptors" in left[2]
