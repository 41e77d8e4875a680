import json
import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpulab.sim.base.floats import FP16
from gpulab.sim.loss_scaling.controls import LossScaling
from gpulab.sim.loss_scaling.model import REACH, STEPS, TO_INF, TO_NORMAL, TO_ZERO, Scaler, part, simulate, size
from gpulab.sim.loss_scaling.picture import HIGH, LOW, draw
from virtualgpu.pictures import svg

from . import states

DEFAULT = {
    "scale_power": 16,
    "step": 1,
    "largest_power": 0.5,
    "spread": 5.0,
    "bad_batches": 0,
    "growth_interval": 2000,
}


whole_range = states.whole_range(LossScaling, examples=60)


def scales(run):
    return [run.scale_in(step) for step in range(1, STEPS + 2)]


class RealScaler:
    """torch's own, moved by gradients that are inf or not."""

    def __init__(self, scale, growth_interval):
        import torch

        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scaler.scale(torch.zeros(1))  # it makes its tensors on first use

    @property
    def scale(self):
        return self.scaler.get_scale()

    def step(self, gradient):
        """Whether the optimizer stepped, with the scaled `gradient`."""
        import torch

        self.weight.data.zero_()
        self.weight.grad = torch.tensor([1e-3, gradient])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return bool(self.weight.any())


class TestAgainstGradScaler:
    def test_no_change_of_the_scale_is_told_before_it_has_changed(self):
        early, late = (LossScaling(scale_power=0, step=step).result.finding for step in (1999, 2001))
        assert early.startswith("At the first scale")
        assert late.startswith("The scale rises too slowly")

    @settings(deadline=None, max_examples=40)
    @given(
        infs=st.lists(st.booleans(), max_size=60),
        power=st.integers(0, 24),
        growth_interval=st.integers(1, 6),
    )
    def test_any_pattern_of_infs_step_by_step(self, infs, power, growth_interval):
        real, mine = RealScaler(2.0**power, growth_interval), Scaler(2.0**power, growth_interval)
        for found_inf in infs:
            assert real.step(math.inf if found_inf else 1.0) is not found_inf
            mine.update(found_inf)
            assert mine.scale == real.scale
            assert mine.good == real.scaler._get_growth_tracker()

    @pytest.mark.parametrize(("found_inf", "end"), [(True, 0.0), (False, 2.0**127)])
    def test_as_far_as_it_goes(self, found_inf, end):
        import torch

        mine = Scaler(2.0**16, 1)
        scale, good = torch.tensor(2.0**16), torch.zeros((), dtype=torch.int32)
        for _ in range(180):
            # what `update` calls; `step` would divide by a scale of 0
            torch._amp_update_scale_(scale, good, torch.tensor(float(found_inf)), 2.0, 0.5, 1)
            mine.update(found_inf)
            assert mine.scale == scale.item()
        assert mine.scale == end

    @pytest.mark.parametrize("power", [0, 13, 16, 24])
    @pytest.mark.parametrize("largest_power", [-6.0, 0.5, 3.5])
    def test_a_run_whose_infs_come_from_fp16_itself(self, power, largest_power):
        import torch

        run = simulate(**DEFAULT | {"scale_power": power, "largest_power": largest_power, "growth_interval": 7})
        real = RealScaler(2.0**power, 7)
        for step in range(1, 200):
            assert run.scale_in(step) == real.scale
            largest = torch.tensor(2.0**largest_power * real.scale, dtype=torch.float16).item()
            assert real.step(largest) is (step not in run.skipped)


