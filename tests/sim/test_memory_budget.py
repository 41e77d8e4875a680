import dataclasses
import itertools
import json
import math
import xml.etree.ElementTree as ET

import plan_presets
import pytest
import torch

from gpulab.sim.memory_budget import needs as memory_needs
from gpulab.sim.memory_budget import picture
from gpulab.sim.memory_budget.controls import MemoryBudget
from gpulab.sim.memory_budget.job import CONTEXT_BYTES, MOST, PARALLEL
from gpulab.sim.memory_budget.model import simulate
from gpulab.sim.memory_budget.needs import (
    CHECKPOINTING,
    OPTIMIZERS,
    Formula,
    gpt_parameters,
    layer_activations,
    matrices,
    plans,
)
from gpulab.sim.memory_budget.picture import axis
from virtualgpu.gpus.specs import SHOWN
from virtualgpu.planning import plan
from virtualgpu.scope.device import CONTEXT_BYTES as VIRTUAL_CONTEXT_BYTES

from . import states

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DEFAULT = {control.name: control.value for control in MemoryBudget.controls}
PLANNED = ("resnet50", "vit_b_16", "gpt2", "llama_7b")
GIB = 2**30


def budget(**values):
    return MemoryBudget(**values).result


whole_range = states.whole_range(MemoryBudget)


