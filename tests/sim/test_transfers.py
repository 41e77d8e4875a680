import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.sim.transfers.controls import Transfers
from gpulab.sim.transfers.machine import CONTEXT_BYTES
from gpulab.sim.transfers.model import BYTES, GPUS, MOST_COMMANDS, SLOTS, read
from gpulab.sim.transfers.picture import END, LANES, LEFT, LINK, PINNED, READ
from gpulab.sim.transfers.result import simulate
from virtualgpu.clock import rates
from virtualgpu.memory.out_of_memory import format_size
from virtualgpu.pictures import style, svg

from .page import Page

DEFAULT = {
    "script": "input_data to GPU; weights to GPU",
    "assign": "new",
    "pinned": False,
    "non_blocking": False,
    "gpu": "A100-80",
    "slot": 4,
    "room": 64,
}
COMMANDS = [f"{name} to {where}" for name in [*BYTES, "all"] for where in ("GPU", "CPU")]
COMMANDS += [*(f"del {name}" for name in BYTES), "weights + bias", "del weights_gpu"]


def state(*commands, **values):
    return simulate(**DEFAULT | ({"script": "; ".join(commands)} if commands else {}) | values)


@st.composite
def states(draw_from):
    return {
        "script": "; ".join(draw_from(st.lists(st.sampled_from(COMMANDS), max_size=13))),
        "assign": draw_from(st.sampled_from(["new", "same", "module"])),
        "pinned": draw_from(st.booleans()),
        "non_blocking": draw_from(st.booleans()),
        "gpu": draw_from(st.sampled_from(sorted(GPUS))),
        "slot": draw_from(st.sampled_from(sorted(SLOTS))),
        "room": draw_from(st.integers(0, 64)),
    }


def whole_range(test):
    return given(values=states())(test)


class TestSizes:
    def test_the_three_tensors_and_their_totals_to_the_byte(self):
        result = state("all to GPU")
        assert BYTES == {"input_data": 32 * 3 * 224 * 224 * 4, "weights": 512 * 512 * 4, "bias": 512 * 4}
        assert result.host_bytes == result.gpu_bytes == 19_267_584 + 1_048_576 + 2_048 == 20_318_208
        words = [element.text for element in ET.fromstring(Transfers().svg()).iter() if element.text]
        assert {"19.27 MB", "1.05 MB", "2.05 KB", "20.32 MB"} <= set(words)
        rows = {name: value for name, value, _ in Transfers().result.rows()}
        assert rows["host, total"] == "20.32 MB (20,318,208 bytes)"
        assert rows["GPU, total"] == "20.32 MB (20,316,160 bytes)"
        assert rows["GPU, reserved for them"] == "22 MiB"

    def test_the_context_is_the_virtual_gpus(self):
        from virtualgpu.scope import device

        assert device.CONTEXT_BYTES == CONTEXT_BYTES


class TestWhatACopyIs:
    def test_the_default_keeps_both(self):
        result = state()
        assert [held.name for held in result.outcome.host] == ["input_data", "weights", "bias"]
        assert [held.name for held in result.outcome.gpu] == ["input_data_gpu", "weights_gpu"]
        assert result.finding == "Copying 20.32 MB took 2.0 ms; the GPU reads its copy in 11 µs"
        assert state("bias to GPU").finding.startswith("Copying 2.05 KB took 8.2 µs")

    def test_the_same_name_lets_the_host_tensor_go(self):
        result = state(assign="same")
        assert [held.name for held in result.outcome.host] == ["bias"]
        assert [held.name for held in result.outcome.gpu] == ["input_data", "weights"]
        assert "nothing refers to the 20.32 MB on the host any more" in result.finding

    def test_a_module_moves_as_a_whole(self):
        result = state("bias to GPU", assign="module")
        assert [held.name for held in result.outcome.host] == ["input_data"]
        assert [held.name for held in result.outcome.gpu] == ["layer.weight", "layer.bias"]
        assert result.outcome.lines[-1].code == 'layer.to("cuda")'
        assert result.finding.startswith("A module moves as a whole")

    def test_where_it_is_already_nothing_is_copied(self):
        result = state("weights to CPU")
        assert result.copied == 0
        assert result.outcome.lines[-1].code == 'weights = weights.to("cpu")'
        assert "copies nothing" in result.finding

    def test_back_again_and_deleted(self):
        result = state("bias to GPU", "del bias", "bias to CPU", "del bias", "del bias")
        codes = [line.code for line in result.outcome.lines[3:]]
        assert codes == [
            'bias_gpu = bias.to("cuda")',
            "del bias",
            'bias = bias_gpu.to("cpu")',
            "del bias",
            "del bias_gpu",
        ]
        assert result.gpu_bytes == 0
        assert result.outcome.reserved == 2 << 20
        assert "where 2 MiB stay reserved" in result.finding


