"""The timeline of a run: exact at every allocation, with its marks where they were set, in words and as a picture."""

import random
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from gpulab.memory import GPUMemoryTracker, Mark, MemoryCurve, picture, timeline
from gpulab.memory.bands import Stretch, stack
from gpulab.memory.zoom import zoomed
from virtualgpu.gpu import VirtualGPU
from virtualgpu.pictures import asleep, display
from virtualgpu.readings.curve import Allocation
from virtualgpu.units import mib

MIB = 2**20
SVG = "{http://www.w3.org/2000/svg}"


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


def test_nothing_at_all_is_a_curve_too(gpu, check_picture):
    with timeline() as t:
        pass
    assert t.curve.allocated_bytes == (0,)
    check_picture(picture.draw(t.curve).text())


def test_out_of_memory_is_marked_and_goes_on(gpu):
    t = timeline(label="Too much")
    with pytest.raises(torch.OutOfMemoryError), t:
        _ = [take(1024), take(1024 * 1024)]
    assert [mark.name for mark in t.curve.marks] == ["out of memory: 1,048,576 MiB asked"]
    assert t.curve.finding().startswith("Too much: allocated memory peaks at 1,024 MiB")


def test_more_events_than_allowed_leave_the_marks_exact(gpu, check_picture):
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
    assert curve.allocations == ()
    check_picture(picture.draw(curve).text())


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
    for size in (4, 2):
        with t:
            a = take(size)
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
        with pytest.raises(RuntimeError, match="already open"):
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
    assert data[asleep.WIDGET_VIEW]["gpulab"]  # so that a saved notebook has the image in its place
    assert f'<img alt="{words}" src="data:image/svg+xml;base64,' in data["text/html"]
    assert repr(t) == "<Timeline of cuda:0: peak 4.0 MiB allocated, 20.0 MiB reserved, marks: 1, virtual>"
    del a


def titles(text):
    return [title.text for title in ET.fromstring(text).iter(f"{SVG}title")]


