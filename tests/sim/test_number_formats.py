import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import example

from gpulab.sim.base.floats import FORMATS
from gpulab.sim.number_formats.controls import NumberFormats
from gpulab.sim.number_formats.model import MOST_UPDATES, flipped, share, simulate, spacings
from gpulab.sim.number_formats.picture import CENTRE, GAP, PAGE, RANGE, _basin, _page, draw
from virtualgpu.pictures import style, svg

from . import states
from .page import Page

DEFAULT = {"value": 1.0, "exponent": 0, "negative": False, "format": "bf16", "update": 0.001}
CLAIM_TOO_LARGE = {"value": 7.0, "exponent": 4}
CLAIM_TOO_SMALL = {"value": 1.0, "exponent": -8}


whole_range = states.whole_range(NumberFormats)


def stored(**values):
    number = simulate(**DEFAULT | values)
    return dict(zip(FORMATS, number.all, strict=True))


class TestClaims:
    def test_a_thousand_updates_of_a_thousandth_leave_bf16_at_one(self):
        number = simulate(**DEFAULT)
        assert number.chosen.value == number.chosen.after == 1.0
        assert number.chosen.stuck
        assert number.exact == 0
        assert number.finding == "bf16 rounds 1 − 0.001 back to 1: 1,000 such updates change nothing"

    def test_fp16_drifts_and_fp32_arrives(self):
        ends = stored()
        assert ends["fp16"].after == 0.022186279296875  # torch: see test_floats
        assert 0 < ends["fp32"].after < 1e-5
        assert "but small updates bring it to 0.0222, not to 0" in simulate(**DEFAULT | {"format": "fp16"}).finding
        assert simulate(**DEFAULT | {"format": "fp32"}).finding.endswith("bring it to 9.32 × 10⁻⁶, close to 0")

    def test_70000_is_inf_in_fp16_and_fine_in_bf16(self):
        found = stored(**CLAIM_TOO_LARGE)
        assert found["fp16"].value == math.inf
        assert found["fp16"].outcome == "overflow"
        assert found["bf16"].value == 70144
        assert found["fp32"].outcome == "none"
        assert found["e4m3"].value == 448
        assert found["e4m3"].outcome == "clamped"
        assert simulate(**DEFAULT | CLAIM_TOO_LARGE | {"format": "fp16"}).finding == (
            "The largest number of fp16 is 65,504: 70,000 becomes inf"
        )

    def test_1e_8_is_zero_in_fp16_and_fine_in_bf16(self):
        found = stored(**CLAIM_TOO_SMALL)
        assert found["fp16"].value == 0
        assert found["fp16"].outcome == "underflow"
        assert found["bf16"].value == pytest.approx(1e-8, rel=2**-8)
        assert "1 × 10⁻⁸ becomes 0" in simulate(**DEFAULT | CLAIM_TOO_SMALL | {"format": "fp16"}).finding

    def test_the_last_value_of_fp16_and_the_first_that_is_inf(self):
        assert stored(value=6.5519, exponent=4)["fp16"].value == 65504
        assert stored(value=6.552, exponent=4)["fp16"].value == math.inf

    def test_tf32_stores_no_weight(self):
        number = simulate(**DEFAULT | {"value": 3.14, "format": "tf32"})
        assert number.chosen.value == 3.140625
        assert number.chosen.path == stored(value=3.14)["fp32"].path
        assert number.finding == "tf32 is for products only: 3.14 counts as 3.14062 there; the weight stays fp32"

    def test_a_number_is_read_as_the_decimal_it_is_written_as(self):
        assert simulate(**DEFAULT | {"value": 7.0, "exponent": -8}).asked == 7e-8
        assert simulate(**DEFAULT | {"value": 1.1, "exponent": 23, "negative": True}).asked == -1.1e23

    def test_spacing_towards_zero_is_half_at_a_power_of_two(self):
        assert spacings(simulate(**DEFAULT).chosen) == (2.0**-8, 2.0**-7)
        assert spacings(stored(value=1.5)["bf16"]) == (2.0**-7, 2.0**-7)
        assert spacings(stored(**CLAIM_TOO_SMALL)["fp16"]) == (2.0**-24, 2.0**-24)
        assert spacings(stored(**CLAIM_TOO_LARGE)["fp16"]) == (32.0, 32.0)

    def test_as_many_updates_as_would_bring_it_to_zero(self):
        assert [simulate(**DEFAULT | {"update": part}).steps for part in (0.1, 0.002, 0.001, 1e-8)] == [
            10,
            500,
            1000,
            MOST_UPDATES,
        ]
        assert simulate(**DEFAULT | {"update": 0.0001}).exact == pytest.approx(0.9)

    @pytest.mark.parametrize(("part", "words"), [(0.1, "10%"), (0.005, "0.5%"), (1e-8, "0.000001%")])
    def test_shares_are_written_out(self, part, words):
        assert share(part) == words


