"""The timeline of a run: exact at every allocation, with its marks where they were set, in words and as a picture."""

import random

import pytest
import torch

from gpulab.memory import GPUMemoryTracker, Mark, MemoryCurve, picture, timeline
from virtualgpu.gpu import VirtualGPU
from virtualgpu.pictures import display

MIB = 2**20


def take(mib, device="cuda"):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device=device)


def train(steps, t):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(512, 256, device="cuda")
    for _ in range(steps):
        t.mark("forward")
        loss = model(x).square().mean()
        t.mark("backward")
        loss.backward()
        t.mark("step")
        optimizer.step()
        optimizer.zero_grad()


def test_it_sees_every_allocation_and_free(gpu):
    with timeline() as t:
        a = take(4)
        b = take(30)
        del a
    curve = t.curve
    assert curve.every_event
    assert [n // MIB for n in curve.allocated_bytes] == [0, 0, 4, 4, 34, 30]
    assert [n // MIB for n in curve.reserved_bytes] == [0, 20, 20, 50, 50, 50]
    assert curve.requests == (0, 0, 1, 1, 2, 3)
    assert (curve.device, curve.numbers) == ("cuda:0", "virtual")
    del b


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:30"])
def test_it_agrees_with_the_counts_after_random_traffic(settings):
    rng, live = random.Random(0), []
    with VirtualGPU("T4", compute=False, settings=settings):
        live = [take(rng.uniform(0, 9)) for _ in range(20)]
        live = live[::3]
        with GPUMemoryTracker() as seen, timeline() as t:
            for i in range(300):
                if rng.random() < 0.55 or not live:
                    live.append(take(2 ** rng.uniform(-18, 6)))
                else:
                    live.pop(rng.randrange(len(live)))
                if i % 50 == 0:
                    torch.cuda.empty_cache()
                    t.mark(f"emptied {i}")
        curve = t.curve
        assert curve.every_event
        assert curve.peak_allocated_bytes == seen.peak_bytes
        assert curve.allocated_bytes[-1] == torch.cuda.memory_allocated()
        assert curve.reserved_bytes[-1] == torch.cuda.memory_reserved()
        assert [mark.name for mark in curve.marks] == [f"emptied {i}" for i in range(0, 300, 50)]
        live.clear()


def test_its_peak_over_training_is_pytorchs_and_has_the_name_of_its_phase(gpu):
    with GPUMemoryTracker() as seen, timeline() as t:
        train(2, t)
    assert t.curve.every_event
    assert t.curve.peak_allocated_bytes == seen.peak_bytes
    assert t.curve.peak_phase in ("backward", "step")
    assert f"in “{t.curve.peak_phase}”" in t.curve.finding()


def test_a_mark_stands_between_what_came_before_and_after_it(gpu):
    with timeline() as t:
        t.mark("first")
        a = take(4)
        t.mark("second")
        b = take(30)
        torch.cuda.empty_cache()
        t.mark("third")
        del a, b
    allocated = [t.curve.allocated_bytes[mark.point] // MIB for mark in t.curve.marks]
    assert (allocated, t.curve.peak_phase) == ([0, 4, 34], "second")


def test_a_peak_before_the_first_mark_is_in_no_phase(gpu):
    with timeline() as t:
        a = take(4)
        del a
        t.mark("late")
    assert t.curve.peak_phase is None
    assert t.curve.finding() == "Allocated memory peaks at 4.0 MiB"


def test_nothing_at_all_is_a_curve_too(gpu):
    with timeline() as t:
        pass
    assert t.curve.allocated_bytes == (0,)
    picture.plot(t.curve)


def test_out_of_memory_is_marked_and_goes_on(gpu):
    t = timeline(label="Too much")
    with pytest.raises(torch.OutOfMemoryError), t:
        _ = [take(1024), take(1024 * 1024)]
    assert [mark.name for mark in t.curve.marks] == ["out of memory: 1,048,576 MiB asked"]
    assert t.curve.finding().startswith("Too much: allocated memory peaks at 1,024 MiB")


def test_more_events_than_allowed_leave_the_marks_exact(gpu):
    with timeline(max_events=5) as t:
        a = [take(1) for _ in range(10)]
        t.mark("half")
        a += [take(1) for _ in range(10)]
    curve = t.curve
    assert not curve.every_event
    assert [n // MIB for n in curve.allocated_bytes] == [0, 10, 20]
    assert curve.marks == (Mark("half", 1),)
    assert "Between the marks nothing is known" in curve.describe()
    assert "At the marks" in curve.finding()
    picture.plot(curve)


def test_rules_of_rounding_it_does_not_know_leave_the_marks_exact():
    with VirtualGPU("T4", compute=False, settings="roundup_power2_divisions:4"), timeline() as t:
        a = take(4.3)
        t.mark("half")
        assert torch.cuda.memory_allocated() == 5 * MIB
    assert not t.curve.every_event
    assert t.curve.allocated_bytes[1] == 5 * MIB
    del a


def test_it_records_the_gpu_it_is_told(two_gpus):
    with timeline("cuda:1") as one, torch.cuda.device(1), timeline() as current:
        a, b = take(4, "cuda:0"), take(8, "cuda:1")
    assert one.curve.device == current.curve.device == "cuda:1"
    assert one.curve.allocated_bytes[-1] == current.curve.allocated_bytes[-1] == 8 * MIB
    del a, b


def test_an_inner_timeline_leaves_the_outer_one_whole(gpu):
    with timeline() as outer:
        a = take(4)
        with timeline() as inner:
            b = take(8)
        c = take(2)
    assert (outer.curve.every_event, inner.curve.every_event) == (True, True)
    assert [n // MIB for n in inner.curve.allocated_bytes] == [4, 12]
    assert outer.curve.allocated_bytes[-1] == 14 * MIB
    assert not torch._C._cuda_isHistoryEnabled()
    del a, b, c


def test_a_recording_that_was_on_stays_on(gpu):
    torch.cuda.memory._record_memory_history("all", context=None)
    a = take(1)
    with timeline() as t:
        b = take(2)
    c = take(3)
    assert t.curve.allocated_bytes[-1] == 3 * MIB
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [event["size"] // MIB for event in trace if event["action"] == "alloc"] == [1, 2, 3]
    torch.cuda.memory._record_memory_history(None)
    del a, b, c


def test_used_again_it_starts_anew(gpu):
    t = timeline()
    for mib in (4, 2):
        with t:
            a = take(mib)
            t.mark("x")
            del a
    assert (t.curve.peak_allocated_bytes, len(t.curve.marks)) == (2 * MIB, 1)


def test_a_timeline_outliving_its_gpu_keeps_its_marks():
    t = timeline()
    with VirtualGPU("T4"):
        t.__enter__()
        a = take(2)
        t.mark("x")
    t.mark("too late")
    t.__exit__(None, None, None)
    assert t.curve.allocated_bytes == (0, 2 * MIB)
    assert not t.curve.every_event
    del a


def test_without_a_gpu_the_block_runs_and_there_is_no_curve(no_gpu, capsys):
    with timeline() as t:
        t.mark("forward")
    assert not t.available
    with pytest.raises(RuntimeError, match="no GPU"):
        _ = t.curve
    t.show()
    assert capsys.readouterr().out == "no memory curve: there was no GPU to record\n"


def test_misuse_is_answered_in_words(gpu):
    with pytest.raises(ValueError, match="one timeline for each GPU"):
        timeline("all")
    with pytest.raises(ValueError, match="max_events must be a number of events above 0, not 0"):
        timeline(max_events=0)
    t = timeline()
    with pytest.raises(RuntimeError, match="after the `with` block"):
        _ = t.curve
    with pytest.raises(RuntimeError, match="outside the timeline's `with` block"):
        t.mark("x")
    with t:
        with pytest.raises(ValueError, match="name must be a text"):
            t.mark(3)
        with pytest.raises(RuntimeError, match="open already"):
            t.__enter__()


def test_in_a_notebook_it_shows_a_picture_with_its_description_as_alt_text(gpu, monkeypatch):
    import IPython.display

    outputs = []
    monkeypatch.setattr(display, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: outputs.append(data))
    with timeline() as t:
        t.mark("forward")
        a = take(4)
    t._ipython_display_()
    (data,) = outputs
    words = (
        "Allocated memory peaks at 4.0 MiB in “forward” (cuda:0, virtual). Allocated: 0.0 MiB at the start, 4.0 MiB at "
        "the end. Reserved: at most 20.0 MiB. Allocated at the marks: forward at 0.0 MiB."
    )
    assert data["text/plain"] == words
    assert f'<img alt="{words}" src="data:image/png' in data["text/html"]
    assert repr(t) == "<Timeline of cuda:0: peak 4.0 MiB allocated, 20.0 MiB reserved, marks: 1, virtual>"
    del a


def curve(marks, points=100):
    return MemoryCurve("cuda:0", "virtual", tuple(range(points)), (points,) * points, tuple(range(points)), marks)


def test_the_picture_says_what_it_shows_and_in_which_unit():
    figure = picture.plot(curve((Mark("forward", 0), Mark("backward", 50))))
    (axes,) = figure.axes
    titles = [axes.get_title(loc=loc) for loc in ("left", "center")]
    assert "Allocated memory peaks at 99 bytes in “backward”" in titles
    assert "MiB" in axes.get_ylabel()
    assert "virtual" in axes.get_ylabel()
    assert [text.get_text() for text in axes.texts] == ["forward", "backward"]


def test_no_two_names_in_the_picture_overlap_and_all_are_inside():
    marks = tuple(Mark(f"a long name {i}", i) for i in range(0, 100, 3))
    figure = picture.plot(curve(marks))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 3 <= len(boxes) < len(marks)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