class TestTheZeroPaper:
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 billion parameters on 64 GPUs."""

    @pytest.mark.parametrize(
        ("parallel", "published"),
        [("ddp", "120.0 GB"), ("zero1", "31.4 GB"), ("zero2", "16.6 GB"), ("zero3", "1.9 GB")],
    )
    def test_its_table_to_the_digit(self, parallel, published):
        found = MemoryBudget(model="gpt_7_5b", ranks=64, parallel=parallel)
        rows = {name: value for name, value, _ in found.result.rows()}
        assert rows["model states of a rank (ZeRO paper's count)"].startswith(published)
        assert published in found.svg()

    @pytest.mark.parametrize(
        ("parallel", "volume"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3), ("fsdp", 3)]
    )
    def test_what_is_sent(self, parallel, volume):
        job = budget(model="gpt_7_5b", ranks=64, parallel=parallel).job
        assert job.traffic == volume * 7_500_000_000 * 2 * 63 // 64
        assert job.volume == f"{volume} Ψ × 63/64"

    def test_one_rank_sends_nothing_and_shards_nothing(self):
        found = [budget(model="gpt2", parallel=parallel) for parallel in PARALLEL]
        assert {result.job.traffic for result in found} == {0}
        assert len({result.moments for result in found}) == 1


class TestFormulas:
    def test_korthikanti_by_hand(self):
        # s = 2048, b = 1, h = 4096, a = 32: 34 s b h and 5 a s² b
        assert layer_activations(2048, 1, 4096) == 34 * 2048 * 4096
        assert matrices(1, 32, 2048, 1) == 5 * 32 * 2048**2
        whole = layer_activations(2048, 1, 4096) + matrices(1, 32, 2048, 1)
        assert whole == 2048 * 4096 * (34 + 5 * 32 * 2048 / 4096)

    def test_checkpointing_leaves_what_the_paper_says(self):
        kept = {name: budget(model="gpt_7_5b", checkpointing=name).moments[0].activations for name in CHECKPOINTING}
        token = 2048 * 4096
        assert kept["none"] == kept["selective"] == 36 * 34 * token
        assert kept["matrices"] == 36 * (34 + 5 * 32 * 2048 // 4096) * token
        layer, logits = 34 * token, 8 * 2048 * 50257
        assert layer < logits
        assert kept["full"] == 36 * 2 * token

    def test_a_gpt_of_175_billion_has_as_many(self):
        assert gpt_parameters(96, 12288) == pytest.approx(174.6e9, rel=0.01)

    @pytest.mark.parametrize(
        ("precision", "weights", "gradients", "optimizer"),
        [("fp32", 4, 4, 8), ("amp", 4, 4, 8), ("bf16", 2, 2, 4), ("master", 2, 2, 12)],
    )
    def test_bytes_of_a_parameter_with_adam(self, precision, weights, gradients, optimizer):
        found = Formula("", 1, 256, 2, 1000).states("adam", precision)
        assert found == (1000 * weights, 1000 * gradients, 1000 * optimizer, 0)

    def test_bytes_of_a_parameter_with_the_others(self):
        found = {name: Formula("", 1, 256, 2, 2048 * 100).states(name, "fp32").optimizer for name in OPTIMIZERS}
        assert found["sgd"] == 0
        assert found["momentum"] == 4 * 2048 * 100
        assert found["adam8"] == 2 * (2048 + 4) * 100
        assert found["adafactor"] < found["adam8"]


@pytest.mark.skipif(TORCH < (2, 15), reason="made with torch 2.15; an older one keeps cuBLAS's workspaces")
class TestPlans:
    """The presets' numbers are those of gpulab.plan."""

    @pytest.mark.parametrize(
        ("name", "precision", "full", "batch"), [("resnet50", "amp", False, 16), ("gpt2", "fp32", True, 1)]
    )
    def test_one_is_the_same_to_the_byte_when_it_is_made_again(self, name, precision, full, batch):
        length = plan_presets.PRESETS[name].length
        kind = precision + (" full" if full else "")
        again = plan_presets.points(name, precision, full, batch, length)
        stored = {
            moment: {key: value for key, value in point.items() if key not in ("batch", "length")}
            for moment in ("passes", "ends")
            for point in plans()["presets"][name][moment][kind]
            if (point["batch"], point["length"]) == (batch, length)
        }
        assert stored == again

    @pytest.mark.parametrize(
        ("name", "precision", "full", "batch"),
        [
            ("resnet50", "amp", False, 16),
            ("resnet50", "fp32", True, 64),
            ("gpt2", "fp32", True, 1),
            ("gpt2", "amp", False, 8),
        ],
    )
    def test_the_peak_is_the_plan_s_to_the_byte(self, name, precision, full, batch):
        again = plan_presets.passes(name, precision, full, batch, plan_presets.PRESETS[name].length)
        checkpointing = "full" if full else "none"
        size = {} if name == "resnet50" else {"sequence": 1024}
        found = budget(
            model=name, precision=precision, checkpointing=checkpointing, batch=batch, optimizer="sgd", **size
        )
        peak = found.peak
        assert peak.total - CONTEXT_BYTES == again.peak_allocated
        assert (peak.weights, peak.gradients) == (again.weights, again.gradients)
        assert peak.activations + peak.logits + peak.temporaries == (again.activations + again.data + again.temporaries)
        assert peak.workspaces == again.workspaces

    @pytest.mark.parametrize(("precision", "batch"), [("fp32", 24), ("bf16", 3)])
    def test_a_whole_step_takes_as_much_as_the_two_parts(self, precision, batch):
        def build(batch):
            network = plan_presets.model(plan_presets.PRESETS["resnet50"], precision, False)
            optimizer = torch.optim.AdamW(network.parameters(), fused=True)
            dtype = torch.float32 if precision == "fp32" else torch.bfloat16

            def step():
                x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=dtype)
                y = torch.randint(1000, (batch,), device="cuda")
                torch.nn.functional.cross_entropy(network(x).float(), y).backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        whole = plan(build, batch, "A100-80")
        found = budget(model="resnet50", precision=precision, batch=batch)
        assert found.peak.total - CONTEXT_BYTES == pytest.approx(whole.peak_allocated, rel=0.02)

    def test_an_optimizer_is_the_same_to_the_byte_too(self):
        stored = plans()["presets"]["resnet50"]["states"]["fp32"]
        again = plan_presets.optimizing("resnet50", "adam", "fp32")
        moment = budget(model="resnet50", precision="fp32").job.stepping
        assert (moment.weights, moment.gradients) == (again.weights, again.gradients)
        assert moment.optimizer == again.optimizer_state == stored["adam"]["state"]
        assert moment.total - CONTEXT_BYTES == again.peak_allocated

    @pytest.mark.parametrize(("name", "batch", "length"), [("gpt2", 3, 640), ("gpt2", 1, 384), ("resnet50", 24, 192)])
    def test_between_the_stored_points_it_is_near(self, name, batch, length):
        again = plan_presets.passes(name, "amp", False, batch, length)
        size = "resolution" if name == "resnet50" else "sequence"
        found = budget(model=name, precision="amp", optimizer="sgd", batch=batch, **{size: length})
        assert found.peak.total - CONTEXT_BYTES == pytest.approx(again.peak_allocated, rel=0.03)

    @pytest.mark.parametrize(
        ("name", "precision", "full", "batch"), [("vit_b_16", "amp", False, 200), ("gpt2", "bf16", True, 48)]
    )
    def test_beyond_the_last_point_the_line_goes_on(self, name, precision, full, batch):
        again = plan_presets.passes(name, precision, full, batch, plan_presets.PRESETS[name].length)
        checkpointing = "full" if full else "none"
        size = {"sequence": 1024} if name == "gpt2" else {}
        found = budget(
            model=name, precision=precision, checkpointing=checkpointing, batch=batch, optimizer="sgd", **size
        )
        assert found.peak.total - CONTEXT_BYTES == pytest.approx(again.peak_allocated, rel=0.01)

    def test_the_formula_meets_the_plan_of_a_gpt(self):
        # without dropout there are no masks: 32 of the 34 bytes
        kept = budget(model="gpt2", precision="bf16", batch=4, sequence=1024).moments[0].activations
        assert kept / (12 * 4 * 1024 * 768) == pytest.approx(32, rel=0.03)

    def test_lesson_04_s_logits_of_gpt2_are_half_of_its_peak(self):
        found = budget(model="gpt2", precision="fp32", batch=8, sequence=1024)
        assert found.peak.total / 2**30 == pytest.approx(12.4, abs=0.05)
        assert found.peak.logits / found.peak.total == pytest.approx(0.5, abs=0.02)
        assert found.peak.logits / (8 * 1024 * 50_257 * 4) == pytest.approx(4, abs=0.01)

    def test_adafactor_s_formula_meets_the_plan_too(self):
        formula, planned = (
            Formula("", 12, 768, 12, gpt_parameters(12, 768)).states("adafactor", "fp32").optimizer,
            plans()["presets"]["gpt2"]["states"]["fp32"]["adafactor"]["state"],
        )
        assert formula == pytest.approx(planned, rel=0.02)

    def test_the_context_is_that_of_the_virtual_gpu(self):
        assert CONTEXT_BYTES == VIRTUAL_CONTEXT_BYTES

    def test_parameters_are_the_published_ones(self):
        counts = {name: plans()["presets"][name]["parameters"] for name in PLANNED}
        assert counts == {
            "resnet50": 25_557_032,
            "vit_b_16": 86_567_656,
            "gpt2": 124_439_808,
            "llama_7b": 6_738_415_616,
        }


