import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from gpulab import VirtualGPU
from gpulab.sim.base.simulator import Choice, Flag
from gpulab.sim.step_memory.controls import StepMemory
from gpulab.sim.step_memory.model import FRAMES, MIB, Sizes, _run, cut, kept, limits, peak_with, simulate
from gpulab.sim.step_memory.picture import COLUMNS, LEFT, RIGHT, draw
from virtualgpu.pictures import style, svg

from . import hands, states

DEFAULT = {
    "moment": 120, "layers": 24, "segments": 4, "again": False, "interior": 544, "boundary": 32, "parameters": 12,
    "cost": 10, "precision": "fp32", "micro_batches": 1,
}  # fmt: skip


whole_range = states.whole_range(StepMemory)


def sizes(layers, interior, boundary, weights=0, **others):
    given_ = {"gradients": weights, "optimizer": 2 * weights, "copies": 0, "seconds": 1.0, "micro_batches": 1}
    return Sizes(layers, interior, boundary, weights, **(given_ | others))


class Real:
    """A training step in PyTorch whose layers keep what the model's do; `seen` has the bytes in use at each moment."""

    def __init__(self, *, layers, segments, again, interior, boundary, parameters, dtype, micro_batches):
        self.cuts, self.again, self.micro_batches, self.seen = cut(layers, segments), again, micro_batches, []
        elements = boundary // dtype.itemsize
        inside = (interior - boundary) // dtype.itemsize
        self.weights = [nn.Parameter(torch.zeros(parameters, device="cuda", dtype=dtype)) for _ in range(layers)]
        self.begun = [0] * layers
        real = self

        class Source(torch.autograd.Function):  # from the CPU, so that the input's own gradient takes nothing
            @staticmethod
            def forward(ctx, leaf):
                return torch.empty(elements, device="cuda", dtype=dtype)

            @staticmethod
            def backward(ctx, grad):
                return torch.zeros(1)

        class Keeps(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight, layer):
                kept_inside = torch.empty(inside, device="cuda", dtype=dtype)
                ctx.save_for_backward(x, kept_inside)
                ctx.layer = layer
                out = x.clone()
                real.begun[layer] += 1
                real.note("recompute" if real.begun[layer] == 2 else "forward", layer)
                return out

            @staticmethod
            def backward(ctx, grad):
                held = ctx.saved_tensors
                ours = grad.clone()
                weight = real.weights[ctx.layer]
                made = torch.zeros_like(weight) if weight.grad is None else None
                real.note("backward", ctx.layer)
                assert len(held) == 2
                return ours, made, None

        class Loss(torch.autograd.Function):
            @staticmethod
            def forward(ctx, y):
                ctx.save_for_backward(y)
                return torch.zeros(())

            @staticmethod
            def backward(ctx, grad):
                (y,) = ctx.saved_tensors
                ours = torch.empty_like(y)
                real.note("loss", None)
                return ours

        class Block(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return Keeps.apply(x, real.weights[self.layer], self.layer)

        self.source, self.loss = Source, Loss
        self.blocks = nn.Sequential(*map(Block, range(layers)))

    def note(self, kind, layer):
        self.seen.append((kind, layer, torch.cuda.memory_allocated()))

    def run_blocks(self, x):
        if not self.again:
            return checkpoint_sequential(self.blocks, len(self.cuts), x, use_reentrant=False)
        for layers in self.cuts:
            x = checkpoint(self.blocks[layers[0] : layers[-1] + 1], x, use_reentrant=False)
        return x

    def step(self):
        optimizer = torch.optim.Adam(self.weights)
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()  # its state exists from the first step on
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        leaf = torch.zeros(1, requires_grad=True)
        for _ in range(self.micro_batches):
            self.begun = [0] * len(self.begun)
            self.loss.apply(self.run_blocks(self.source.apply(leaf))).backward()
        in_backward = torch.cuda.max_memory_allocated()
        optimizer.step()
        return in_backward, torch.cuda.max_memory_allocated()


class TestAgainstPyTorch:
    """Layers that keep known bytes, trained with torch.utils.checkpoint on the virtual GPU."""

    @pytest.mark.parametrize("segments", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize(("dtype", "micro_batches"), [(torch.float32, 1), (torch.bfloat16, 2)])
    def test_every_moment_to_the_byte(self, segments, again, dtype, micro_batches):
        # sizes that the allocator does not round up
        given_sizes = sizes(7, 20 * MIB, 4 * MIB, 16 * MIB, micro_batches=micro_batches)
        cuts = cut(7, segments)
        moments, _ = _run(given_sizes, cuts, (*[True] * (segments - 1), again), 0)
        with VirtualGPU("A100-80", compute=False):
            real = Real(
                layers=7, segments=segments, again=again, interior=20 * MIB, boundary=4 * MIB,
                parameters=16 * MIB // dtype.itemsize, dtype=dtype, micro_batches=micro_batches,
            )  # fmt: skip
            in_backward, peak = real.step()
        assert real.seen == [(moment.kind, moment.layer, moment.total) for moment in moments[:-1]]
        assert in_backward == max(moment.total for moment in moments[:-1])
        assert peak == max(moment.total for moment in moments)

    @pytest.mark.parametrize("segments", [1, 2, 3, 4, 6])
    def test_a_stack_of_mlps_keeps_what_the_formula_says(self, segments):
        layers, batch, width = 6, 256, 128
        boundary = batch * width * 4
        interior = 9 * boundary  # the input, and the hidden layer before and after GELU, four times as wide
        with VirtualGPU("T4", compute=False):
            blocks = [
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(layers)
            ]
            model = nn.Sequential(*blocks).cuda()
            model(torch.zeros(batch, width, device="cuda"))  # cuBLAS takes its workspace once
            before = torch.cuda.memory_allocated()
            x = torch.zeros(batch, width, device="cuda")
            y = checkpoint_sequential(model, segments, x, use_reentrant=False)
            found = torch.cuda.memory_allocated() - before
        assert y.requires_grad
        assert found == kept(sizes(layers, interior, boundary), segments) + boundary  # and the result

    @pytest.mark.parametrize("again", [False, True])
    def test_16_bit_copies_of_weights_under_autocast(self, again):
        layers, batch, width = 4, 512, 512
        boundary, weights = batch * width * 2, width * width * 4
        model_sizes = sizes(layers, boundary, boundary, weights, copies=weights // 2)
        moments, _ = _run(model_sizes, cut(layers, 2), (True, again), 0)
        with VirtualGPU("T4", compute=False):
            model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).cuda()
            with torch.autocast("cuda", dtype=torch.float16):
                model(torch.zeros(batch, width, device="cuda", dtype=torch.float16))
            before = torch.cuda.memory_allocated()
            x = torch.zeros(batch, width, device="cuda", dtype=torch.float16)
            with torch.autocast("cuda", dtype=torch.float16):
                x = checkpoint(model[:2], x, use_reentrant=False)
                x = checkpoint(model[2:], x, use_reentrant=False) if again else model[2:](x)
                inside = torch.cuda.memory_allocated() - before
            outside = torch.cuda.memory_allocated() - before
        loss = next(moment for moment in moments if moment.kind == "loss")
        assert inside == loss.weights - layers * weights + loss.boundary + loss.interior
        after = next(moment for moment in moments if moment.kind in ("recompute", "backward"))
        copies = after.weights - layers * weights
        if after.kind == "recompute":
            copies -= weights // 2  # made for it
        assert inside - outside == loss.weights - layers * weights - copies


class TestKnownValues:
    def test_16_encoder_layers(self):
        # Recorded: saved for backward none 12.1 MiB, 4 segments 3.2, 16 segments 1.7.
        found = sizes(16, round(12.1 / 16 * MIB), MIB // 16)
        for segments, mib in ((1, 12.1), (4, 3.2), (16, 1.7)):
            assert kept(found, segments) / MIB == pytest.approx(mib, abs=0.05)

    def test_16_blocks_that_keep_about_their_input(self):
        # Recorded: none 4.72 MB, segments 2/4/8/16: 2.75/2.16/2.65/4.47; √16 = 4 is best.
        step = simulate(**DEFAULT | {"layers": 16, "interior": 100, "boundary": 100})
        unit = 4.72 / kept(step.sizes, 1)
        for segments, saved in ((2, 2.75), (4, 2.16), (8, 2.65), (16, 4.47)):
            assert kept(step.sizes, segments) * unit == pytest.approx(saved, rel=0.06)
        assert step.best == 4

    def test_segments_are_cut_as_checkpoint_sequential_cuts_them(self):
        assert [len(layers) for layers in cut(24, 4)] == [6, 6, 6, 6]
        assert [len(layers) for layers in cut(24, 5)] == [4, 4, 4, 4, 8]
        assert [len(layers) for layers in cut(24, 13)] == [1] * 12 + [12]
        assert kept(sizes(24, 10, 1), 13) > kept(sizes(24, 10, 1), 12)

    @pytest.mark.parametrize(
        ("layers", "interior", "boundary", "best"), [(16, 7, 7, 4), (36, 50, 50, 6), (24, 54, 9, 12)]
    )
    def test_where_the_formula_is_whole_it_is_the_best(self, layers, interior, boundary, best):
        step = simulate(**DEFAULT | {"layers": layers, "interior": interior, "boundary": boundary, "segments": 1})
        assert step.formula == pytest.approx(math.sqrt(layers * interior / boundary))
        assert step.formula == pytest.approx(best)
        assert step.best == best

    def test_one_layer_by_hand(self):
        step = simulate(**DEFAULT | {"layers": 1, "segments": 1, "interior": 10, "boundary": 4, "parameters": 1})
        forward, loss, backward, optimizer = step.moments
        state = 3 * 4_000_000
        assert forward.total == state + (4 + 6 + 4) * MIB  # input, inside, result
        assert loss.total == forward.total + 4 * MIB  # its gradient
        assert backward.total == state + 4_000_000 + (4 + 6 + 8) * MIB  # the result has gone
        assert optimizer.total == state + 2 * 4_000_000
        assert [moment.seconds for moment in step.moments] == pytest.approx([0.01, 0.01, 0.02, 0.01])

    def test_whole_recomputation_takes_a_third_more(self):
        assert simulate(**DEFAULT | {"segments": 1, "again": True}).extra == pytest.approx(1 / 3)


class TestThingsToTry:
    def test_the_default_state_makes_the_point(self):
        step = simulate(**DEFAULT)
        assert step.finding == "With 4 segments the peak is 7.32 GiB instead of 16.08 GiB, for 25% more compute"
        assert ">least: 24<" in draw(step).text()

    def test_computing_the_last_segment_again_only_costs(self):
        step = simulate(**DEFAULT | {"again": True})
        assert step.finding == (
            "Computing the last segment again saves nothing: the peak stays 7.32 GiB, for 33% more compute"
        )

    def test_the_whole_model_as_one_segment_saves_nothing(self):
        step = simulate(**DEFAULT | {"segments": 1, "again": True})
        assert step.finding == "One segment of all layers saves nothing: the peak stays 16.08 GiB, for 33% more compute"

    def test_micro_batches_divide_the_activations_only(self):
        one, four = (simulate(**DEFAULT | {"segments": 1, "micro_batches": n}) for n in (1, 4))
        assert four.kept == one.kept / 4
        assert four.moments[-1].gradients == one.moments[-1].gradients
        assert four.seconds == pytest.approx(one.seconds)

    def test_where_weights_rule_checkpointing_saves_nothing(self):
        step = simulate(**DEFAULT | {"parameters": 200, "interior": 40, "boundary": 8})
        assert "the peak stays" in step.finding
        assert step.peak.kind == "optimizer"


class TestStates:
    def test_each_makes_its_point(self):
        four, everything, thirteen = (StepMemory(**state.values).result for state in StepMemory.states)
        assert everything.peak.total == everything.plain_peak
        assert everything.finding.startswith("Nothing is computed again: the peak is 16.08 GiB")
        assert four.peak.total < 0.5 * four.plain_peak
        assert four.finding.startswith("With 4 segments the peak is 7.32 GiB instead of 16.08 GiB")
        assert thirteen.kept > kept(thirteen.sizes, 12)
        assert thirteen.peak.total > four.peak.total
        assert thirteen.finding == ("13 segments peak at 10.08 GiB, 12 at 5.37 GiB: segment 13 keeps 12 layers")
        assert thirteen.peak.total / 2**30 == pytest.approx(10.08, abs=0.005)
        assert simulate(**DEFAULT | {"segments": 12}).peak.total / 2**30 == pytest.approx(5.37, abs=0.005)
        assert StepMemory.states[0].values.items() <= DEFAULT.items()  # it opens with it

    @pytest.mark.parametrize(("layers", "jump"), [(24, 13), (16, 9), (7, 4)])
    def test_it_says_where_the_last_segment_grows_most(self, layers, jump):
        last = [len(cut(layers, number)[-1]) for number in range(1, layers + 1)]
        growth = [two - one for one, two in itertools.pairwise(last)]
        assert growth[jump - 2] == max(growth) > 0
        words = f"segment {jump} keeps {last[jump - 1]} layers"
        assert words in simulate(**DEFAULT | {"layers": layers, "segments": jump}).finding
        assert words not in simulate(**DEFAULT | {"layers": layers, "segments": 1}).finding


class TestTouched:
    @pytest.mark.parametrize("layers", [2, 24, 48])
    def test_a_bar_is_the_number_of_segments(self, layers):
        for segments in (1, layers // 2, layers):
            picture = StepMemory(layers=layers, segments=segments).picture
            grip = hands.grip(picture, "segments")
            assert (grip.low, grip.high) == (1, layers)
            ((x, wide),) = (
                (float(piece.get("x")), float(piece.get("width")))
                for piece in ET.fromstring(picture.inner()).iter("{http://www.w3.org/2000/svg}rect")
                if piece.get("fill") == piece.get("stroke") == style.INK
            )
            assert grip.at(segments) == pytest.approx(x + wide / 2, abs=0.2)

    def test_one_layer_has_no_other_number(self):
        with pytest.raises(ValueError, match="not enough values"):
            hands.grip(StepMemory(layers=1).picture, "segments")

    def test_the_playhead_is_where_the_curve_is_touched(self):
        picture = StepMemory(moment=60).picture
        grip = hands.grip(picture, "moment")
        assert (grip.low, grip.high, grip.start, grip.end) == (0, FRAMES, LEFT, RIGHT)
        assert f'x1="{svg.num(grip.at(60))}"' in "".join(picture.body)


class TestOverTheWholeRange:
    @whole_range
    def test_what_is_kept_is_the_formula(self, values):
        step = simulate(**values)
        most = max(m.interior + m.boundary + m.temporary for m in step.moments[:-1])
        assert most == step.kept + 2 * step.sizes.boundary
        assert step.best == min(range(1, values["layers"] + 1), key=lambda n: (kept(step.sizes, n), n))

    @whole_range
    def test_moments_follow_one_another_and_nothing_is_negative(self, values):
        step = simulate(**values)
        at = 0.0
        for moment in step.moments:
            assert moment.start == at
            assert moment.seconds > 0
            assert min(moment[4:]) >= 0
            at = moment.start + moment.seconds
        per_batch = 3 * values["layers"] + step.recomputed + 1
        assert step.seconds == pytest.approx(values["micro_batches"] * (per_batch + 1) * step.sizes.seconds)
        kinds = [moment.kind for moment in step.moments]
        for kind, each in (("forward", values["layers"]), ("recompute", step.recomputed), ("loss", 1)):
            assert kinds.count(kind) == each * values["micro_batches"]

    @whole_range
    def test_the_moment_looked_at_is_that_of_the_frame(self, values):
        step = simulate(**values)
        until = step.seconds * values["moment"] / FRAMES
        assert step.moment.start <= until * (1 + 1e-9) + 1e-12
        assert until <= (step.moment.start + step.moment.seconds) * (1 + 1e-9)
        inside = step.sizes.interior - step.sizes.boundary
        assert sum(layer.interior for layer in step.state) * inside == step.moment.interior
        assert sum(layer.input for layer in step.state) * step.sizes.boundary == step.moment.boundary

    @whole_range
    def test_checkpointing_never_raises_the_peak(self, values):
        step = simulate(**values)
        assert step.peak.total <= step.plain_peak
        if values["precision"] != "amp":  # whose copies of weights are at their most at the end of the forward pass
            assert step.peak.total == step.once_peak

    @whole_range
    def test_gradients_grow_once_and_stay(self, values):
        gradients = [moment.gradients for moment in simulate(**values).moments]
        assert gradients == sorted(gradients)
        assert gradients[-1] == values["layers"] * simulate(**values).sizes.gradients


class TestPicture:
    def test_every_end_of_every_control(self, check_picture):
        views = set()
        for control in StepMemory.controls:
            if isinstance(control, Choice):
                ends = list(control.options)
            else:
                ends = [False, True] if isinstance(control, Flag) else [control.low, control.high]
            for value in ends:
                sim = StepMemory()
                present = sim._within(sim._asked | {control.name: value})
                text = draw(simulate(**present)).text(note=StepMemory.leaves_out)
                check_picture(text)
                views.add(ET.fromstring(text).get("viewBox"))
        assert len(views) == 1

    def test_a_long_step_is_drawn_by_its_fullest_moments(self):
        step = simulate(**DEFAULT | {"layers": 48, "segments": 48, "micro_batches": 8})
        assert len(step.moments) > COLUMNS
        svg_text = StepMemory(layers=48, segments=48, micro_batches=8).svg()
        assert f"peak {step.peak.total / 2**30:.2f} GiB" in svg_text

    @pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
    @pytest.mark.parametrize("precision", ["fp32", "amp"])
    def test_the_bars_have_the_peak_of_a_whole_step(self, micro_batches, precision):
        for segments in (1, 4, 13, 24):
            step = StepMemory(segments=segments, micro_batches=micro_batches, precision=precision).result
            assert peak_with(step.sizes, segments) == step.peak.total

    def test_the_time_told_is_where_the_moment_stands(self):
        step = StepMemory(moment=120).result
        assert f">{step.seconds * 500:.0f} ms: {step.moment.words}, " in StepMemory(moment=120).svg()

    def test_playing_moves_the_picture(self):
        frames = {StepMemory(moment=moment).svg() for moment in range(0, FRAMES + 1, 10)}
        assert len(frames) == 25

    def test_the_layers_at_a_moment_have_four_looks(self):
        text = StepMemory().svg()
        assert all(f">{name}<" in text for name in ("input kept", "inside kept", "dropped", "finished"))
        assert {"1–6: dropped", "13–18: computed again", "19–24: done"} <= set(re.findall(">([^<]+)<", text))
        assert "7–12: to drop" in StepMemory(moment=0).svg()
        assert "done<" not in StepMemory(moment=60).svg()

    def test_segments_too_narrow_for_words_are_named_as_one(self):
        words = re.findall(">([^<]+)<", StepMemory(segments=13).svg())
        assert {"segments 1 … 12: 1 layer each", "segment 13: layers 13–24: kept"} <= set(words)

    def test_it_says_why_the_last_segment_is_kept(self):
        assert "backward begins with it" in dict(row[:2] for row in StepMemory().result.rows())["last segment"]


class TestBadValues:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            ({"segments": 25}, ValueError, "segments must be from 1 to 24: there are 24 layers"),
            (
                {"interior": 10, "boundary": 11},
                ValueError,
                "boundary must be from 1 to 10 MiB: a layer's input is part",
            ),
        ],
    )
    def test_are_named_with_the_range(self, values, error, message):
        with pytest.raises(error) as caught:
            StepMemory(**values)
        assert message in str(caught.value)

    def test_fewer_layers_take_the_segments_along(self):
        sim = StepMemory(segments=24)
        sim.set(layers=10)
        assert sim.values["segments"] == 10
        sim.set(layers=24)
        assert sim.values["segments"] == 24

    def test_limits(self):
        assert limits({"layers": 5, "interior": 7})["segments"].high == 5
        assert limits({"layers": 5, "interior": 7})["boundary"].high == 7
