import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from fractions import Fraction
from typing import NamedTuple

import pytest

import gpulab
from gpulab.sim.accumulation.controls import Accumulation
from gpulab.sim.accumulation.model import MOST_STEPS, _toy, simulate, training_bytes
from gpulab.sim.accumulation.picture import LEFT, MEMORY, RIGHT, ROWS_TOP, STRIP, STRIP_MOST, draw
from virtualgpu.pictures import style, svg

from . import hands, states

whole_range = states.whole_range(Accumulation)


DEFAULT = {"samples": 100, "batch": 8, "steps": 4, "divide": "steps", "last": "step", "tokens": False}


class TestByHand:
    def test_a_hundred_samples_in_eights_by_four(self):
        epoch = simulate(**DEFAULT)
        assert [window.samples for window in epoch.windows] == [(8, 8, 8, 8)] * 3 + [(4,)]
        assert [window.weights for window in epoch.windows] == [(0.25,) * 4] * 3 + [(0.25,)]
        assert [window.error for window in epoch.windows] == [0, 0, 0, 0.75]
        assert epoch.effective_batch == 32
        assert epoch.finding == "The last update is 1/4 of what it should be: 1 micro-batch, divided by 4"

    def test_dividing_by_what_the_window_holds_mends_it(self):
        epoch = simulate(**DEFAULT | {"divide": "window"})
        assert [window.error for window in epoch.windows] == [0, 0, 0, 0]
        assert epoch.finding.endswith("is the exact mean gradient of its window")

    def test_ten_batches_by_eight_without_a_last_step_make_one_update(self):
        epoch = simulate(**DEFAULT | {"samples": 80, "steps": 8, "last": "drop"})
        assert len(epoch.windows) == 1
        assert epoch.dropped.samples == (8, 8)
        assert epoch.dropped.weights == (0.125, 0.125)
        assert epoch.dropped_samples == 16
        assert "The last 16 samples are not used in this epoch" in epoch.finding

    def test_a_short_last_micro_batch_counts_too_much_in_a_mean_of_means(self):
        epoch = simulate(**DEFAULT | {"samples": 108, "divide": "window"})
        last = epoch.windows[-1]
        assert last.samples == (8, 4)
        eight, four = ([sum(g[d] for _, g in _toy(False)[a:b]) for d in range(4)] for a, b in ((96, 104), (104, 108)))
        true = [(x + y) / 12 for x, y in zip(eight, four, strict=True)]
        mean_of_means = [(x / 8 + y / 4) / 2 for x, y in zip(eight, four, strict=True)]
        assert last.error == pytest.approx(math.dist(mean_of_means, true) / math.hypot(*true))
        assert last.error > 0.01
        assert epoch.finding.endswith("its short micro-batch counts as a full one")

    def test_a_last_window_that_is_short_and_ends_with_a_short_micro_batch_has_both_problems(self):
        epoch = simulate(**DEFAULT | {"samples": 108})
        assert epoch.windows[-1].scale == 0.5
        assert epoch.windows[-1].uneven == simulate(**DEFAULT | {"samples": 108, "divide": "window"}).windows[-1].error
        assert epoch.finding == (
            "The last update is 2/4 of what it should be; its short micro-batch counts as a full one"
        )

    def test_one_sample_left_over(self):
        epoch = simulate(**DEFAULT | {"samples": 97, "last": "drop"})
        assert "The last sample is not used in this epoch" in epoch.finding

    def test_tokens_make_every_full_window_of_a_mean_of_means_wrong(self):
        epoch = simulate(**DEFAULT | {"tokens": True, "divide": "window"})
        assert all(window.error > 0 for window in epoch.windows[:3])
        assert "of the weight is misplaced" in epoch.finding

    def test_the_sum_over_the_tokens_of_the_window_is_exact(self):
        epoch = simulate(**DEFAULT | {"tokens": True, "divide": "items"})
        assert epoch.worst_error == 0

    def test_one_micro_batch_is_one_update(self):
        epoch = simulate(16, 64, 1, "steps", "step", False)
        assert epoch.finding.endswith("is the exact mean gradient of its window")
        assert epoch.micro_batch_bytes == epoch.whole_batch_bytes == training_bytes(16)


