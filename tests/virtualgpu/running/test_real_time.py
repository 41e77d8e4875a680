"""A script that times with the clock of this machine is told so; one that asks for the date is not."""

import pytest

TIMING = """
import sys, time
from time import time as now
import torch
layer = torch.nn.Linear(8, 8).cuda()
begin = time.time()
for _ in range(3):
    layer(torch.ones(2, 8, device="cuda"))
    torch.cuda.synchronize()
    {0}
print(time.ctime())
"""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("took = time.time() - begin", "timing.py:10 reads time.time(), which stays this machine's clock"),
        ("took = now() - begin", "timing.py:10 reads time.time(), which stays this machine's clock"),
        ("took = time.monotonic()", "timing.py:10 reads time.monotonic(), which stays"),
        ("took = time.perf_counter()", None),
        ("pass", None),
    ],
)
def test_a_line_that_times_with_this_machine_s_clock_is_named(line, says, run, tmp_path):
    (tmp_path / "timing.py").write_text(TIMING.format(line))
    text = " ".join(run(tmp_path / "timing.py").text.split())
    assert (says in text) if says else ("stays this machine's clock" not in text)
