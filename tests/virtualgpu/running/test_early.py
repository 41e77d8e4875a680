"""Host memory that is used while a copy without waiting is under way: the report names both lines."""

import pytest

from virtualgpu.gpu import VirtualGPU
from virtualgpu.running.early_host_access import EarlyHostAccess
from virtualgpu.running.source_lines import SourceLines

BEGIN = """
import io, pickle, numpy, torch
x = torch.ones(500, 500, device="cuda")
y = torch.zeros(500, 500).pin_memory()
for _ in range(20):
    x = x @ x / 500
h = x.to("cpu", non_blocking=True)
"""
COPIED = 7  # the line of the copy

pytestmark = pytest.mark.filterwarnings("ignore:with compute=False")


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def notes(request, tmp_path):
    """`notes(source)`: what is said of lines that follow BEGIN."""

    def go(source, begin=BEGIN):
        with VirtualGPU("T4", compute=request.param) as gpu:
            gpu.under_way = early = EarlyHostAccess(gpu.clock, SourceLines(str(tmp_path)))
            exec(compile(begin + source, str(tmp_path / "early.py"), "exec"), {"__name__": "__main__"})
        return early.sentences()

    return go


READS = [
    "h.sum()", "h + 1", "h[3, 4].item()", "h[0].tolist()", "h.numpy()", "numpy.asarray(h)", "print(h[:2, :2])",
    "h.view(-1)[5:7].clone()", "float(h[0, 0])", "bool(h[0, 0] > 0)", "h.to(torch.float64)", "torch.stack([h, h])",
    "torch.zeros(500, 500).copy_(h)", "h.mul_(2)", "h.zero_()", "torch.save(h, io.BytesIO())", "torch.from_dlpack(h)",
]  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_what_is_read_before_the_copy_has_ended_is_told_with_both_lines(notes, read):
    (note,) = notes(read)
    assert note.startswith(
        f"early.py:{COPIED + 1} uses a host tensor whose copy from the GPU, begun at early.py:{COPIED} with "
        "non_blocking=True, ends only "
    )
    assert note.endswith(" later (virtual): on a GPU it may find old values. Synchronize first.")


def test_a_pinned_tensor_that_is_copied_to_is_told_too(notes):
    (note,) = notes("y.copy_(x, non_blocking=True)\ny.sum()")
    assert note.startswith("early.py:9 uses a host tensor whose copy from the GPU, begun at early.py:8 with")


ORDERLY = [
    "torch.cuda.synchronize(); h.sum()", "torch.cuda.current_stream().synchronize(); h.numpy()",
    "torch.cuda.current_stream().record_event().synchronize(); h.sum()", "x.sum().item(); h.sum()", "x.cpu(); h.sum()",
    "event = torch.cuda.current_stream().record_event()\nwhile not event.query(): pass\nh.sum()",
    "h.shape, h.view(-1), h[3:], h.detach(), h.T, h.is_pinned(), h.data_ptr()",
    "torch.empty_like(h), torch.zeros_like(h), h.new_zeros(3)", "torch.save(y, io.BytesIO())", "y.sum()",
    "(y + 1).sum()",
    "h.to('cuda', non_blocking=True)", "x.copy_(h, non_blocking=True)",
    "x.add_(1)", "del h", "torch.zeros(500, 500).copy_(x, non_blocking=True).sum()",
]  # fmt: skip


@pytest.mark.parametrize("use", ORDERLY)
def test_who_waits_or_reads_something_else_is_told_nothing(notes, use):
    assert notes(use) == ()


TO_THE_GPU = """
import torch
y, pageable = torch.zeros(500, 500).pin_memory(), torch.zeros(500, 500)
z = pageable.to("cuda", non_blocking=True)
x = y.to("cuda", non_blocking=True)
"""


def test_a_pinned_tensor_that_is_written_while_it_is_copied_to_the_gpu_is_told(notes):
    (note,) = notes("y.add_(1)", TO_THE_GPU)
    assert note.startswith(
        "early.py:6 writes to a pinned tensor whose copy to the GPU, begun at early.py:5 with non_blocking=True, ends"
    )
    assert note.endswith("on a GPU the new values may be what arrives. Synchronize first, or take another tensor.")


@pytest.mark.parametrize(
    "use", ["y.sum()", "y.numpy()", "y + 1", "torch.cuda.synchronize(); y.add_(1)", "pageable.add_(1)", "x.add_(1)"]
)
def test_a_source_may_be_read_and_written_once_it_has_been_copied(notes, use):
    assert notes(use, TO_THE_GPU) == ()


def test_of_many_lines_the_earliest_are_named(notes):
    found = notes("\n".join(["h.sum()"] * 5))
    assert len(found) == 4
    assert found[-1] == "2 more lines use host memory too early."


def test_of_a_line_in_a_loop_it_is_said_once(notes):
    assert len(notes("for _ in range(5): h.sum()")) == 1


def test_the_report_tells_it_after_an_error_too(tmp_path, run):
    path = tmp_path / "early.py"
    path.write_text(BEGIN + "assert h.sum() < 0\n")
    done = run(path)
    assert done.code == 1
    assert len(done.report.notes) == 1
    assert "early.py:8 uses a host tensor whose copy from the GPU, begun at early.py:7 with" in " ".join(
        done.text.split()
    )


def test_a_script_that_waits_has_nothing_of_it_in_its_report(run):
    assert run("loop").report.notes == ()