class TestMemory:
    # Saved-tensor hooks, batch 2 and 4; the constants of the line come from 1 and 2.
    @pytest.mark.parametrize(("images", "kept"), [(1, 86_338_476), (2, 172_251_988), (4, 344_079_012)])
    def test_the_line_goes_through_the_recorded_points(self, images, kept):
        assert training_bytes(images) == kept + 16 * 25_557_032

    def test_micro_batch_against_effective_batch(self):
        epoch = simulate(**DEFAULT)
        assert epoch.micro_batch_bytes == training_bytes(8)
        assert epoch.whole_batch_bytes == training_bytes(32)
        table = str(epoch)
        assert "1.02 GiB" in table
        assert "2.94 GiB" in table

    @pytest.mark.slow
    def test_the_recording_is_what_torch_keeps_today(self):
        import torch
        import torchvision
        from torch.autograd.graph import saved_tensors_hooks

        model = torchvision.models.resnet50().train()
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept, alive = {}, []

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor)  # so that no address is used twice
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 224, 224)), torch.tensor([0, 1]))
        state = 16 * sum(parameter.numel() for parameter in model.parameters())
        assert state + sum(kept.values()) == pytest.approx(training_bytes(2), rel=0.01)


class TestAgainstTorch:
    """The loop itself, in float64: a parameter whose loss on sample i has the toy's gradient of sample i."""

    @pytest.mark.parametrize("divide", ["steps", "window", "items"])
    @pytest.mark.parametrize("tokens", [False, True])
    def test_each_update_has_the_error_that_a_real_loop_has(self, divide, tokens):
        import torch

        samples, batch, steps = 93, 6, 5
        number = torch.tensor([n for n, _ in _toy(tokens)[:samples]], dtype=torch.float64)
        summed = torch.tensor([g for _, g in _toy(tokens)[:samples]], dtype=torch.float64)
        weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        micros = torch.arange(samples).split(batch)
        found = []
        for start in range(0, len(micros), steps):
            window = micros[start : start + steps]
            together = torch.cat(window)
            for micro in window:
                loss = (summed[micro] @ weight).sum()
                if divide == "items":
                    loss = loss / number[together].sum()
                else:
                    loss = loss / number[micro].sum() / (steps if divide == "steps" else len(window))
                loss.backward()
            true = summed[together].sum(0) / number[together].sum()
            found.append(float((weight.grad - true).norm() / true.norm()))
            weight.grad = None
        epoch = simulate(samples, batch, steps, divide, "step", tokens)
        assert [window.error for window in epoch.windows] == pytest.approx(found, abs=1e-11)


class TestOverTheWholeRange:
    @whole_range
    def test_every_sample_is_used_once_or_dropped(self, values):
        epoch = simulate(**values)
        used = sum(sum(window.samples) for window in epoch.windows)
        assert used + epoch.dropped_samples == values["samples"]
        windows = [*epoch.windows, *([epoch.dropped] if epoch.dropped else [])]
        assert sum(len(window.samples) for window in windows) == epoch.micro_batches
        assert epoch.micro_batches == math.ceil(values["samples"] / values["batch"])

    @whole_range
    def test_the_last_window_decides_between_floor_and_ceiling(self, values):
        epoch = simulate(**values)
        rounded = math.floor if values["last"] == "drop" else math.ceil
        assert len(epoch.windows) == rounded(epoch.micro_batches / values["steps"])
        assert (epoch.dropped is not None) == (values["last"] == "drop" and epoch.micro_batches % values["steps"] != 0)

    @whole_range
    def test_errors_are_those_of_exact_arithmetic(self, values):
        epoch = simulate(**values)
        toy = iter(_toy(values["tokens"])[: values["samples"]])
        for window in epoch.windows:
            micros = [[next(toy) for _ in range(size)] for size in window.samples]
            items = [sum(n for n, _ in micro) for micro in micros]
            assert list(window.items) == items
            off, true = [], []
            for d in range(4):
                sums = [sum(g[d] for _, g in micro) for micro in micros]
                part = {"steps": values["steps"], "window": len(micros), "items": 1}[values["divide"]]
                over = [sum(items) if values["divide"] == "items" else n for n in items]
                grad = sum(Fraction(s, n * part) for s, n in zip(sums, over, strict=True))
                true.append(Fraction(sum(sums), sum(items)))
                off.append(grad - true[-1])
            exact = math.sqrt(sum(x * x for x in off) / sum(x * x for x in true))
            assert window.error == pytest.approx(exact, abs=1e-11)
            grads = [g + t for g, t in zip(off, true, strict=True)]
            scale = Fraction(len(micros), part) if values["divide"] == "steps" else 1
            exact_uneven = math.sqrt(
                sum((g / scale - t) ** 2 for g, t in zip(grads, true, strict=True)) / sum(x * x for x in true)
            )
            assert window.uneven == pytest.approx(exact_uneven, abs=1e-11)
            assert (window.error == 0) == (exact < 5e-13)

    @whole_range
    def test_errors_are_zero_where_they_must_be(self, values):
        epoch = simulate(**values)
        for window in epoch.windows:
            assert window.error >= 0
            equal = not values["tokens"] and len(set(window.samples)) == 1
            short = values["divide"] == "steps" and len(window.samples) < values["steps"]
            if values["divide"] == "items" or (equal and not short):
                assert window.error == 0
            elif equal:
                assert window.error == pytest.approx(1 - len(window.samples) / values["steps"])

    @whole_range
    def test_the_weights_add_up_to_the_scale_of_the_update(self, values):
        epoch = simulate(**values)
        for window in epoch.windows:
            assert min(window.weights) > 0
            assert sum(window.shares) == pytest.approx(1)
            short = values["divide"] == "steps" and len(window.samples) < values["steps"]
            assert window.scale == pytest.approx(len(window.samples) / values["steps"] if short else 1)
            assert window.scale <= 1

    @whole_range
    def test_memory_is_that_of_the_largest_piece(self, values):
        epoch = simulate(**values)
        assert epoch.micro_batch_bytes == training_bytes(min(values["batch"], values["samples"]))
        assert epoch.whole_batch_bytes == training_bytes(min(values["batch"] * values["steps"], values["samples"]))