def test_each_tensor_is_an_allocation_with_its_size_its_time_and_its_line(gpu):
    before = take(3)
    with timeline() as t:
        a = take(4)
        b = take(30)
        del a
    sizes = [(one.nbytes // MIB, one.born, one.freed) for one in t.curve.allocations]
    assert sizes == [(3, 0, None), (4, 1, 4), (30, 3, None)]  # b has a segment of its own, point 2
    line = f"{Path(__file__).name}, line {take.__code__.co_firstlineno + 1}: return torch.empty("
    assert t.curve.allocations[0].line == ""  # it was there before the recording
    assert t.curve.allocations[1].line.startswith(line)
    assert t.curve.allocations[1].line.endswith("\nin take")
    del b, before


@pytest.mark.parametrize("seed", range(5))
def test_the_allocations_of_every_point_are_the_curve(seed):
    rng = random.Random(seed)
    with VirtualGPU("T4", compute=False):
        live = [take(rng.uniform(0, 9)) for _ in range(5)]
        with timeline() as t:
            for _ in range(80):
                if rng.random() < 0.55 or not live:
                    live.append(take(2 ** rng.uniform(-12, 5)))
                else:
                    live.pop(rng.randrange(len(live)))
        live.clear()
    for point, allocated in enumerate(t.curve.allocated_bytes):
        held = [one for one in t.curve.allocations if one.born <= point and (one.freed is None or one.freed > point)]
        assert sum(one.nbytes for one in held) == allocated


@pytest.fixture(scope="module")
def trained():
    with VirtualGPU("T4", compute=False), timeline() as t:
        train(2, t)
    return t


def test_a_band_says_size_phases_and_line_of_its_tensor(trained):
    text = picture.draw(trained.curve).text()
    start = "0.5 MiB: allocated in “forward”, freed in “backward”\n"
    lines = [title.removeprefix(start) for title in titles(text) if title.startswith(start)]
    number = train.__code__.co_firstlineno + 6
    assert f"{Path(__file__).name}, line {number}: loss = model(x).square().mean()\nin train" in lines
    assert str(Path(__file__).parent) not in text


def test_the_peak_is_named_with_its_phase_in_the_picture(trained):
    words = [element.text for element in ET.fromstring(picture.draw(trained.curve).text()).iter(f"{SVG}text")]
    assert f"peak: {mib(trained.curve.peak_allocated_bytes)} in “{trained.curve.peak_phase}”" in words
    assert {"forward", "backward", "step"} <= set(words)
    assert "MiB on cuda:0, virtual" in words


def test_a_part_of_it_is_drawn_between_two_marks(trained, monkeypatch):
    shown = []
    monkeypatch.setattr("gpulab.memory.shown.show_curve", lambda curve, *points: shown.append(points))
    trained.show(since="backward", until="step")
    trained.show(since="step")
    trained.show(until="backward")
    trained.show()
    last = len(trained.curve.allocated_bytes) - 1
    marks = {}
    for mark in trained.curve.marks:
        marks.setdefault(mark.name, mark.point)
    backward, step = marks["backward"], marks["step"]
    assert shown == [(backward, step), (step, last), (0, backward), (0, last)]
    with pytest.raises(ValueError, match=r"show\(since='front'\): no mark has this name; there are 'forward', "):
        trained.show(since="front")
    with pytest.raises(ValueError, match=r"show\(until='x'\): no mark has this name after 'step'; there are 'forward'"):
        trained.show(since="step", until="x")


def test_a_stretch_says_which_it_is_and_its_own_highest_point(trained, check_picture):
    curve = trained.curve
    drawn = picture.draw(curve, 40, 80)
    highest = mib(max(curve.allocated_bytes[40:81]))
    assert drawn.title == f"Events 40 to 80 of {len(curve.allocated_bytes) - 1}: at most {highest} allocated"
    assert f"highest here: {highest} in “" in drawn.text()
    check_picture(drawn.text())


def curve(marks, points=100):
    return MemoryCurve("cuda:0", "virtual", tuple(range(points)), (points,) * points, tuple(range(points)), marks)


@pytest.mark.parametrize("first", [0, 40])
def test_no_two_names_in_the_picture_overlap_and_all_are_inside(check_picture, first):
    marks = tuple(Mark(f"a long name {i}", i) for i in range(0, 100, 3))
    text = picture.draw(curve(marks), first).text()
    check_picture(text)
    assert 3 <= text.count(">a long name") < len(marks)


def many(events):
    """A curve of so many events: short tensors by the thousand, and some that stay."""
    rng, live, allocations, allocated = random.Random(0), [], [], [0]
    for point in range(1, events):
        if rng.random() < 0.5 + 1 / (2 + len(live)) or not live:
            live.append((rng.choice((1, 2, 8, 64)) * MIB // 4, point))
            allocated.append(allocated[-1] + live[-1][0])
        else:
            nbytes, born = live.pop(rng.randrange(len(live)))
            allocated.append(allocated[-1] - nbytes)
            allocations.append(Allocation(nbytes, born, point, f"the cell, line {born % 7}: x = f(x)"))
    allocations += [Allocation(nbytes, born, None) for nbytes, born in live]
    marks = tuple(Mark(f"phase {i}", i * events // 50) for i in range(50))
    reserved = (max(allocated),) * events
    return MemoryCurve(
        "cuda:0", "virtual", tuple(allocated), reserved, tuple(range(events)), marks, allocations=tuple(allocations)
    )


@pytest.mark.parametrize("events", [50, 5_000, 200_000])
def test_a_run_of_any_length_is_a_picture_below_150_kb(events, check_picture):
    text = picture.draw(many(events)).text()
    check_picture(text)
    assert 4 / 3 * len(text.encode()) < 150_000


def test_bands_of_whole_pixels_lie_on_one_another_up_to_the_curve():
    of = many(300)
    piled = stack(of, Stretch(0, 299), 1000)
    assert (piled.base, piled.others) == ([], [])
    for point in range(300):
        at = sorted(
            (max(step for step in band.steps if step[0] <= point)[1], band.allocation.nbytes)
            for band in piled.bands
            if band.steps[0][0] <= point and (band.allocation.freed is None or point < band.allocation.freed)
        )
        tops = [0, *(below + nbytes for below, nbytes in at)]
        assert [below for below, _ in at] == tops[:-1]  # each begins where the one below it ends
        assert tops[-1] == of.allocated_bytes[point]


def test_what_has_no_band_is_counted_apart_by_whether_it_was_there_throughout():
    of = many(300)
    whole = stack(of, Stretch(100, 200), 1000)
    some = stack(of, Stretch(100, 200, least_bytes=MIB, least_points=10), 8)
    assert len(some.bands) == 8
    assert min(band.allocation.nbytes for band in some.bands) == max(one.nbytes for one in some.others + some.base)
    assert len(some.bands) + len(some.base) + len(some.others) == len(whole.bands) + len(whole.base) + len(whole.others)
    assert all(one.born <= 100 and (one.freed is None or one.freed > 200) for one in some.base)


def test_in_a_kernel_the_page_asks_for_a_stretch_and_gets_it(trained):
    zoom = zoomed(trained.curve, 0, 20).children[0]
    assert (zoom.stretch, zoom.home) == ([0, 20], [0, 20])
    zoom.asked = [5, 15]
    assert zoom.stretch == [5, 15]
    assert zoom.svg == picture.draw(trained.curve, 5, 15).text()
