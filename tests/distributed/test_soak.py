"""Five starts and stops of tools/evidence/soak_ranks.py in each way of starting: nothing is left."""

import os
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("the soak looks into /dev/shm and at the warm server", allow_module_level=True)

from evidence import soak_ranks


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False], ids=["warm", "torchrun"])
def test_starts_and_stops_leave_nothing_behind(warm):
    left = dict(enumerate(soak_ranks.soak(5, warm)))
    assert [end for end, _ in left.values()] == list(soak_ranks.ENDS)
    assert [things for _, things in left.values() if things] == []


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