class TestAgainstTorch:
    @pytest.mark.parametrize(
        ("name", "dtype"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16"), ("e5m2", "float8_e5m2")]
    )
    def test_what_the_sliders_reach_is_stored_as_torch_stores_it(self, name, dtype):
        import torch

        for exponent in range(-46, 39):
            for hundredths in range(100, 1000, 7):
                asked = float(f"{hundredths / 100}e{exponent}")
                assert FORMATS[name].store(asked) == torch.tensor(asked, dtype=getattr(torch, dtype)).double().item()


class TestOverTheWholeRange:
    @whole_range
    def test_every_format_says_what_it_made_of_the_number(self, values):
        number = simulate(**values)
        for it in number.all:
            if it.outcome == "overflow":
                assert abs(number.asked) > it.format.largest
                assert it.format.infinite
            elif it.outcome == "clamped":
                assert abs(it.value) == it.format.largest < abs(number.asked)
                assert not it.format.infinite
            elif it.outcome == "underflow":
                assert it.value == 0
                assert abs(number.asked) <= it.format.smallest / 2 * 1.000001
            else:
                assert abs(it.value - number.asked) <= spacings(it)[1] / 2 * 1.000001
                assert (it.outcome == "none") == (it.value == pytest.approx(number.asked, rel=2**-50, abs=0))

    @whole_range
    def test_more_mantissa_with_the_same_exponent_is_never_worse(self, values):
        ends = dict(zip(FORMATS, simulate(**values).all, strict=True))
        off = {name: abs(it.value - it.asked) for name, it in ends.items()}
        if math.isfinite(off["fp32"]):
            assert off["fp32"] <= off["tf32"] * 1.000001
            assert off["tf32"] <= off["bf16"] * 1.000001

    @whole_range
    def test_the_number_lies_where_everything_is_stored_as_its_value(self, values):
        it = simulate(**values).chosen
        low, high = _basin(it)
        slack = 1e-6 * abs(it.asked)  # it was rounded to fp32 first
        assert low - slack <= it.asked <= high + slack
        assert low <= it.value <= high

    @whole_range
    def test_updates_go_towards_zero_or_nowhere(self, values):
        it = simulate(**values).chosen
        assert len(it.path) <= simulate(**values).steps + 1
        assert it.stuck == (it.after == it.path[0])
        if not it.stuck:
            assert (it.path[1] - it.path[0]) * it.asked < 0

    @whole_range
    @example(values=DEFAULT | {"value": 9.99, "exponent": -46, "format": "fp16", "negative": True, "update": 1e-8})
    @example(values=DEFAULT | {"value": 9.99, "exponent": 38, "format": "e5m2", "negative": True})
    @example(values=DEFAULT | {"value": 1.18, "exponent": -38, "format": "fp32", "negative": True, "update": 1e-8})
    @example(values=DEFAULT | {"value": 4.48, "exponent": 2, "format": "e4m3"})
    @example(values=DEFAULT | {"value": 5.7344, "exponent": 4, "format": "e5m2", "negative": True})
    def test_the_picture_is_whole_and_its_title_has_room(self, values, check_picture):
        picture = draw(simulate(**values))
        text = picture.text(note=NumberFormats.leaves_out)
        check_picture(text)
        assert len(text) < 60_000
        room = picture.width - 2 * svg.MARGIN
        assert len(svg.wrap(picture.title, room, svg.HEAD, bold=True)) <= picture.head_lines


class TestPicture:
    def test_the_default_state_makes_the_point(self):
        sim = NumberFormats()
        assert "such updates change nothing" in sim.picture.title
        assert "bf16: update −0.001 is 0.26 of the spacing, rounded back to 1" in sim.svg()

    def test_the_fields_are_named_and_every_bit_is_there(self):
        picture = draw(simulate(**DEFAULT))
        words = "".join(picture.body)
        assert all(f">{name}<" in words for name in ("sign", "exponent", "mantissa"))
        cells = sum(kind.exponent + kind.mantissa - 2 for kind in FORMATS.values() if kind.name != "bf16")
        assert words.count(f'stroke="{style.PAPER}" stroke-width="1"/>') == cells  # what sets them apart
        assert len(re.findall('font-weight="bold" text-anchor="middle">[01]<', words)) == 16 + 1  # the value too

    def test_a_wrong_end_is_marked_and_what_the_format_cannot_hold(self):
        words = re.findall(">([✓✗] .*?|starts at .*?)<", NumberFormats().svg())
        assert words == ["✓ 0", "✗ 0.0222", "✗ 1", "✗ 1", "✗ 1"]
        assert re.findall(">([✓✗] .*?|starts at .*?)<", NumberFormats(**CLAIM_TOO_LARGE).svg()) == [
            "✓ 0",
            "starts at inf",
            "✗ 70,144",
            "starts at 448",
            "starts at inf",
        ]
        assert "of −0.01% (exact: 0.9)" in NumberFormats(update=0.0001).svg()

    def test_inf_is_named_on_the_number_line(self):
        assert "stored as −inf" in NumberFormats(**CLAIM_TOO_LARGE, format="fp16", negative=True).svg()

    def test_set_moves_the_picture(self):
        sim = NumberFormats()
        before = sim.svg()
        sim.set(**CLAIM_TOO_LARGE, format="fp16")
        assert sim.result.chosen.value == math.inf
        assert sim.svg() != before

    def test_the_table_lists_every_format_with_its_bits(self):
        table = str(NumberFormats())
        assert "bits 0 01111111 0000000" in table
        assert "spacing of bf16 here  0.00391 towards 0, 0.00781 away from it" in table
        assert all(source == "" for *_, source in NumberFormats().result.rows())

    def test_what_is_left_out_is_said(self):
        assert "NaN" in NumberFormats.leaves_out


def bits(simulator):
    """What each switch in the picture asks for."""
    sets = re.findall(r"data-set='([^']*)'", simulator.picture.inner())
    return [values for values in map(json.loads, sets) if "value" in values]


class TestTouch:
    def test_the_states_lose_an_update_then_overflow_then_underflow(self):
        lost, large, small = (simulate(**DEFAULT | state.values) for state in NumberFormats.states)
        assert lost.chosen.stuck
        assert "such updates change nothing" in lost.finding
        assert (large.chosen.outcome, small.chosen.outcome) == ("overflow", "underflow")
        assert "is 65,504: 70,000 becomes inf" in large.finding
        assert "becomes 0" in small.finding
        others = [dict(zip(FORMATS, one.all, strict=True)) for one in (large, small)]
        assert all(one["bf16"].value not in (0, math.inf) for one in others)

    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("given", [{}, {"value": 3.14, "negative": True}, CLAIM_TOO_LARGE, CLAIM_TOO_SMALL])
    def test_a_click_flips_its_bit_and_no_other(self, name, given):
        before = simulate(**DEFAULT | given | {"format": name}).chosen
        kind = before.format
        for bit in range(1 + kind.exponent + kind.mantissa):
            code = kind.code(before.value) ^ 1 << bit
            values = flipped(before, bit)
            if values is None:
                assert math.isnan(kind.value(code))
            else:
                after = NumberFormats(format=name, **values).result.chosen
                assert kind.code(after.value) == code
                assert after.outcome in ("none", "overflow", "underflow")

    @pytest.mark.parametrize("name", FORMATS)
    def test_every_bit_of_the_chosen_row_is_a_switch_in_its_order(self, name):
        sim = NumberFormats(format=name)
        kind = FORMATS[name]
        expected = [flipped(sim.result.chosen, bit) for bit in reversed(range(1 + kind.exponent + kind.mantissa))]
        assert bits(sim) == [values for values in expected if values]
        assert bits(sim)[0]["negative"]

    def test_a_click_on_a_row_chooses_its_format(self):
        page = Page(NumberFormats())
        sets = map(json.loads, re.findall(r"data-set='([^']*)'", page.view["svg"]))
        assert [values["format"] for values in sets if "format" in values] == list(FORMATS)
        page.ask(format="fp16")
        assert page.view["headline"].startswith("fp16 stores 1 exactly, but")

    @whole_range
    @example(values=DEFAULT)
    @example(values=DEFAULT | {"value": 0.999, "negative": True})
    def test_the_diamond_is_dragged_where_its_number_is_drawn(self, values):
        number = simulate(**values)
        (grip,) = re.findall(r'<g data-drag="value"(.*?)>', draw(number).text())
        start, end, low, high, step = (
            float(re.search(f'data-{name}="([^"]*)"', grip)[1]) for name in ("from", "to", "low", "high", "step")
        )
        middle, apart, _ = _page(number.chosen)
        unit = (-1 if values["negative"] else 1) * 10.0 ** values["exponent"]
        for part in (0, 0.3, 1):
            asked = (low + part * (high - low)) * unit
            drawn = CENTRE + (asked - math.copysign(middle, unit)) / apart * GAP
            near = max(1.0, 1e-11 * abs(middle / apart) * GAP)  # the ends have twelve digits
            assert drawn == pytest.approx(start + part * (end - start), abs=near)
        assert 0 < step * abs(unit) <= apart / 16 * 1.000001
        if abs(number.asked) <= number.chosen.format.largest:
            assert min(low, high) <= abs(number.asked / unit) * 1.000001
            assert abs(number.asked / unit) <= max(low, high) * 1.000001

    @whole_range
    def test_the_number_line_stands_still_on_its_whole_piece(self, values):
        it = simulate(**values).chosen
        middle, apart, towards = _page(it)
        for part in (0.01, 0.5, 0.99):
            asked = middle - towards + part * (towards + PAGE / 2 * apart)
            if 0 < asked <= it.format.largest:
                assert _page(replace(it, asked=asked)) == (middle, apart, towards)

    @pytest.mark.parametrize("exponent", [-46, -8, 0, 38])
    def test_the_power_of_ten_is_dragged_where_it_is_drawn(self, exponent):
        inner = NumberFormats(value=5.0, exponent=exponent).picture.inner()
        start, end, low, high = map(
            float,
            re.search(
                r'data-drag="exponent" data-from="(.*?)" data-to="(.*?)" data-low="(.*?)" data-high="(.*?)"', inner
            ).groups(),
        )
        drawn = start + (exponent - low) / (high - low) * (end - start)
        assert drawn == pytest.approx(RANGE.at(5.0 * 10.0**exponent), abs=0.05)
