"""The dumps of the exercise `odd_rank` are such as gloo's ranks write, and its solution reads real ones."""

import pickle
import re
import sys
import textwrap
from pathlib import Path

import pytest
from courselib.patience import HANG_SECONDS

from gpulab import distributed
from gpulab.check.lesson12.odd_rank import entry
from gpulab.check.lesson12.sections import SECTIONS

from .wrong_answers.edits import solution

SCRIPT = """
    import pathlib, pickle, time
    import torch, torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    dist.init_process_group("gloo")
    rank, pair = dist.get_rank(), dist.new_group([0, 1])
    for _ in range(9):
        dist.all_reduce(torch.ones(10, 4))
    if rank < 2:
        for _ in range(2):
            dist.broadcast(torch.ones(7, dtype=torch.half), 0, group=pair)
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
def test_a_real_dump_has_the_fields_of_the_exercise_and_the_solution_finds_the_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(textwrap.dedent(SCRIPT))
    warm = sys.platform == "linux"  # its ranks import torch once for all
    distributed.run("late.py", 3, env={"TORCH_FR_BUFFER_SIZE": "8"}, timeout=HANG_SECONDS, warm=warm)
    dumps = {r: pickle.loads((tmp_path / f"{r}.dump").read_bytes()) for r in range(3)}
    like = entry("0", 2, ("all_reduce", [10, 4], "Float"), retired=True)
    first = dumps[0]["entries"][0]
    assert {name: first[name] for name in like} == like | {"collective_seq_id": 5}  # eight of twelve are kept
    assert dumps[0]["entries"][-2]["process_group"] == entry("1", 2, ("broadcast", [7], "Half"), True)["process_group"]
    assert [len(dump["entries"]) for dump in dumps.values()] == [8, 8, 8]
    assert solution(12, "odd_rank")(dumps, {"0": [0, 1, 2], "1": [0, 1]}) == (2, "0", 10)


def test_the_sections_of_the_checks_are_headings_of_the_lecture():
    lecture = Path(__file__).parents[1] / "sources" / "lectures" / "12_many_gpus.py"
    assert set(SECTIONS) <= set(re.findall(r"^# ## (.+)$", lecture.read_text("utf-8"), flags=re.MULTILINE))
