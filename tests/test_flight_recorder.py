"""gloo's ranks write such dumps as lecture 12 reads, prints and asks about in its turn."""

import pickle
import sys
import textwrap

import pytest
from courselib.patience import HANG_SECONDS

from gpulab import distributed

SCRIPT = """
    import pathlib, time
    import torch, torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(9):
        dist.all_reduce(torch.ones(10, 4))
    if rank < 2:
        held_up = dist.all_reduce(torch.ones(4), async_op=True)  # rank 2 has not come
    part = pathlib.Path(f"{rank}.part")
    part.write_bytes(_dump_fr_trace())

    def all_have(name):
        part.rename(f"{rank}.{name}")
        while not all(pathlib.Path(f"{r}.{name}").exists() for r in range(3)):
            time.sleep(0.01)
        part.touch()

    all_have("dump")
    if rank < 2:
        held_up.wait()
    else:
        dist.all_reduce(torch.ones(4))
    all_have("end")  # who ends before the others have their sums takes the connection away
    dist.destroy_process_group()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun's own support for Windows is partial")
def test_a_real_dump_tells_which_rank_has_not_called_what_the_others_wait_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(textwrap.dedent(SCRIPT))
    warm = sys.platform == "linux"  # its ranks import torch once for all
    distributed.run("late.py", 3, env={"TORCH_FR_BUFFER_SIZE": "8"}, timeout=HANG_SECONDS, warm=warm)
    dumps = [pickle.loads((tmp_path / f"{r}.dump").read_bytes())["entries"] for r in range(3)]
    last = [(d[-1]["collective_seq_id"], d[-1]["profiling_name"]) for d in dumps]
    assert last == [(10, "gloo:all_reduce")] * 2 + [(9, "gloo:all_reduce")]
    assert not dumps[0][-1]["retired"]  # it waits
    assert dumps[2][0]["retired"]
    assert [len(entries) for entries in dumps] == [8, 8, 8]
    assert dumps[2][0]["input_sizes"] == [[10, 4]]