class TestOverTheWholeRange:
    @whole_range
    def test_totals_add_up_and_nothing_is_negative(self, values):
        found = simulate(**values)
        for moment in found.moments:
            assert moment.total == sum(moment)
            assert all(nbytes >= 0 for nbytes in moment)
            assert moment.context == CONTEXT_BYTES
        assert found.peak.total == max(moment.total for moment in found.moments)
        assert found.states <= found.job.stepping.total

    @whole_range
    def test_a_gpu_fits_or_it_does_not(self, values):
        found = simulate(**values)
        names = [fit.spec.name for fit in found.fits]
        assert names == sorted(names, key=lambda name: SHOWN[name].memory_bytes)
        assert {spec.memory_gb for spec in SHOWN.values()} == {SHOWN[name].memory_gb for name in names}
        for fit in found.fits:
            assert (fit.answer == "no") == (found.peak.total > fit.spec.memory_bytes)
            assert 0 <= fit.largest <= MOST
            if fit.answer != "no":
                assert fit.largest >= 1

    @whole_range
    def test_the_largest_batch_is_the_largest(self, values):
        for fit in simulate(**values).fits[::5]:
            if 0 < fit.largest < MOST:
                for batch, fits in ((fit.largest, True), (fit.largest + 1, False)):
                    total = simulate(**values | {"batch": batch}).peak.total
                    assert (total <= fit.spec.memory_bytes) == fits

    @whole_range
    def test_sharding_more_takes_less_of_model_states(self, values):
        found = [simulate(**values | {"parallel": parallel}).states for parallel in ("ddp", "zero1", "zero2", "zero3")]
        assert found == sorted(found, reverse=True)

    @pytest.mark.parametrize("model", ["resnet50", "vit_b_16", "gpt2", "llama_7b"])
    def test_more_data_never_takes_less_between_and_beyond_what_was_planned(self, model):
        planned = memory_needs.needs(model, 0, 0)
        for kind, most in planned.most.items():
            lines = most, planned.ends[kind]
            found = [
                max(sum(memory_needs._between(line, size / 20)) for line in lines)
                for size in range(1, 20 * round(most[-1][0]) + 40)
            ]
            assert all(one <= two + 8 for one, two in itertools.pairwise(found)), kind  # bytes are rounded

    @whole_range
    def test_more_samples_never_take_less(self, values):
        small = simulate(**values).peak
        large = simulate(**values | {"batch": values["batch"] + 8}).peak
        assert small.total <= large.total

    @whole_range
    def test_full_checkpointing_never_keeps_more(self, values):
        full, none = (simulate(**values | {"checkpointing": c}).peak.total for c in ("full", "none"))
        assert full <= 1.1 * none  # between the stored points

    @whole_range
    def test_the_axis_reaches_beyond_the_peak(self, values):
        found = simulate(**values)
        assert found.peak.total <= axis(found.peak.total)