class TestErrors:
    def test_tensors_of_two_devices(self):
        result = state("weights to GPU", "weights + bias")
        recorded = json.loads((Path(__file__).parents[1] / "virtualgpu/torch_cuda/errors.json").read_text("utf-8"))
        assert f'"message": "{result.error.removeprefix("RuntimeError: ")}"' in json.dumps(recorded)
        assert "cuda:0" in result.finding
        assert state("weights to GPU", "bias to GPU", "weights + bias").error == ""

    def test_a_full_gpu_refuses_in_the_allocators_words(self):
        result = state("input_data to GPU", room=18)
        short = result.outcome.shortage.shortage
        assert result.error == f"torch.OutOfMemoryError: {result.outcome.shortage}"
        assert result.error.startswith(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"
        )
        assert short.total == GPUS["A100-80"].memory_bytes
        assert short.free == 18 << 20
        assert (
            result.finding
            == f"The GPU is full: 19.27 MB need a segment of 20.00 MiB, and {format_size(short.free)} are free"
        )
        assert result.gpu_bytes == 0
        assert result.describe().endswith(result.error)
        assert max(map(len, str(result).splitlines())) < 150
        assert state("input_data to GPU", room=20).error == ""

    @pytest.mark.parametrize(
        ("assign", "code", "error"),
        [
            ("new", 'weights_gpu = weights.to("cuda")', "NameError: name 'weights' is not defined"),
            ("module", "out = layer.weight + layer.bias", "AttributeError: 'Linear' object has no attribute 'weight'"),
        ],
    )
    def test_a_name_that_is_gone(self, assign, code, error):
        last = "weights + bias" if assign == "module" else "weights to GPU"
        result = state("del weights", last, assign=assign)
        assert result.outcome.lines[-1].code == code
        assert result.error == error


class TestTime:
    def test_a_copy_is_its_latency_and_its_bytes_over_the_rate(self):
        rates = state().outcome.rates
        line = state("input_data to GPU").copies[0]
        assert line.copy == pytest.approx(rates.copy_us * 1e-6 + 19_267_584 / (rates.pageable_gbps * 1e9))
        small = state("bias to GPU", pinned=True)
        assert small.floor / small.copying > 0.98

    def test_pinned_copies_are_faster_and_pinning_takes_longer_than_they_save(self):
        slow, fast = state("input_data to GPU"), state("input_data to GPU", pinned=True)
        assert fast.copying < slow.copying
        pinning = sum(line.call for line in fast.outcome.lines if line.kind == "pinned")
        assert pinning > slow.copying - fast.copying

    def test_non_blocking_returns_at_once_from_pinned_memory_only(self):
        commands = ("input_data to GPU", "input_data to GPU")  # the second finds its segment in the cache
        lines = {
            pinned: state(*commands, "input_data to GPU", pinned=pinned, non_blocking=True).copies[-1]
            for pinned in (True, False)
        }
        host = rates.rates_of("A100-80").host
        assert lines[True].call == pytest.approx((host.operation_us + host.launch_us) * 1e-6)
        assert lines[False].call > 0.9 * lines[False].copy
        assert (
            "The call takes 15 µs, the copy 811 µs; but pinning took 10 ms"
            in state(*commands, "input_data to GPU", pinned=True, non_blocking=True).finding
        )
        assert "gains almost nothing here" in state(non_blocking=True).finding

    @pytest.mark.parametrize("slot", sorted(SLOTS))
    def test_a_faster_slot_than_the_gpu_has_changes_nothing(self, slot):
        assert state(gpu="T4", slot=slot).copying == state(gpu="T4", slot=3).copying
        assert state(gpu="T4", slot=5).link == "PCIe 3 x16, the GPU’s"
        assert state(gpu="H100", slot=3).link == "PCIe 3 x16, the slot’s"

    def test_each_generation_doubles_the_rate(self):
        over = [state(gpu="H200", slot=slot).outcome.rates for slot in (3, 4, 5)]
        recorded = rates.rates_of("H200").pinned_gbps
        assert [r.pinned_gbps for r in over] == pytest.approx([recorded / 4, recorded / 2, recorded])
        assert [r.pageable_gbps for r in over] == pytest.approx([recorded / 8, 10, 10])  # then the host is the limit
        times = [state(gpu="H200", slot=slot).copying for slot in (3, 4, 5)]
        assert times == sorted(times, reverse=True)