class TestPicture:
    def test_many_windows_are_visibly_left_out(self):
        words = [
            text.text for text in ET.fromstring(gpulab.sim.accumulation(samples=512, steps=1).svg()).iter() if text.text
        ]
        assert "60 more windows" in words
        assert [word for word in words if word.startswith("window")] == [
            "window 1",
            "window 2",
            "window 63",
            "window 64",
        ]

    def test_the_incomplete_window_differs_by_more_than_colour(self):
        whole = draw(simulate(**DEFAULT | {"samples": 96}))
        broken = draw(simulate(**DEFAULT))
        assert "stroke-dasharray" in "".join(broken.body)
        assert "stroke-dasharray" not in "".join(whole.body)

    def test_dropped_samples_are_named(self):
        text = gpulab.sim.accumulation(last="drop").svg()
        assert "left over" in text
        assert "no step: 4 samples unused." in text

    def test_memory_of_images_is_not_shown_beside_tokens(self):
        assert "ResNet-50" in gpulab.sim.accumulation().svg()
        assert "memory of ResNet-50" not in "".join(gpulab.sim.accumulation(tokens=True).picture.body)

    def test_default_state_makes_the_point(self):
        sim = gpulab.sim.accumulation()
        assert "1/4 of what it should be" in sim.picture.title
        assert "75% is missing" in sim.svg()

    @pytest.mark.parametrize(
        ("values", "whys"),
        [
            ({}, ["4 × 1/4 = 1, exact"] * 3 + ["1 × 1/4 = 0.25"]),
            ({"divide": "window"}, ["4 × 1/4 = 1"] * 3 + ["1 × 1/1 = 1"]),
            ({"divide": "window", "tokens": True}, ["each counts 1/4"] * 3 + ["1 × 1/1 = 1, exact"]),
            ({"divide": "items"}, ["sum ÷ 32 samples"] * 3 + ["sum ÷ 4 samples"]),
        ],
    )
    def test_each_window_says_what_its_weights_add_up_to(self, values, whys):
        words = [text.text for text in ET.fromstring(gpulab.sim.accumulation(**values).svg()).iter() if text.text]
        assert [word for word in words if re.match(r"\d+ × 1/|each counts|sum ÷ \d", word)] == whys


class TestStates:
    def test_each_makes_its_point(self):
        short, unequal, exact = (Accumulation(**state.values).result for state in Accumulation.states)
        assert [window.error for window in short.windows] == [0, 0, 0, 0.75]
        assert short.windows[-1].uneven == 0
        assert short.finding == "The last update is 1/4 of what it should be: 1 micro-batch, divided by 4"
        assert all(0.01 < window.error == window.uneven < 0.1 for window in unequal.windows[:3])
        assert unequal.finding == "Every micro-batch counts the same: up to 14% of the weight is misplaced"
        assert exact.worst_error == 0
        assert exact.finding == "Each update is the exact mean gradient of its window"
        assert Accumulation.states[0].values.items() <= DEFAULT.items()  # it opens with it


