"""The line through the times of copies: it finds the latency and the bandwidth that made them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.transfers import Fit, fit

SIZES = [10**power for power in range(3, 10)]
latencies = st.floats(0.5, 500)
bandwidths = st.floats(0.1, 5000)


def times(latency_us, bandwidth_gbps, sizes=SIZES):
    return [latency_us / 1e3 + size / bandwidth_gbps * 1e-6 for size in sizes]


@given(latencies, bandwidths)
def test_exact_times_give_exactly_what_made_them(latency, bandwidth):
    found = fit(SIZES, times(latency, bandwidth))
    assert found.latency_us == pytest.approx(latency, rel=1e-4)
    assert found.bandwidth_gbps == pytest.approx(bandwidth, rel=1e-4)
    assert found.worst < 1e-6


@given(st.floats(5, 500), st.floats(5, 100), st.integers(0, 10**6))
def test_noise_of_five_percent_moves_them_little(latency, bandwidth, seed):
    noise = random.Random(seed)
    found = fit(SIZES, [time * noise.uniform(0.95, 1.05) for time in times(latency, bandwidth)])
    assert found.latency_us == pytest.approx(latency, rel=0.1)
    assert found.bandwidth_gbps == pytest.approx(bandwidth, rel=0.1)
    assert found.worst < 0.12


@given(st.floats(5, 500), st.floats(5, 5000))
def test_small_copies_count_as_much_as_large_ones(latency, bandwidth):
    # An absolute error of the largest copy, greater than the latency, must not drown it.
    disturbed = times(latency, bandwidth)
    disturbed[-1] *= 1.05
    assert fit(SIZES, disturbed).latency_us == pytest.approx(latency, rel=0.05)


def test_a_hand_made_line():
    found = fit([1_000, 2_000], [0.012, 0.014])
    assert found.latency_us == pytest.approx(10)
    assert found.bandwidth_gbps == pytest.approx(0.5)
    assert found.half_rate_bytes == pytest.approx(5_000)
    assert found.ms(3_000) == pytest.approx(0.016)


@given(latencies, bandwidths)
def test_at_the_half_rate_size_a_copy_has_half_the_bandwidth(latency, bandwidth):
    line = Fit(latency, bandwidth, 0.0)
    nbytes = line.half_rate_bytes
    assert nbytes / line.ms(nbytes) * 1e-6 == pytest.approx(bandwidth / 2)


def test_a_line_that_would_begin_below_zero_begins_at_zero():
    found = fit([1e6, 1e9], [0.5, 1000])  # 2 GB/s and 1 GB/s: a byte of the larger copy takes longer
    assert found.latency_us == 0
    assert found.bandwidth_gbps == pytest.approx(5 / 3)
    assert found.worst == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("sizes", "took"), [([], []), ([1e6], [1.0]), ([1e6, 1e6], [1.0, 2.0]), ([1, 2, 3], [3, 2, 1])]
)
def test_no_line_where_there_is_none(sizes, took):
    assert fit(sizes, took) is None


@pytest.mark.parametrize(
    ("sizes", "took", "words"),
    [
        ([1, 2], [1.0], "2 sizes and 1 times"),
        ([0, 2], [1.0, 2.0], "sizes_bytes must be numbers above 0"),
        ([1, 2], [1.0, float("inf")], "times_ms must be numbers above 0"),
    ],
)
def test_what_does_not_belong_together_is_refused(sizes, took, words):
    with pytest.raises(ValueError, match=words):
        fit(sizes, took)
