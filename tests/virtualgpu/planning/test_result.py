"""How a plan reads: as a table, in one line, as a picture."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import pytest

from virtualgpu.pictures import style
from virtualgpu.planning import Plan, plan
from virtualgpu.planning.picture import draw_plan

from . import steps

MIB = 2**20
PLAN = Plan(
    gpu="T4",
    batch=64,
    fits=True,
    memory=15_828_320_256,
    context=300 * MIB,
    weights=100 * MIB,
    gradients=100 * MIB,
    optimizer_state=200 * MIB,
    activations=8000 * MIB,
    data=36 * MIB,
    temporaries=1200 * MIB,
    workspaces=8 * MIB,
    peak_allocated=9644 * MIB,
    peak_reserved=10_000 * MIB,
    step_ms=200.0,
    gpu_busy=0.9,
    rates="published rates",
    fits_on={"T4": True, "RTX3060": None, "H100": True, "V100-16": False},
    largest_batch=90,
    tried={64: True, 90: True, 91: False},
    notes=("a note",),
)
TOO_LARGE = dataclasses.replace(
    PLAN, fits=False, activations=16_000 * MIB, peak_allocated=17_644 * MIB, peak_reserved=18_000 * MIB
)


def test_the_table():
    assert str(PLAN).splitlines() == [
        "Batch 64 fits on a T4, with 4,795.1 MiB to spare (all numbers virtual).",
        "",
        "at the peak of a step                      MiB",
        "  weights                                100.0",
        "  gradients                              100.0",
        "  optimizer state                        200.0",
        "  activations                          8,000.0",
        "  data                                    36.0",
        "  temporaries                          1,200.0",
        "  workspaces                               8.0",
        "allocated                              9,644.0",
        "  reserved, not allocated                356.0",
        "  CUDA context                           300.0",
        "in use                                10,300.0",
        "of the T4's memory                    15,095.1",
        "",
        "step         200.0 ms, kernels running 90% of it, 320.0 samples/s (published rates)",
        "fits on      T4, H100",
        "not on       V100-16",
        "perhaps on   RTX3060 (plan for it)",
        "largest      batch 90 (3 tried)",
        "note         a note",
    ]


def test_what_follows_from_the_numbers():
    assert sum(PLAN.categories.values()) == PLAN.peak_allocated
    assert PLAN.total == 10_300 * MIB
    assert PLAN.free == PLAN.memory - PLAN.total
    assert PLAN.samples_per_second == 320
    assert dataclasses.replace(PLAN, step_ms=0.0).samples_per_second == 0
    assert TOO_LARGE.finding == "Batch 64 does not fit on a T4: 3,204.9 MiB are missing"
    assert repr(PLAN) == "<Plan for batch 64 on a T4: fits, 10,300.0 of 15,095.1 MiB, 200.0 ms a step, virtual>"
    assert "not even batch 1 fits" in str(dataclasses.replace(PLAN, largest_batch=0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAN.batch = 3


@pytest.mark.parametrize("shown", [PLAN, TOO_LARGE], ids=["fits", "too large"])
def test_the_picture(shown):
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == str(shown)
    root = ET.fromstring(bundle["image/svg+xml"])
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.find(f"{space}title").text == shown.finding
    assert "weights 100.0" in root.find(f"{space}desc").text
    texts = [element.text for element in root.iter(f"{space}text")]
    for name, nbytes in shown.rows():
        assert name in texts
        assert f"{nbytes / MIB:,.1f} MiB" in texts
    # the bar ends within the picture, and a line stands where the GPU's memory does
    width = float(root.get("viewBox").split()[2])
    for element in root.iter(f"{space}rect"):
        assert float(element.get("x")) + float(element.get("width")) <= width
    assert ("free" in texts) == shown.fits
    assert any(re.match("Virtual", text or "") for text in texts)


def test_no_part_is_told_by_its_colour_alone():
    numbers = re.findall(r">(\d+)</text>", "".join(draw_plan(PLAN).body))
    assert sorted(set(numbers), key=int) == [str(n) for n in range(1, 11)]
    assert numbers.count("4") == 2  # in the bar, and in the key


def test_it_grows_with_the_lecture_hall():
    try:
        style.lecture(2)
        assert 'width="1520"' in PLAN._svg()
    finally:
        style.lecture(1)


def test_shown_in_a_terminal_it_is_the_table(capsys):
    PLAN.show()
    assert capsys.readouterr().out == f"{PLAN}\n"


def test_a_step_without_work_reads_too():
    found = plan(lambda batch: lambda: None, 1, "T4")
    assert found.peak_allocated == 0
    assert "samples/s" in str(found)


def test_time_is_the_clocks():
    small, large = plan(steps.mlp, 4096, "T4"), plan(steps.mlp, 16384, "T4")
    assert 0 < small.step_ms < large.step_ms
    assert 0.2 < small.gpu_busy <= 1
    assert large.samples_per_second == pytest.approx(16384 / large.step_ms * 1000)
    assert plan(steps.mlp, 4096, "T4").step_ms == small.step_ms  # the same each time
    assert plan(steps.mlp, 16384, "H100").step_ms < large.step_ms
    small = plan(lambda batch: steps.mlp(batch, width=8, depth=32), 1, "T4")
    assert small.gpu_busy < 0.8  # launches take longer than kernels