class TestTouched:
    @pytest.mark.parametrize(
        ("samples", "batch", "steps"), [(100, 8, 4), (100, 8, 13), (16, 8, 1), (512, 1, 32), (64, 1, 7)]
    )
    def test_the_end_of_the_first_window_is_dragged(self, samples, batch, steps):
        picture = Accumulation(samples=samples, batch=batch, steps=steps).picture
        grip = hands.grip(picture, "steps")
        micro_batches = math.ceil(samples / batch)
        assert (grip.low, grip.high) == (1, min(MOST_STEPS, micro_batches))
        wide = (RIGHT - LEFT) / min(math.ceil(samples / batch), STRIP_MOST)
        assert grip.at(steps) == pytest.approx(LEFT + steps * wide, abs=0.01)
        assert f'<circle cx="{svg.num(grip.at(steps))}"' in "".join(picture.body)

    @pytest.mark.parametrize("steps", [25, 30])
    def test_the_strip_ends_where_it_has_room_in_the_middle_of_a_window_too(self, steps):
        picture = Accumulation(samples=512, batch=1, steps=steps).picture
        assert sum(box.y == STRIP for box in rectangles(picture)) == STRIP_MOST

    def test_a_single_micro_batch_has_no_other_window(self):
        with pytest.raises(ValueError, match="not enough values"):
            hands.grip(Accumulation(samples=16, batch=64, steps=1).picture, "steps")

    def test_a_window_tells_what_is_in_it(self):
        names = hands.names(Accumulation().picture)
        assert names[0] == "4 micro-batches of 8, 8, 8, 8: 32 samples; .grad is 0% off"
        assert names[3] == "1 micro-batch of 4: 4 samples; .grad is 75% off"
        assert hands.names(Accumulation(last="drop").picture)[3].endswith("no step follows")
        assert "32 samples with 2,408 tokens" in hands.names(Accumulation(tokens=True).picture)[0]


class TestWeights:
    @pytest.mark.parametrize("values", [state.values for state in Accumulation.states])
    def test_a_box_is_as_wide_as_its_share_and_what_is_filled_and_hatched_of_it_is_the_weight(self, values):
        sim = Accumulation(**values)
        boxes = [
            box
            for box in rectangles(sim.picture)
            if ROWS_TOP - 0.1 < box.y < (452 if sim.result.tokens else MEMORY - 15)
        ]
        for window in sim.result.windows:
            for share, weight in zip(window.shares, window.weights, strict=True):
                fills = ["none"] * (weight < share - 1e-9) + [style.SKY] + [style.ORANGE] * (weight > share + 1e-9)
                here, boxes = boxes[: len(fills)], boxes[len(fills) :]
                assert [box.fill for box in here] == fills
                assert [box.width / (RIGHT - LEFT) for box in here] == pytest.approx([share] * len(here), abs=2e-4)
                area = sum(box.width * box.height for box in here if box.fill != "none")
                high = here[0].height  # of a weight which is right
                assert area / high / (RIGHT - LEFT) == pytest.approx(weight, abs=3e-3)
        assert not boxes

    def test_a_weight_that_has_no_room_points_beyond_its_row(self):
        assert "<polygon" in Accumulation(samples=65, batch=64, steps=2, divide="window").svg()
        assert "<polygon" not in Accumulation().svg()

    def test_misplaced_is_what_some_have_too_much(self):
        window = Accumulation(tokens=True, divide="window").result.windows[1]
        much = sum(max(0, weight - share) for share, weight in zip(window.shares, window.weights, strict=True))
        assert window.misplaced == pytest.approx(much) == pytest.approx(0.136, abs=1e-3)


class Box(NamedTuple):
    y: float
    width: float
    height: float
    fill: str


def rectangles(picture):
    still = dataclasses.replace(picture, body=tuple(piece for piece in picture.body if not isinstance(piece, svg.Live)))
    found = ET.fromstring(still.inner()).iter("{http://www.w3.org/2000/svg}rect")
    return [Box(*(float(box.get(name)) for name in ("y", "width", "height")), box.get("fill")) for box in found]


class TestBadValues:
    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            (
                {"steps": 14},
                ValueError,
                "accumulation(steps=14): steps must be from 1 to 13: 100 samples in pieces of 8 make 13 micro-batches",
            ),
            ({"steps": 2, "batch": 64, "samples": 60}, ValueError, "60 samples in pieces of 64 make 1 micro-batch"),
        ],
    )
    def test_are_named_with_the_range(self, values, error, message):
        with pytest.raises(error) as caught:
            gpulab.sim.accumulation(**values)
        assert message in str(caught.value)

    def test_a_larger_micro_batch_alone_takes_the_steps_along(self):
        sim = gpulab.sim.accumulation()
        sim.set(batch=64)
        assert sim.values["steps"] == 2
        sim.set(batch=8)
        assert sim.values["steps"] == 4
