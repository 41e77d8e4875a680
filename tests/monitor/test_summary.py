"""What samples come to: known values, what holds for any samples, and the words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.monitor import Reading, Readings, Sample, Slice
from gpulab.monitor.summary import summarise

MIB = 2**20
T4 = Reading(0, "measured", name="Tesla T4", uuid="GPU-1", used_bytes=MIB, total_bytes=15360 * MIB)


def samples(*moments: tuple[float, Reading | list[Reading]]) -> list[Sample]:
    return [Sample(at, Readings(found if isinstance(found, list) else [found])) for at, found in moments]


def test_a_mean_is_weighted_by_the_time_that_each_reading_stands_for() -> None:
    seen = samples(
        (0.0, replace(T4, utilization=5, power_w=10)),
        (1.0, replace(T4, utilization=100, power_w=70)),
        (4.0, replace(T4, utilization=20, power_w=30)),
    )
    summary = summarise(seen)
    (gpu,) = summary.gpus
    assert (summary.seconds, summary.samples) == (4.0, 3)
    assert gpu.mean_utilization == pytest.approx((100 * 1 + 20 * 3) / 4), "the first is of the time before"
    assert gpu.mean_power_w == pytest.approx((70 * 1 + 30 * 3) / 4)
    assert gpu.max_utilization == 100


def test_a_single_sample_is_its_own_mean() -> None:
    (gpu,) = summarise(samples((0.0, replace(T4, utilization=5)))).gpus
    assert (gpu.mean_utilization, gpu.max_utilization) == (5, 5)


def test_energy_is_the_difference_of_the_counter_unless_it_was_set_back() -> None:
    def energy(*counter: float | None) -> float | None:
        return (
            summarise(samples(*((i, replace(T4, energy_j=joules)) for i, joules in enumerate(counter))))
            .gpus[0]
            .energy_j
        )

    assert energy(1000.0, 1100.0, 1250.5) == 250.5
    assert energy(None, 1000.0, None, 1100.0, None) == 100
    assert energy(1000.0, 20.0) is None
    assert energy(1000.0) is None
    assert energy(None, None) is None


def test_a_reading_that_failed_belongs_to_the_gpu_of_its_number() -> None:
    lost = Reading(0, "measured", unread=("the GPU: lost",))
    for order in ((lost, T4), (T4, lost, T4), (lost, lost, T4, lost)):
        (gpu,) = summarise(samples(*enumerate(order))).gpus
        assert (gpu.name, gpu.peak_used_bytes, gpu.mean_utilization) == ("Tesla T4", MIB, None)
    assert gpu.unread == ("the GPU: lost",)
    assert "busy: not told" in str(gpu)


def test_another_gpu_with_the_same_number_is_another_line() -> None:
    virtual = Reading(0, "virtual", name="Tesla T4")
    assert [gpu.numbers for gpu in summarise(samples((0, T4), (1, virtual), (2, T4))).gpus] == ["measured", "virtual"]
    a100 = replace(virtual, name="A100")
    assert [gpu.name for gpu in summarise(samples((0, virtual), (1, a100))).gpus] == ["Tesla T4", "A100"]


def test_where_it_is_known_which_gpus_are_this_programs_only_they_are_in_it() -> None:
    other = replace(T4, index=1, uuid="GPU-2")
    seen = samples((0, [T4, other]), (1, [replace(T4, device="cuda:0"), other]))
    (gpu,) = summarise(seen).gpus
    assert gpu.label == "GPU 0 (cuda:0)"
    assert len(summarise(seen[:1]).gpus) == 2


def test_slices_keep_the_most_that_was_found_of_each() -> None:
    def cut(*used: int | None) -> Reading:
        parts = (Slice(i, f"MIG {i}", f"MIG-{i}", used_bytes=u, total_bytes=9 * MIB) for i, u in enumerate(used))
        return replace(T4, mig=True, slices=tuple(parts))

    (gpu,) = summarise(samples((0, cut(MIB, None)), (1, cut(3 * MIB, MIB)), (2, cut(2 * MIB, None)))).gpus
    assert [part.used_bytes for part in gpu.slices] == [3 * MIB, MIB]
    assert "slice 0, MIG 0: at most 3 of 9 MiB in use" in str(gpu)


def test_the_words_say_what_was_seen_and_what_kind_of_number_it_is() -> None:
    seen = samples(
        (0, replace(T4, energy_j=0)), (2.5, replace(T4, utilization=80, used_bytes=3 * MIB, energy_j=100, power_w=40))
    )
    assert repr(summarise(seen)) == (
        "2.5 s, 2 readings\n"
        "GPU 0, Tesla T4, measured: busy 80 % on average, 80 % at most; at most 3 of 15,360 MiB in use; 100 J; "
        "40 W on average"
    )


def test_virtual_seconds_are_told_from_real_ones() -> None:
    virtual = Reading(0, "virtual", name="Tesla T4")
    assert repr(summarise(samples((0, virtual), (0.5, virtual)))).startswith(
        "0.5 s on the virtual GPU's clock, 2 readings"
    )


def test_without_gpus_the_summary_is_the_reason() -> None:
    assert repr(summarise([])) == "no GPU was read: nothing has been read yet"
    assert repr(summarise([Sample(0.0, Readings((), "no driver"))])) == "no GPU was read: no driver"
    gone = summarise([*samples((0.0, T4)), Sample(1.0, Readings((), "the driver does not answer"))])
    assert repr(gone).splitlines()[-1] == "Then: the driver does not answer"


percent = st.none() | st.floats(0, 100)
reading = st.builds(
    Reading,
    index=st.integers(0, 2),
    numbers=st.just("measured"),
    name=st.sampled_from(["T4", "T4", None]),
    used_bytes=st.none() | st.integers(0, 2**40),
    utilization=percent,
    power_w=st.none() | st.floats(0, 700),
    energy_j=st.none() | st.floats(0, 1e9),
)
moments = st.lists(
    st.tuples(st.floats(0, 1000), st.lists(reading, max_size=3, unique_by=lambda r: r.index)), min_size=1
)


@given(moments)
def test_every_mean_lies_within_its_readings_and_every_peak_is_one(found: Any) -> None:
    seen = samples(*sorted(found, key=lambda moment: moment[0]))
    summary = summarise(seen)
    every = [one for sample in seen for one in sample.readings]
    assert sorted(gpu.index for gpu in summary.gpus) == sorted({one.index for one in every})
    assert summary.seconds >= 0
    for gpu in summary.gpus:
        own = [one for one in every if one.index == gpu.index]
        busy = [one.utilization for one in own if one.utilization is not None]
        used = [one.used_bytes for one in own if one.used_bytes is not None]
        if gpu.mean_utilization is not None and gpu.max_utilization is not None:
            ulp = 1e-12 * max(busy)  # a mean is rounded
            assert min(busy) - ulp <= gpu.mean_utilization <= gpu.max_utilization + ulp
            assert gpu.max_utilization <= max(busy)
        assert (gpu.mean_utilization is None) == (gpu.max_utilization is None)
        assert gpu.peak_used_bytes == max(used, default=None)
        assert gpu.energy_j is None or gpu.energy_j >= 0
        assert str(gpu)


@given(moments, st.floats(0.001, 1000))
def test_means_do_not_depend_on_the_unit_of_time(found: Any, factor: float) -> None:
    ordered = sorted(found, key=lambda moment: moment[0])
    one = summarise(samples(*ordered))
    two = summarise(samples(*((at * factor, readings) for at, readings in ordered)))
    for left, right in zip(one.gpus, two.gpus, strict=True):
        assert left.mean_utilization == pytest.approx(right.mean_utilization)
        assert left.peak_used_bytes == right.peak_used_bytes