class TestByHand:
    def test_the_first_step_is_skipped_and_65536_halved(self):
        run = simulate(**DEFAULT)
        assert scales(run)[:3] == [65536, 32768, 32768]
        assert run.skipped == (1, 2002, 4003)  # then 2000 good steps, and the doubled scale is too large again
        assert scales(run)[2000:2003] == [32768, 65536, 32768]
        assert run.scale_in(STEPS + 1) == 32768
        assert run.finding == "65,536 is too large: the largest gradient is inf, so step 1 is skipped"
        end = simulate(**DEFAULT | {"step": STEPS})
        assert end.finding == "The scale falls until it fits: 0.041% of gradients become 0, not 36%"
        assert run.happened == "the largest gradient is inf: skipped, and the scale halved to 32,768"

    def test_the_finding_tells_the_run_and_the_gradients_of_the_step_looked_at(self):
        for values in ({}, {"bad_batches": 200}, {"growth_interval": 3}):
            runs = [simulate(**DEFAULT | values | {"step": step}) for step in (2, 3, 778, STEPS)]
            assert len({run.finding.split(":")[0] for run in runs}) == 1
            for run in runs:
                when, zero = f"by step {run.step}, " if run.step < STEPS else "", part(run.shares(run.scale).zero)
                told = f"{when}{zero} of gradients become 0" if zero != "100%" else "every gradient is 0"
                assert f": {told}" in run.finding

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"scale_power": 0}, "rises too slowly: 23% of gradients become 0"),
            ({"scale_power": 15}, "comes back to where it began"),
            ({"scale_power": 0, "growth_interval": 200}, "rises until it fits: 0.041%"),
            (
                {"scale_power": 10, "spread": 1.0},
                ": 0% of gradients become 0, as without scaling",
            ),
            ({"scale_power": 18}, "falls until it fits: 0.041%"),
            ({"bad_batches": 200}, "Bad batches halve the scale: every gradient is 0"),
        ],
    )
    def test_what_becomes_of_other_runs(self, values, words):
        assert words in simulate(**DEFAULT | {"step": STEPS} | values).finding

    def test_what_happens_in_a_step(self):
        assert simulate(**DEFAULT | {"step": 2}).happened.endswith("the optimizer steps, and the scale stays 32,768")
        grows = simulate(**DEFAULT | {"step": 2001})
        assert grows.happened == "2,000 steps without an inf: the scale doubles to 65,536"
        bad = simulate(**DEFAULT | {"bad_batches": 200, "step": simulate(**DEFAULT | {"bad_batches": 200}).bad[3]})
        assert bad.happened.startswith("a bad batch, inf at any scale: skipped")

    def test_a_scale_that_is_too_small_grows_until_it_fits(self):
        run = simulate(**DEFAULT | {"scale_power": 0, "growth_interval": 100})
        assert scales(run)[:1501:100] == [2.0**power for power in range(16)]
        assert max(scales(run)) == 65536

    def test_an_interval_of_one_skips_every_second_step(self):
        assert len(simulate(**DEFAULT | {"growth_interval": 1}).skipped) == STEPS // 2

    def test_bad_batches_sink_the_scale_and_the_gradients_with_it(self):
        run = simulate(**DEFAULT | {"bad_batches": 200, "step": STEPS})
        assert len(run.bad) == pytest.approx(100, abs=20)
        assert run.scale < 2.0**-80
        assert run.shares(run.scale).zero == 1

    def test_no_scale_fits_gradients_that_are_too_far_apart(self):
        run = simulate(**DEFAULT | {"spread": 10.0})
        assert run.floor(0.01) > run.ceiling
        assert simulate(**DEFAULT).floor(0.01) < run.ceiling

    def test_the_borders_of_fp16(self):
        assert (TO_ZERO, TO_NORMAL) == (-25, -14)
        assert math.isclose(2**TO_INF, 65520)
        for power, ends in ((TO_ZERO, 0.0), (TO_INF, math.inf)):
            assert FP16.nearest(2.0**power * 1.000001) != FP16.nearest(2.0**power * 0.999999)
            assert ends in (FP16.nearest(2.0**power * 1.000001), FP16.nearest(2.0**power * 0.999999))

    @pytest.mark.parametrize(
        ("number", "words"), [(65536.0, "65,536"), (1.0, "1"), (2.0**40, "2⁴⁰"), (0.5, "2⁻¹"), (2.0**-98, "2⁻⁹⁸")]
    )
    def test_scales_in_words(self, number, words):
        assert size(number) == words

    def test_all_is_only_said_of_all(self):
        assert (part(1.0), part(0.9999), part(0.36), part(0.0)) == ("100%", "over 99%", "36%", "0%")