class TestAgainstTheVirtualGPU:
    """The console's own lines, run on the virtual GPU."""

    @pytest.mark.parametrize("gpu", ["T4", "A100-80"])
    @pytest.mark.parametrize("assign", ["new", "same", "module"])
    @pytest.mark.parametrize(("pinned", "non_blocking"), [(False, False), (True, False), (True, True), (False, True)])
    def test_memory_and_clock_are_the_same(self, gpu, assign, pinned, non_blocking):
        import torch
        from torch import nn

        from virtualgpu.gpu import VirtualGPU

        commands = ["all to GPU", "weights + bias", "input_data to CPU", "weights to CPU", "all to GPU"]
        result = state(*commands, assign=assign, pinned=pinned, non_blocking=non_blocking, gpu=gpu, slot=5)
        names = {"torch": torch, "nn": nn}
        with VirtualGPU(gpu, settings="") as virtual, torch.no_grad():
            for line in result.outcome.lines:
                before = virtual.clock.host
                exec(line.code, names)
                if line.call is not None:
                    assert virtual.clock.host - before == pytest.approx(line.call, abs=1e-12), line
            assert torch.cuda.memory_allocated() == sum(-(-held.nbytes // 512) * 512 for held in result.outcome.gpu)
            assert torch.cuda.memory_reserved() == result.outcome.reserved
            assert max(virtual.clock.now(), virtual.clock.host) == pytest.approx(result.outcome.finished)
            names.clear()

    @pytest.mark.filterwarnings("ignore:.*values.*")
    @settings(max_examples=20)
    @given(values=states())
    def test_whatever_the_commands_errors_too(self, values):
        import torch
        from torch import nn

        from virtualgpu.gpu import VirtualGPU
        from virtualgpu.scope import device

        values |= {"slot": 5}
        result = simulate(**values)
        names = {"torch": torch, "nn": nn}
        full, rest = divmod(GPUS[values["gpu"]].memory_bytes - CONTEXT_BYTES - (values["room"] << 20), 2 << 20)
        with (
            mock.patch.object(device, "CONTEXT_BYTES", CONTEXT_BYTES + rest),  # as the simulator's: the rest is taken
            VirtualGPU(values["gpu"], settings="", compute=False) as virtual,
            torch.no_grad(),
        ):
            model = torch.empty(full * (2 << 20), dtype=torch.uint8, device="cuda")
            assert torch.cuda.mem_get_info()[0] == values["room"] << 20
            for line in result.outcome.lines:
                before, error = virtual.clock.host, ""
                try:
                    exec(line.code, names)
                except (RuntimeError, NameError, AttributeError) as caught:
                    error = f"{'torch.' * isinstance(caught, torch.OutOfMemoryError)}{type(caught).__name__}: {caught}"
                assert error == line.error
                if line.call is not None:
                    assert virtual.clock.host - before == pytest.approx(line.call, abs=1e-12), line
            assert torch.cuda.memory_reserved() - model.nbytes == result.outcome.reserved
            assert torch.cuda.mem_get_info()[0] == result.outcome.free
            names.clear()
            del model


class TestOverTheWholeRange:
    @whole_range
    def test_totals_add_up(self, values):
        result = simulate(**values)
        out = result.outcome
        assert result.gpu_bytes <= out.reserved
        assert result.host_bytes <= sum(BYTES.values()) + BYTES["weights"]
        assert out.free + out.reserved == values["room"] << 20
        assert result.copied == sum(line.nbytes for line in result.copies)
        assert 0 <= result.floor <= result.copying
        assert out.finished >= out.went_on >= 0
        for line in out.lines:
            assert line.call is None or line.call > 0
            assert (line.copies > 0) == (line.nbytes > 0) == (line.copy > 0) == (line.way != "")
            assert bool(line.error) == (line.kind in ("name", "device", "memory"))

    @whole_range
    def test_an_error_changes_nothing(self, values):
        result = simulate(**values)
        if result.error and values["assign"] != "module":  # a module may have moved in part
            before = simulate(**values | {"script": "; ".join(map(str, read(values["script"])[:-1]))})
            assert (before.outcome.host, before.outcome.gpu) == (result.outcome.host, result.outcome.gpu)

    @whole_range
    def test_every_code_line_is_python(self, values):
        for line in simulate(**values).outcome.lines:
            compile(line.code, "console", "exec")


class TestControls:
    def test_the_text_of_what_was_read_is_read_the_same(self):
        text = "; ".join(COMMANDS)
        assert read("; ".join(map(str, read(text)))) == read(text)
        assert read("weights to GPU\nbias to CPU;;  del bias ; weights+bias") == read(
            "weights to GPU; bias to CPU; del bias; weights + bias"
        )

    @pytest.mark.parametrize(
        ("values", "error", "message"),
        [
            (
                {"script": "weight to GPU"},
                ValueError,
                "transfers(script='weight to GPU'): 'weight to GPU' is no command.",
            ),
            ({"script": "weights to cuda"}, ValueError, "Known: NAME to GPU, NAME to CPU, del NAME, weights + bias"),
            ({"script": "all to GPU;" * 14}, ValueError, f"42 commands; there may be up to {MOST_COMMANDS}."),
        ],
    )
    def test_bad_values_are_named(self, values, error, message):
        with pytest.raises(error, match=re.escape(message)):
            Transfers(**values)

    def test_a_copy_can_be_deleted_by_its_own_name(self):
        result = state("weights to GPU", "del weights_gpu")
        assert [held.name for held in result.outcome.host] == list(BYTES)
        assert result.gpu_bytes == 0
        with pytest.raises(ValueError, match="'weights_gpu to CPU' is no command"):
            read("weights_gpu to CPU")

    def test_every_button_adds_what_it_says(self):
        (script,) = (control for control in Transfers.controls if control.name == "script")
        for words, command in script.buttons.items():
            assert [str(c) for c in read(command)] == [words]

    def test_the_page_moves_the_simulator(self):
        page = Page(Transfers())
        page.ask(script="input_data to GPU; weights to GPU; weights + bias")
        assert "same device" in page.simulator.result.error
        page.ask(script="")
        assert page.simulator.result.copied == 0


class TestTouched:
    def chips(self, sim):
        """What a click on each thing in the picture adds to the script, by what is spoken of it."""
        found = ET.fromstring(sim.picture.inner()).iter()
        return {e.get("data-label"): json.loads(e.get("data-add"))[1] for e in found if e.get("data-add")}

    @pytest.mark.parametrize("assign", ["new", "same", "module"])
    def test_a_tensor_goes_to_the_other_memory_and_away(self, assign):
        sim = Transfers(script="weights to GPU", assign=assign)
        for label, commands in self.chips(sim).items():
            name, what = label.split(": ") if ": " in label else ("", label)
            after = Transfers(script=f"weights to GPU; {commands}", assign=assign).result
            gone = Counter(h.name for h in (*sim.result.outcome.host, *sim.result.outcome.gpu))
            left = Counter(h.name for h in (*after.outcome.host, *after.outcome.gpu))
            if what == "delete it":
                assert gone - left == Counter([name])
            elif name:
                (line,) = after.outcome.lines[len(sim.result.outcome.lines) :]
                assert line.way == ("to GPU" if what.endswith("GPU") else "to host")
                assert name in line.code or "layer.to" in line.code
        assert len(self.chips(sim)) == 2 * len(gone) + 1

    def test_it_is_dropped_onto_the_panel_across(self):
        for piece in ET.fromstring(Transfers().picture.inner()).iter():
            if piece.get("data-drop"):
                left, _, wide, _ = map(float, piece.get("data-drop").split())
                panels = [e for e in ET.fromstring(Transfers().svg()).iter() if e.get("width") == str(round(wide))]
                assert str(round(left)) in [panel.get("x") for panel in panels]
                words = next(e.get("data-label") for e in piece.iter() if e.get("data-label"))
                assert (left > 430) == words.endswith("to the GPU")

    def test_undo_leaves_the_last_command_away(self):
        found = ET.fromstring(Transfers().picture.inner()).iter()
        (undo,) = [json.loads(e.get("data-set")) for e in found if e.get("data-set")]
        assert undo == {"script": "input_data to GPU"}
        assert "Undo" not in Transfers(script="").picture.inner()


class TestStates:
    def test_each_makes_its_point(self):
        copies, behind, nobody = (Transfers(**state.values).result for state in Transfers.states)
        assert copies.finding == Transfers().result.finding
        assert copies.host_bytes == sum(BYTES.values()) > copies.gpu_bytes > 0
        assert "same device" in behind.error
        assert behind.finding == "The sum fails: weights_gpu is on cuda:0, and bias still on the CPU"
        last = nobody.outcome.lines[-1]
        assert last.call < last.copy / 5
        assert nobody.finding.endswith("; but pinning took 10 ms")


class TestThePicture:
    @pytest.mark.parametrize("state", [state.values for state in Transfers.states])
    def test_waits_and_copies_stand_one_above_the_other_when_they_were(self, state):
        sim = Transfers(**state)
        out = sim.result.outcome
        calls = [line for line in out.lines if line.call and line.kind != "pinned"]
        begin, left = calls[0].began, LEFT + (PINNED if sim.result.pinning else 0)
        reading, ends = sim.result.reading, max(out.finished, out.went_on)
        unit = (END - left) / (ends + reading - begin)
        waited = [] if state["non_blocking"] else out.bus
        for seconds, fill, top in (
            ([(line.began, line.began + line.call) for line in calls], style.RULE, LANES),
            (waited, style.VERMILLION, LANES),
            (out.bus, style.ORANGE, LINK),
            ([(ends, ends + reading)], style.GREEN, READ),
        ):
            found = ET.fromstring(sim.picture.inner()).iter("{http://www.w3.org/2000/svg}rect")
            bars = [bar for bar in found if (bar.get("fill"), bar.get("y")) == (fill, svg.num(top))]
            drawn = [(float(bar.get("x")), float(bar.get("width"))) for bar in bars if not bar.get("fill-opacity")]
            expected = [(left + (start - begin) * unit, (end - start) * unit) for start, end in seconds]
            assert [pair for pair in drawn if pair[0] >= left] == [pytest.approx(pair, abs=0.06) for pair in expected]
            assert len(drawn) - len(expected) == (fill == style.RULE and left > LEFT)  # what pins

    def test_each_copy_has_its_tensors_name_and_its_time_where_that_fits(self):
        picture = Transfers(**Transfers.states[2].values).picture
        found = ET.fromstring(picture.inner()).iter("{http://www.w3.org/2000/svg}text")
        assert [e.text for e in found if float(e.get("y")) in (LINK + 15, LINK + 36)] == [
            "PCIe bus",
            "weights",
            "bias",
            "input_data: 811 µs",
        ]

    def test_the_rate_in_force_comes_first(self):
        assert "pageable 10 GB/s, pinned 24 GB/s" in Transfers().svg()
        assert "pinned 24 GB/s, pageable 10 GB/s" in Transfers(pinned=True).svg()

    @whole_range
    def test_the_bus_was_busy_as_long_as_the_lines_say(self, values):
        out = simulate(**values).outcome
        assert sum(end - start for start, end in out.bus) == pytest.approx(sum(line.copy for line in out.lines))
        assert all(end <= out.finished + 1e-12 for _, end in out.bus)

    def test_an_error_stands_under_its_line_and_none_is_cut(self):
        words = [e.text for e in ET.fromstring(Transfers(script="input_data to GPU", room=18).svg()).iter() if e.text]
        line = words.index('input_data_gpu = input_data.to("cuda")')
        assert words[line + 2].startswith("torch.OutOfMemoryError: CUDA out of memory.")
        assert "avoid fragmentation." in " ".join(words)