class TestWhatItShows:
    def test_the_default_state_is_the_point(self):
        found = budget()
        assert found.at_end
        assert found.peak.total > 7 * found.peak.weights
        assert found.fitting == ["H200", "B200"]
        assert found.finding.startswith("Llama 7B trains in 100.8 GiB, 8 × its weights")
        assert "only H200 and B200 have that much" in found.finding

    def test_ddp_helps_no_rank(self):
        one, eight = budget(), budget(ranks=8)
        assert eight.states == one.states
        assert eight.peak.total > one.peak.total
        assert "DDP shards nothing" in eight.finding

    def test_fsdp_helps_the_states_and_not_the_activations(self):
        one, eight = budget(), budget(ranks=8, parallel="fsdp")
        assert eight.states == pytest.approx(one.states / 8, rel=1e-6)
        assert eight.moments[0].activations == one.moments[0].activations
        assert "A100-80" in eight.fitting

    def test_a_small_network_is_mostly_activations(self):
        found = budget(model="resnet50", precision="fp32", batch=64)
        assert max(found.peak) == found.peak.activations
        assert not found.at_end
        adam, sgd = (
            budget(model="resnet50", precision="fp32", batch=64, optimizer=o).peak.total for o in ("adam", "sgd")
        )
        assert sgd > 0.95 * adam

    def test_amp_saves_no_weights(self):
        fp32, amp = (budget(model="llama_7b", precision=precision).job.stepping for precision in ("fp32", "amp"))
        assert fp32 == amp

    def test_a_t4_has_no_units_for_bf16(self):
        sim = MemoryBudget(model="gpt2", precision="bf16")
        assert "T4 *" in sim.svg()
        assert "A100-40 *" not in sim.svg()
        assert any(name.startswith("T4") and "no bf16 units" in value for name, value, _ in sim.result.rows())

    def test_numbers_have_a_source(self):
        for values in ({}, {"model": "custom"}, {"ranks": 8, "parallel": "zero3"}):
            sources = {source for _, _, source in budget(**values).rows()}
            assert all(source == "" or source.startswith("virtual") for source in sources)
        assert {source for _, _, source in budget(model="custom").rows()} >= {"virtual: formula, Korthikanti et al."}
        assert {source for _, _, source in budget().rows()} >= {"virtual: gpulab.plan"}

    def test_parts_differ_by_more_than_colour(self):
        words = [element.text for element in ET.fromstring(MemoryBudget().svg()).iter() if element.tag.endswith("text")]
        assert {"weights", "gradients", "activations", "communication", "other"} <= set(words)
        assert {"≤ 9.54 GiB", "≤ 75.3 GiB"} <= set(words)
        assert words.count("optimizer state") == 3  # in the legend, and where there is room, in the two bars
        assert ">logits 875 MiB, " in MemoryBudget().svg()  # of the others, where the pointer rests
        assert ">scale × 4<" in MemoryBudget(ranks=8, parallel="fsdp").svg()
        assert ">scale ×" not in MemoryBudget(ranks=8).svg()

    @pytest.mark.parametrize(
        ("parallel", "words"),
        [("ddp", "16 bytes"), ("zero2", "2 bytes + 14 bytes ÷ 8 ranks"), ("fsdp", "16 bytes ÷ 8 ranks")],
    )
    def test_it_says_which_bytes_of_a_parameter_are_shared(self, parallel, words):
        assert f" = {words} for each of 6.74 billion" in MemoryBudget(ranks=8, parallel=parallel).svg()

    def test_what_is_missing_is_said(self):
        found = {fit.spec.name: fit for fit in budget().fits}
        assert found["A100-80"].words == "✗ 21.6 GiB short"
        assert found["H200"].words == "✓ batch up to 5"
        assert budget(batch=6).fits[-2].words == "✗ 9.97 GiB short: batch up to 5"
        assert budget(ranks=8, parallel="fsdp").fits[4].words == "✓ tight: batch up to 1"

    @pytest.mark.parametrize("batch", [1, 3])
    def test_the_ranks_that_would_do_are_the_fewest(self, batch):
        for fit in budget(batch=batch).fits:
            if fit.answer != "no":
                assert fit.ranks == 0
            else:
                tried = (fit.ranks or 1024, max(1, fit.ranks // 2))
                one, half = (budget(batch=batch, ranks=ranks, parallel="fsdp").peak.total for ranks in tried)
                assert (one <= fit.spec.memory_bytes) == bool(fit.ranks)
                assert half > fit.spec.memory_bytes or not fit.ranks

    def test_it_can_be_moved(self):
        sim = MemoryBudget()
        sim.set(model="gpt2")
        assert sim.values["sequence"] == 1024
        assert sim.values["layers"] == 12
        sim.set(model="custom", layers=48)
        assert sim.values["sequence"] == 2048
        assert sim.result.job.needs.parameters == gpt_parameters(48, 2048)
        assert MemoryBudget.leaves_out

    def test_the_results_are_frozen(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            budget().batch = 2


class TestTouched:
    def marked(self, sim, mark):
        return [e for e in ET.fromstring(sim.picture.inner()).iter() if e.get(f"data-{mark}")]

    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"batch": 3},
            {"model": "resnet50", "precision": "fp32", "batch": 64},
            {"model": "gpt2", "batch": 1024},
            {"ranks": 8, "parallel": "fsdp", "batch": 2},
            {"model": "custom", "batch": 16},
        ],
    )
    def test_the_batch_is_pulled_at_the_end_of_its_bar(self, values):
        sim = MemoryBudget(**values)
        (grip,) = self.marked(sim, "drag")
        start, end, low, high = (float(grip.get(f"data-{key}")) for key in ("from", "to", "low", "high"))
        assert (grip.get("data-drag"), low) == ("batch", 1)
        assert low < high <= 1024
        knob = list(grip.iter())[-1]
        x = float(knob.get("cx"))
        unit = (picture.RIGHT - picture.LEFT) / axis(sim.result.peak.total)
        assert x == pytest.approx(picture.LEFT + sim.result.moments[0].total * unit, abs=0.1)
        there = low + (x - start) / (end - start) * (high - low)
        assert there == pytest.approx(sim.result.batch, rel=0.05, abs=0.5)

    def test_a_gpu_sets_what_it_takes(self):
        sims = [MemoryBudget(), MemoryBudget(model="resnet50", batch=8)]
        for sim in sims:
            gpus = {e.get("data-label").split(":")[0]: json.loads(e.get("data-set")) for e in self.marked(sim, "set")}
            assert set(gpus) == {fit.spec.name for fit in sim.result.fits if fit.largest or fit.ranks}
            for name, values in gpus.items():
                (fit,) = [f for f in sim.model(**sim.values | values).fits if f.spec.name == name]
                assert fit.answer != "no"

    def test_ranks_share_by_a_click(self):
        labels = [e.get("data-label") for e in self.marked(MemoryBudget(ranks=8), "set")]
        assert {"DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP"} <= set(labels)
        assert "ZeRO-1" not in [e.get("data-label") for e in self.marked(MemoryBudget(), "set")]

    def test_what_has_no_say_is_hidden(self):
        def hidden(**values):
            sim = MemoryBudget(**values)
            return {name for name, limit in sim.limits(sim.values).items() if limit.hidden}

        assert hidden() == {"layers", "hidden", "resolution", "parallel"}
        assert hidden(model="resnet50", ranks=2) == {"layers", "hidden", "sequence"}
        assert hidden(model="custom", ranks=2) == {"resolution"}


