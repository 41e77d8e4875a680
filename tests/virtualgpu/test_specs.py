"""The table of GPUs: the names `setup` takes, values in the units they claim, nothing invented."""

import dataclasses
import math

import pytest

from virtualgpu import choice
from virtualgpu.gpus.specs import PCIE3, SPECS, Link, spec


def test_the_names_are_those_that_setup_takes():
    for name in SPECS:
        assert choice.choose(name) == choice.choose(f"virtual:{name}") == ("virtual", name)


@pytest.mark.parametrize("row", SPECS.values(), ids=SPECS)
class TestRow:
    def test_it_names_its_sources(self, row):
        assert len(row.source) > 10

    def test_cuda_sees_a_little_less_than_what_is_sold(self, row):
        # A "16 GB" card has 16 GiB of chips; driver and ECC take up to a tenth of them.
        assert 0.9 < row.memory_bytes / (row.memory_gb * 2**30) < 1

    def test_the_fp32_rate_is_that_of_its_lanes_at_a_possible_clock(self, row):
        clock_ghz = row.tflops["fp32"] * 1000 / (2 * row.fp32_lanes)
        assert 1.4 < clock_ghz < 2.6

    def test_lanes_are_64_or_128_to_an_sm(self, row):
        assert row.fp32_lanes / row.sms in (64, 128)

    def test_tensor_rates_exist_only_where_there_is_hardware(self, row):
        for dtype, rate in row.tflops.items():
            assert rate is None or row.has(dtype)
        assert row.tflops["fp16"] >= row.tflops["fp32"]
        assert row.has("bf16") == (row.tflops["bf16"] is not None)

    def test_it_cannot_be_changed(self, row):
        with pytest.raises(dataclasses.FrozenInstanceError):
            row.sms = 1
        with pytest.raises(TypeError):
            row.tflops["fp32"] = 1.0


def test_a_t4_by_hand():
    t4 = spec("T4")
    assert (t4.product, t4.capability, t4.sms) == ("Tesla T4", (7, 5), 40)
    assert math.isclose(t4.memory_bytes / 2**30, 14.74, abs_tol=0.01)
    assert not t4.has("bf16")
    assert not t4.has("tf32")
    assert t4.host_link is PCIE3
    assert t4.gpu_link is None


def test_one_way_of_a_link_is_half():
    assert PCIE3.one_way_gbps == 16
    assert Link("NVLink 4", 900).one_way_gbps == 450


def test_what_no_vendor_page_was_found_for_is_none():
    assert spec("RTX3060").tflops["tf32"] is None
    assert spec("RTX4090").tflops["tf32"] is None
    assert spec("B200").host_link is None


def test_wrong_names_are_answered_with_the_right_ones():
    with pytest.raises(ValueError, match=r"name is 'A100'; known GPUs: .*A100-40, A100-80"):
        spec("A100")
    with pytest.raises(ValueError, match=r"dtype is 'int8'; it must be one of fp32, tf32, fp16, bf16"):
        spec("T4").has("int8")
