"""One call as lanes: when each thing began and ended, in words, letters and a picture."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from gpulab import timing
from gpulab.timing import lanes, recording
from virtualgpu.gpu import VirtualGPU
from virtualgpu.pictures import style
from virtualgpu.readings import counters

SIZE = 2048


pytestmark = pytest.mark.filterwarnings("ignore:with compute=False the virtual GPU knows shapes")


@pytest.fixture
def overlapped(shapes):
    """Copies in a side stream, products in the default one."""
    return make_overlapped()


def make_overlapped():
    weight = torch.empty(SIZE, SIZE, device="cuda")
    batches = [torch.empty(SIZE, SIZE).pin_memory() for _ in range(3)]
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def call():
        for batch in batches:
            with torch.cuda.stream(side):
                x = batch.to("cuda", non_blocking=True)
            main.wait_stream(side)
            x.record_stream(main)
            y = x @ weight
        y.sum().item()

    call()  # the first product takes the host longer
    return call


def test_each_stream_has_its_lane_below_the_hosts(overlapped):
    found = timing.timeline(overlapped)
    assert list(found.lanes) == ["host", "stream 0", "stream 1"]
    host, products, copies = found.lanes.values()
    assert [event.name for event in copies] == ["copy to GPU, pinned"] * 3
    assert [event.name for event in products] == ["mm", "mm", "mm", "sum", "copy to host, pinned"]
    assert [event.kind for event in host] == ["launch"] * 4 + ["wait"]
    assert {event.kind for event in copies} == {"copy"}
    assert copies[0].start_ms < 0.1  # of an idle GPU
    for copy, product in zip(copies, products, strict=False):
        assert product.start_ms >= copy.end_ms  # wait_stream
    for lane in (host, copies):
        assert all(a.end_ms <= b.start_ms + 1e-9 for a, b in itertools.pairwise(lane))
    assert found.ms == pytest.approx(host[-1].end_ms) == pytest.approx(products[-1].end_ms)


def test_its_times_are_the_clocks(shapes):
    call, clock = make_overlapped(), shapes.clock
    torch.cuda.synchronize()
    began = clock.host
    call()
    took = (clock.host - began) * 1e3
    found = timing.timeline(call)
    assert found.ms == pytest.approx(took)
    waited = sum(event.ms for event in found.lanes["host"] if event.kind == "wait")
    assert waited == pytest.approx(timing.syncs(call).ms)


def test_its_finding_counts_what_runs_at_once_once(overlapped):
    found = timing.timeline(overlapped)
    by_kind = {kind: sum(e.ms for e in found.recording.events if e.kind == kind) for kind in ("kernel", "copy")}
    kernels, copies, both, waits = (int(n) for n in re.findall(r"(\d+)%", found.finding))
    assert kernels == round(100 * by_kind["kernel"] / found.ms)
    assert copies == round(100 * by_kind["copy"] / found.ms)
    assert 0 < both < copies
    assert waits > 90
    assert found.finding.startswith(f"In {found.ms:.3f} ms kernels run ")


def test_the_text_form_has_a_letter_for_each_stretch(overlapped):
    head, host, products, copies, key = str(timing.timeline(overlapped)).splitlines()
    assert head.endswith("(virtual, from its clock).")
    assert re.fullmatch(r"host +[|w]{2,}w{50,}", host)
    assert re.fullmatch(r"stream 0 +\.+[#.]*#+=?", products)
    assert re.fullmatch(r"stream 1 +=+\.+", copies)
    assert re.search(r"one letter is [\d.]+ ms$", key)


def test_the_picture_names_what_is_pointed_at_in_colours_of_both_themes(overlapped):
    found = timing.timeline(overlapped)
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == str(found) == repr(found)
    svg = bundle["image/svg+xml"]
    root = ElementTree.fromstring(svg)
    titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == found.finding
    product = found.lanes["stream 0"][0]
    assert f"kernel mm: {product.ms:.3f} ms from {product.start_ms:.3f} ms" in titles
    described = next(root.iter("{http://www.w3.org/2000/svg}desc")).text
    assert "stream 1: copy to GPU, pinned at 0.0" in described
    colours = {node.get(part) for node in root.iter() for part in ("fill", "stroke")} - {None, "none", "transparent"}
    assert colours <= {style.PAPER, style.INK, style.MUTED, style.RULE, style.SEAM, *style.PALETTE}
    assert "prefers-color-scheme:dark" in svg


def test_a_thousand_kernels_are_a_small_picture(shapes):
    x = torch.empty(256, device="cuda")
    found = timing.timeline(lambda: [x.sin() for _ in range(1000)])
    assert len(found.lanes["stream 0"]) == 1000
    assert len(found.svg()) < 100_000


def test_it_shows_itself_outside_of_a_notebook_as_text(overlapped, capsys):
    found = timing.timeline(overlapped)
    found.show()
    assert capsys.readouterr().out == f"{found}\n"


def test_pytorchs_profiler_gives_the_same_lanes():
    """What a real GPU's call does, with PyTorch's profiler on a virtual GPU."""
    with VirtualGPU("T4", compute=False, counts_host=True):
        call = make_overlapped()
        gpu = counters.one_gpu(None, "here")._replace(scope=None)
        found = lanes.Timeline(recording._profiled(call, gpu))
    host, products, copies = found.lanes.values()
    assert list(found.lanes) == ["host", "stream 0", "stream 1"]
    assert [event.name for event in copies] == ["copy to GPU, pinned"] * 3
    assert [event.name for event in products] == ["mm", "mm", "mm", "sum", "copy to host, pinned"]
    assert {event.kind for event in copies} == {"copy"}
    assert {event.name for event in host} == {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize"}
    assert [event.kind for event in host].count("wait") == 1
    assert all(0 <= event.start_ms <= event.end_ms <= found.ms + 1e-6 for event in found.recording.events)
    assert "(measured by torch.profiler)" in str(found)
    assert found.svg().startswith("<svg")


def test_another_gpus_streams_are_not_in_it(two_gpus):
    x, y = (torch.empty(2**20, device=f"cuda:{n}") for n in range(2))
    found = timing.timeline(lambda: (x.sin(), y.cos(), torch.cuda.synchronize(1)), device=1)
    assert [event.name for event in found.lanes["stream 0"]] == ["cos"]
    assert [(event.kind, event.name) for event in found.lanes["host"]] == [("launch", "cos"), ("wait", "synchronize")]


def test_a_call_without_work_on_the_gpu(gpu):
    found = timing.timeline(lambda: None)
    assert found.finding == "No kernel and no copy ran on cuda:0"
    assert list(found.lanes) == ["host"]
    assert found.svg().startswith("<svg")
    assert "host" in str(found)


def test_exceptions_pass_and_wrong_inputs_are_told(gpu):
    with pytest.raises(KeyError, match="mine"):
        timing.timeline(lambda: {}["mine"])
    assert gpu.clock.record is None
    with pytest.raises(TypeError, match=r"write timing\.timeline\(lambda: step\(x\)\)"):
        timing.timeline("step")
    with pytest.raises(
        TypeError, match="function gave a generator, whose body has not run: there is nothing to record"
    ):
        timing.timeline(lambda: (i for i in range(3)))


def test_without_a_gpu(no_gpu):
    with pytest.raises(RuntimeError, match=r"timing\.timeline needs a GPU, and there is no GPU here"):
        timing.timeline(lambda: None)