class TestStates:
    def test_each_makes_its_point(self):
        one, ddp, fsdp = (budget(**state.values) for state in MemoryBudget.states)
        assert one.finding == budget().finding
        assert ddp.peak.total > one.peak.total
        assert ddp.fitting == one.fitting
        assert "DDP shards nothing" in ddp.finding
        assert fsdp.states * 8 == pytest.approx(one.states, rel=1e-6)
        assert len(fsdp.fitting) > len(one.fitting)
        assert fsdp.finding.endswith("; an RTX4090 has just enough")


class TestBadValues:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"layers": 3}, "layers must be from 32 to 32: Llama 7B has 32"),
            (
                {"model": "gpt2", "sequence": 2048},
                "sequence must be from 128 to 1024 tokens: GPT-2 small takes up to 1,024",
            ),
            ({"model": "resnet50", "sequence": 128}, "ResNet-50 takes images, not tokens"),
            ({"resolution": 224}, "Llama 7B takes tokens, not images"),
        ],
    )
    def test_are_named_with_the_range(self, values, message):
        with pytest.raises(ValueError, match=r"memory_budget\(") as caught:
            MemoryBudget(**values)
        assert message in str(caught.value)


def test_the_axis_is_a_power_of_two():
    assert [axis(n * GIB) / GIB for n in (0.1, 15, 16, 100, 127)] == [0.5, 16, 32, 128, 256]
    assert math.log2(axis(10**15) // GIB).is_integer()