class TestAgainstTorch:
    @pytest.mark.parametrize("scale_power", [0, 8, 15, 16])
    @pytest.mark.parametrize("spread", [2.0, 5.0, 9.0])
    def test_the_shares_are_what_fp16_makes_of_such_gradients(self, scale_power, spread):
        import torch

        run = simulate(**DEFAULT | {"scale_power": scale_power, "spread": spread})
        # a million gradients, evenly through the bell curve
        places = torch.special.ndtri((torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000)
        scaled = (2.0 ** (run.centre + places * spread) * run.scale).half()
        found = run.shares(run.scale)
        assert float((scaled == 0).double().mean()) == pytest.approx(found.zero, abs=3e-6)
        small = (scaled > 0) & (scaled < 2.0**-14)
        # what rounds up to the smallest normal number is subnormal by its size: a sliver
        assert float(small.double().mean()) == pytest.approx(found.subnormal, abs=1e-4)
        assert float(scaled.isinf().double().mean()) == pytest.approx(found.inf, abs=3e-6)


class TestOverTheWholeRange:
    @whole_range
    def test_the_shares_add_up(self, values):
        run = simulate(**values)
        for scale in (1.0, run.scale):
            shares = run.shares(scale)
            parts = (shares.zero, shares.subnormal, shares.normal, shares.inf)
            assert all(0 <= share <= 1 for share in parts)
            assert sum(parts) == pytest.approx(1)

    @whole_range
    def test_a_larger_scale_loses_less_below_and_more_above(self, values):
        run = simulate(**values)
        ladder = [run.shares(2.0**power) for power in range(-20, 40, 3)]
        assert all(a.zero >= b.zero and a.inf <= b.inf for a, b in pairwise(ladder))
        assert (
            run.below(TO_ZERO, 2.0 ** (run.floor(0.01) - 0.1))
            > 0.01
            > run.below(TO_ZERO, 2.0 ** (run.floor(0.01) + 0.1))
        )

    @whole_range
    def test_each_skipped_step_halves_and_nothing_else_does(self, values):
        run = simulate(**values)
        every = scales(run)
        skipped = {step for step, (a, b) in enumerate(pairwise(every), 1) if b == a / 2}
        assert skipped == set(run.skipped)
        assert {b / a for a, b in pairwise(every)} <= {0.5, 1.0, 2.0}
        assert set(run.bad) <= skipped
        for step in run.skipped:
            assert step in run.bad or every[step - 1] * 2.0 ** values["largest_power"] >= 65520

    @whole_range
    def test_it_grows_only_after_the_interval(self, values):
        run = simulate(**values)
        for (before, old), (after, new) in pairwise(run.changes):
            if new > old:
                assert after - before == values["growth_interval"] or before == 1
                assert (after - before) % values["growth_interval"] == 0

    @whole_range
    def test_the_largest_gradient_says_whether_the_step_overflows(self, values):
        run = simulate(**values)
        assert run.overflows == (run.largest == "inf") == (run.shares(run.scale).inf > 0)
        assert run.centre + REACH * run.spread == pytest.approx(run.largest_power)

    @whole_range
    @example(values=DEFAULT | {"bad_batches": 200, "scale_power": 0, "step": STEPS})
    @example(values=DEFAULT | {"growth_interval": 1, "scale_power": 24})
    @example(values=DEFAULT | {"growth_interval": 1, "largest_power": -20.0, "spread": 10.0, "step": STEPS})
    @example(values=DEFAULT | {"largest_power": 10.0, "spread": 1.0, "scale_power": 24})
    def test_the_picture_is_whole_and_its_title_has_room(self, values, check_picture):
        picture = draw(simulate(**values))
        text = picture.text(note=LossScaling.leaves_out)
        check_picture(text)
        assert len(text) < 60_000
        room = picture.width - 2 * svg.MARGIN
        assert len(svg.wrap(picture.title, room, svg.HEAD, bold=True)) <= picture.head_lines


class TestPicture:
    def test_the_default_state_makes_the_point(self):
        sim = LossScaling(step=STEPS)
        assert "0.041% of gradients become 0, not 36%" in sim.picture.title
        assert ">0.041%<" in sim.svg()  # of the step looked at: the same as in the title
        assert "step 5,000: all gradients are finite" in sim.svg()
        assert "without scaling: 36% become 0" in sim.svg()
        sim = LossScaling()
        assert "step 1: the largest gradient is inf: skipped, and the scale halved to 32,768" in sim.svg()
        assert "largest: 92,682, stored as inf" in sim.svg()

    def test_a_step_whose_gradients_are_all_0_is_taken_with_nothing(self):
        bad = LossScaling(**LossScaling.states[2].values)
        assert bad.result.largest == "0"
        assert "all gradients are 0, which is finite: the optimizer steps with nothing" in bad.svg()
        assert "largest: about 2⁻²⁷, stored as 0" in bad.svg()

    def test_skipped_steps_are_marked_on_a_scale_of_single_powers(self):
        text = LossScaling().svg()
        assert all(f">{power}<" in text for power in ("2¹³", "2¹⁴", "2¹⁵", "2¹⁶", "2¹⁷", "2¹⁸"))
        assert "too small" not in text
        none = LossScaling(scale_power=0).svg()
        assert ">none<" in none  # skipped
        assert "too small: over 1% are 0" in none

    def test_every_part_of_fp16_is_named_beside_its_colour(self):
        text = LossScaling().svg()
        assert all(f">{name}<" in text for name in ("become 0", "subnormal", "all bits kept", "inf"))

    def test_set_moves_the_picture(self):
        sim = LossScaling()
        before = sim.svg()
        sim.set(step=2)
        assert sim.result.scale == 32768
        assert sim.svg() != before

    def test_numbers_of_the_toy_are_called_virtual(self):
        sources = {name: source for name, _, source in LossScaling().result.rows()}
        assert sources.pop("step") == ""
        assert set(sources.values()) == {"virtual: toy gradients"}

    def test_it_is_called_a_toy(self):
        assert "toy" in LossScaling.leaves_out


class TestTouched:
    def grips(self, **values):
        """Of what is dragged, by the control that the pointer moves: its marks for that control and its pieces."""
        sim = LossScaling(**values)
        found = {}
        for piece in ET.fromstring(sim.picture.inner()).iter():
            if piece.get("data-drag"):
                keys = ("from", "to", "low", "high")
                marks = zip(*(map(float, piece.get(f"data-{key}").split()) for key in keys), strict=True)
                found[piece.get("data-label")] = dict(zip(piece.get("data-drag").split(), marks, strict=True)), piece
        return sim, found

    def at(self, marks, x):
        start, end, low, high = marks
        return low + (x - start) / (end - start) * (high - low)

    @pytest.mark.parametrize(
        "values", [{}, {"scale_power": 0}, {"scale_power": 24, "spread": 2.0, "largest_power": -9.0}]
    )
    def test_the_scale_is_dragged_where_the_gradients_are(self, values):
        sim, grips = self.grips(step=1, **values)
        marks, piece = grips["First scale, power of 2"]
        (knob,) = [e for e in piece.iter() if e.get("cx")]
        assert self.at(marks["scale_power"], float(knob.get("cx"))) == pytest.approx(
            sim.values["scale_power"], abs=0.01
        )
        unit = 824 / (HIGH - LOW)
        assert float(knob.get("cx")) == pytest.approx(
            18 + unit * (sim.result.centre + sim.values["scale_power"] - LOW), abs=0.1
        )
        assert marks["step"][2:] == (1, 1)  # what is dragged is the scale to begin with

    @pytest.mark.parametrize("step", [1, 2500, STEPS])
    def test_the_step_is_dragged_along_the_run(self, step):
        _, grips = self.grips(step=step)
        marks, piece = grips["Look at step"]
        (cursor,) = [e for e in piece.iter() if e.get("x1")]
        assert self.at(marks["step"], float(cursor.get("x1"))) == pytest.approx(step, abs=1)

    def test_a_skipped_step_is_clicked(self):
        found = ET.fromstring(LossScaling().picture.inner()).iter()
        assert [json.loads(e.get("data-set")) for e in found if e.get("data-set")] == [
            {"step": step} for step in (4003, 2002, 1)
        ]

    def test_a_scale_beyond_the_picture_is_marked(self):
        sim, grips = self.grips(bad_batches=200, step=STEPS)
        assert sim.result.scale < 2.0**-90
        assert not [e for e in grips["First scale, power of 2"][1].iter() if e.get("cx")]
        assert "× 2⁻⁹⁸" in sim.svg()


class TestStates:
    def test_each_makes_its_point(self):
        high, low, bad = (LossScaling(**state.values).result for state in LossScaling.states)
        assert high.finding == LossScaling().result.finding
        assert high.overflows
        assert high.shares(high.scale_in(STEPS + 1)).zero < 0.001 < high.shares(1.0).zero
        assert not low.skipped
        assert low.shares(low.scale).zero > 0.2
        assert bad.shares(bad.scale).zero == bad.shares(bad.scale_in(STEPS + 1)).zero == 1  # as in the headline
        assert bad.finding == "Bad batches halve the scale: by step 1,900 every gradient is 0"
