import math
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.sim.base.floats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, TF32, walk, weight

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
SMALL_ONES = ["fp16", "bf16", "e4m3", "e5m2"]

every_format = pytest.mark.parametrize("name", FORMATS)
doubles = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e39, max_value=1e39)


def single(value):
    """The nearest float32, by the standard library."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def next_single(value, up):
    """The float32 beside `value`, by its bits."""
    bits = struct.unpack("i", struct.pack("f", value))[0]
    if value == 0:
        return math.copysign(2.0**-149, 1 if up else -1)
    step = 1 if (value > 0) == up else -1
    return struct.unpack("f", struct.pack("i", bits + step))[0]


class TestKnown:
    @pytest.mark.parametrize(
        ("kind", "largest", "normal", "smallest"),
        [
            (FP32, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149),
            (TF32, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136),
            (FP16, 65504.0, 2.0**-14, 2.0**-24),
            (BF16, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133),
            # FP8 Formats for Deep Learning, arXiv 2209.05433, table 1
            (E4M3, 448.0, 2.0**-6, 2.0**-9),
            (E5M2, 57344.0, 2.0**-14, 2.0**-16),
        ],
    )
    def test_limits(self, kind, largest, normal, smallest):
        assert (kind.largest, kind.smallest_normal, kind.smallest) == (largest, normal, smallest)

    @pytest.mark.parametrize(
        ("kind", "value", "stored"),
        [
            (FP16, 70000.0, math.inf),
            (BF16, 70000.0, 70144.0),
            (FP16, 65519.996, 65504.0),  # the last float32 before the half-way point to 65536
            (FP16, 65520.0, math.inf),
            (FP16, 1e-8, 0.0),
            (FP16, 2.0**-25, 0.0),  # a tie, to the even one
            (FP16, 2.0**-25 * 1.001, 2.0**-24),
            (FP16, 3 * 2.0**-25, 2.0**-23),  # a tie, to the even one
            (BF16, 1.0 - 0.001, 1.0),
            (BF16, 257.0, 256.0),
            (BF16, 259.0, 260.0),
            (E4M3, 70000.0, 448.0),
            (E4M3, -math.inf, -448.0),
            (E5M2, 61440.0, math.inf),
            (E5M2, 61439.0, 57344.0),
            (TF32, 1.0 + 2.0**-11, 1.0 + 2.0**-10),  # a tie, away from zero
            (TF32, -1.0 - 2.0**-11, -1.0 - 2.0**-10),
        ],
    )
    def test_rounding(self, kind, value, stored):
        assert kind.store(value) == stored

    @pytest.mark.parametrize(
        ("kind", "value", "fields"),
        [
            (FP16, 1.0, ("0", "01111", "0000000000")),
            (FP16, -2.0, ("1", "10000", "0000000000")),
            (BF16, 1.5, ("0", "01111111", "1000000")),
            (FP16, 2.0**-24, ("0", "00000", "0000000001")),
            (FP16, -0.0, ("1", "00000", "0000000000")),
            (FP16, math.inf, ("0", "11111", "0000000000")),
            (E4M3, 448.0, ("0", "1111", "110")),
            (E5M2, 57344.0, ("0", "11110", "11")),
            (TF32, 1.0 + 2.0**-10, ("0", "01111111", "0000000001")),
        ],
    )
    def test_bits(self, kind, value, fields):
        assert kind.fields(value) == fields

    def test_spacing_doubles_at_a_power_of_two(self):
        assert FP16.spacing(1.0) == 2 * FP16.spacing(0.999)
        assert BF16.spacing(1.0) == 2.0**-7
        assert BF16.beside(1.0) == (1 - 2.0**-8, 1 + 2.0**-7)

    def test_there_is_nothing_beyond_the_largest(self):
        assert FP16.beside(65504.0) == (65472.0, None)
        assert E4M3.beside(-448.0) == (None, -416.0)

    def test_no_weight_is_kept_in_tf32(self):
        assert weight(TF32) is FP32
        assert weight(BF16) is BF16


class TestAgainstTorch:
    """Every value, every half-way point, and the float32 on either side of each."""

    @pytest.mark.parametrize("name", SMALL_ONES)
    def test_every_code_is_the_value_that_torch_reads(self, name):
        import torch

        kind, codes = FORMATS[name], 2 ** (1 + FORMATS[name].exponent + FORMATS[name].mantissa)
        width = torch.int16 if codes == 2**16 else torch.uint8
        read = torch.arange(codes).to(torch.int32).to(width).view(getattr(torch, DTYPES[name])).double().tolist()
        for code, value in enumerate(read):
            mine = kind.value(code)
            assert mine == value or (math.isnan(mine) and math.isnan(value)), (code, mine, value)
            if not math.isnan(value):
                assert kind.code(value) == code

    @pytest.mark.parametrize("name", SMALL_ONES)
    def test_every_edge_is_rounded_as_torch_rounds_it(self, name):
        import torch

        kind = FORMATS[name]
        codes = 2 ** (kind.exponent + kind.mantissa)
        above = [value for value in map(kind.value, range(codes)) if math.isfinite(value)]
        limit = kind.largest + kind.spacing(kind.largest) / 2
        half_way = [(a + b) / 2 for a, b in pairwise(above)]
        points = {math.inf}
        for edge in (*above, *half_way, limit, 2 * limit):
            here = single(edge)
            if math.isfinite(here):
                points |= {here, next_single(here, True), next_single(here, False)}
        points |= {-point for point in points}
        given = torch.tensor(sorted(points), dtype=torch.float32)
        dtype = getattr(torch, DTYPES[name])
        if name == "e4m3" and torch.tensor(1e4).to(dtype).isnan():  # torch until the spring of 2026
            given = given[given.abs() <= limit]
        stored = given.to(dtype).double()
        mine = torch.tensor([kind.store(value) for value in given.tolist()], dtype=torch.float64)
        assert len(given) > 3 * codes / 2
        assert mine.isnan().sum() == stored.isnan().sum() == 0
        wrong = (mine != stored) | (mine.signbit() != stored.signbit())
        assert not wrong.any(), (given[wrong][:5], mine[wrong][:5], stored[wrong][:5])

    @pytest.mark.parametrize("name", DTYPES)
    def test_a_python_number_is_stored_as_torch_stores_it(self, name):
        import torch

        dtype = getattr(torch, DTYPES[name])
        for value in (0.1, 1 / 3, 3.14, 1.0 + 2.0**-11 + 2.0**-40, 1e-45, 7e-46, 1e-39, 448.0, 3.3e-8, 0.0625001):
            for signed in (value, -value):
                assert FORMATS[name].store(signed) == torch.tensor(signed, dtype=dtype).double().item()

    @pytest.mark.parametrize(("start", "change", "steps"), [(1.0, -0.001, 1000), (3.0, -0.02, 150), (0.1, 0.003, 300)])
    @pytest.mark.parametrize("name", DTYPES)
    def test_repeated_updates_end_where_torch_ends(self, name, start, change, steps):
        import torch

        kind, dtype = FORMATS[name], getattr(torch, DTYPES[name])
        path = walk(kind, kind.store(start), change, steps)
        tensor = torch.tensor(start, dtype=dtype)
        for step in range(steps):
            tensor = tensor.float().add_(change).to(dtype)
            assert tensor.double().item() == path[min(step + 1, len(path) - 1)]

    @pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
    def test_taking_a_thousandth_from_one_is_what_a_student_sees_in_torch(self, name):
        import torch

        tensor = torch.ones((), dtype=getattr(torch, DTYPES[name]))
        for _ in range(1000):
            tensor -= 0.001
        assert walk(FORMATS[name], 1.0, -0.001, 1000)[-1] == tensor.item()


class TestSingleAndTf32:
    """fp32 against the standard library; TF32, which torch has no dtype for, against arithmetic on the bits."""

    @given(doubles)
    def test_fp32_is_the_standard_librarys(self, value):
        assert FP32.nearest(value) == single(value)
        assert math.copysign(1, FP32.nearest(value)) == math.copysign(1, value)

    @given(st.integers(0, 0x7F7FFFFF))
    def test_tf32_adds_half_a_unit_and_cuts_13_bits(self, bits):
        value = struct.unpack("f", struct.pack("i", bits))[0]
        cut = (bits + 0x1000) & ~0x1FFF
        assert TF32.nearest(value) == struct.unpack("f", struct.pack("i", cut))[0]
        assert TF32.nearest(-value) == -TF32.nearest(value)


@every_format
class TestOfEveryFormat:
    @given(value=doubles)
    def test_rounding_twice_is_rounding_once(self, name, value):
        kind = FORMATS[name]
        assert kind.nearest(kind.nearest(value)) == kind.nearest(value)

    @given(value=doubles)
    def test_the_error_is_half_a_spacing_at_most(self, name, value):
        kind = FORMATS[name]
        stored = kind.nearest(value)
        if math.isfinite(stored) and abs(value) <= kind.largest:
            # the spacing at the stored value: it may lie one binade above
            assert abs(stored - value) <= kind.spacing(stored) / 2

    @given(a=doubles, b=doubles)
    def test_order_is_kept(self, name, a, b):
        low, high = sorted((a, b))
        assert FORMATS[name].nearest(low) <= FORMATS[name].nearest(high)

    @given(value=doubles)
    def test_the_bits_are_those_of_the_value(self, name, value):
        kind = FORMATS[name]
        stored = kind.nearest(value)
        assert kind.value(kind.code(stored)) == stored
        assert "".join(kind.fields(stored)) == f"{kind.code(stored):0{1 + kind.exponent + kind.mantissa}b}"

    @given(value=doubles)
    def test_what_is_beside_a_value_lies_one_code_away(self, name, value):
        kind = FORMATS[name]
        stored = kind.nearest(value)
        if math.isfinite(stored):
            below, above = kind.beside(stored)
            assert below is None or kind.beside(below)[1] == stored
            assert above is None or kind.beside(above)[0] == stored
            if stored > 0:
                assert above is None or above - stored == kind.spacing(stored)

    @given(start=doubles, change=st.floats(-10, 10), steps=st.integers(0, 50))
    def test_a_walk_goes_one_way_and_stops_for_good(self, name, start, change, steps):
        kind = FORMATS[name]
        path = walk(kind, kind.store(start), change, steps)
        assert len(path) <= steps + 1
        assert all((b - a) * change > 0 for a, b in pairwise(path))
        assert all(kind.nearest(value) == value for value in path)
        if len(path) <= steps:
            assert walk(kind, path[-1], change, 3) == (path[-1],)
