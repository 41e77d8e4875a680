import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.sim.architecture.controls import Architecture
from gpulab.sim.architecture.model import (
    FRAMES,
    INSTRUCTIONS,
    MOST_WAVES,
    TOY,
    WARP,
    Kernel,
    clock_ghz,
    limits,
    limits_of,
)
from gpulab.sim.architecture.picture import CHART_BOTTOM, CHART_TOP
from virtualgpu.gpus.specs import SHOWN
from virtualgpu.pictures.style import SKY

from .page import Page

DEFAULT = {
    "gpu": TOY,
    "sms": 4,
    "lanes": 32,
    "threads": 64,
    "room": 8,
    "wait": 7,
    "elements": 2100,
    "frame": 80,
    "look": 1,
}


def kernel(**values):
    return Kernel(**DEFAULT | values)


@st.composite
def states(draw_from, small=False):
    """Any state that the controls can take; a `small` one can be followed clock by clock."""
    controls = {control.name: control for control in Architecture.controls}
    values = {
        "gpu": TOY if small else draw_from(st.sampled_from(list(controls["gpu"].options))),
        "sms": draw_from(st.integers(1, 6 if small else 170)),
        "lanes": draw_from(st.sampled_from([32, 64, 96, 128])),
        "threads": draw_from(st.one_of(st.integers(1, 200), st.integers(1, 1024))),
        "room": draw_from(st.integers(1, 64)),
        "wait": draw_from(st.one_of(st.integers(0, 12), st.integers(0, 12 if small else 500))),
        "elements": 1,
        "frame": 0,
    }
    for name in ("room", "sms", "lanes"):
        values[name] = controls[name].clamp(values[name], limits(values).get(name))
    most = limits(values)["elements"].high
    values["elements"] = draw_from(st.one_of(st.integers(1, most), st.integers(max(1, most // 3), most)))
    if small:
        values["elements"] = min(values["elements"], most // MOST_WAVES * 3)
    values["frame"] = draw_from(st.integers(0, limits(values)["frame"].high))
    return values


def whole_range(test):
    return given(values=states())(test)


def every_clock(values):
    """The kernel at each of its clocks; the clock is set by hand, as Play shows only some of a long one."""
    for clock in range(Kernel(**values).clocks):
        seen = Kernel(**values)
        seen.__dict__["clock"] = clock
        yield seen


class TestByHand:
    def test_four_sms_of_32_lanes_are_128(self):
        assert (kernel().all_lanes, kernel().rows_of_lanes) == (128, 1)
        assert "4 SMs × 32 lanes: 32 of 128 at work" in Architecture().svg()
        assert "a lane (“CUDA core”), filled while it works" in Architecture().svg()

    def test_2100_elements_need_a_third_wave_for_one_block(self):
        seen = kernel()
        assert (seen.warps_per_block, seen.blocks_per_sm, seen.places, seen.blocks) == (2, 4, 16, 33)
        assert [wave.blocks for wave in seen.waves] == [16, 16, 1]
        # eight warps and a wait of 7: one issues in each clock, and each has four instructions
        assert [(wave.start, wave.clocks) for wave in seen.waves] == [(0, 32), (32, 32), (64, 32)]
        assert seen.busy == pytest.approx(2100 * 4 / (128 * 96))
        assert [wave.busy for wave in seen.waves] == pytest.approx([1, 1, 52 / 1024])
        assert "busy 68% of the time: the last wave leaves 3 of 4 SMs idle" in seen.finding

    def test_52_elements_less_are_a_third_faster(self):
        seen = kernel(elements=2048)
        assert (seen.clocks, seen.busy) == (64, 1)
        assert "All 128 lanes are busy" in seen.finding

    def test_all_lanes_work_at_each_clock_of_a_full_wave_and_one_warp_issues_on_each_sm(self):
        for clock in range(64):
            seen = kernel(frame=clock)
            assert seen.working == [[32]] * 4
            assert [warp.state for warp in seen.warps_on(0)].count("issuing") == 1

    def test_the_tail_has_work_for_one_sm(self):
        seen = kernel(frame=64)
        assert [seen.blocks_on(sm) for sm in range(4)] == [1, 0, 0, 0]
        assert seen.working == [[32], [], [], []]
        assert kernel(frame=65).working[0] == [20]  # 2100 = 32 × 64 + 32 + 20

    def test_a_warp_waits_and_its_turn_comes_again(self):
        states = [kernel(frame=clock).warps_on(0)[0] for clock in range(9)]
        assert [warp.state for warp in states] == ["issuing", *["waiting"] * 7, "issuing"]
        assert [warp.waited for warp in states[1:8]] == pytest.approx([n / 8 for n in range(1, 8)])

    def test_half_the_warps_hide_half_the_wait(self):
        seen = kernel(room=4, elements=2048)
        assert (seen.resident, seen.needed, seen.hidden) == (4, 8, 0.5)
        assert seen.busy == pytest.approx(0.5)
        assert "4 warps on an SM cannot hide" in seen.finding

    def test_more_warps_than_needed_wait_for_their_turn(self):
        seen = kernel(room=16, elements=2048, frame=13)
        assert seen.period(seen.blocks_per_sm) == 16
        assert seen.busy == 1
        assert "ready" in {warp.state for warp in seen.warps_on(0)}

    def test_33_threads_fill_33_of_64_lanes(self):
        seen = kernel(threads=33, elements=4 * 4 * 33)
        assert (seen.warps_per_block, seen.clocks) == (2, 32)
        assert seen.busy == pytest.approx(33 / 64)
        assert "busy 52% of the time: blocks of 33 threads" in seen.finding
        assert [kernel(threads=33, elements=528, frame=clock).working[0] for clock in (0, 1)] == [[32], [1]]

    def test_a_tensor_of_a_few_blocks_leaves_sms_without_work(self):
        seen = kernel(gpu="T4", sms=40, lanes=64, frame=13)
        assert "the only wave leaves 7 of 40 SMs idle" in seen.finding
        assert [seen.blocks_on(sm) for sm in (0, 32, 33, 39)] == [1, 1, 0, 0]

    def test_a_short_last_wave_of_many_warps_is_faster(self):
        seen = kernel(room=16, elements=1024 * 2 + 64)
        assert [wave.clocks for wave in seen.waves] == [64, 32]


class TestAgainstPublishedFigures:
    @pytest.mark.parametrize(
        ("gpu", "total"), [("T4", 2560), ("V100-32", 5120), ("A100-80", 6912), ("H100", 16896), ("RTX4090", 16384)]
    )
    def test_a_preset_has_its_data_sheets_lanes(self, gpu, total):
        assert Architecture(gpu=gpu).result.all_lanes == total

    @pytest.mark.parametrize(("gpu", "ghz"), [("A100-80", 1.41), ("T4", 1.59), ("H100", 1.98), ("V100-16", 1.53)])
    def test_the_peak_gives_the_boost_clock(self, gpu, ghz):
        assert clock_ghz(gpu) == pytest.approx(ghz, abs=0.01)

    # CUDA programming guide, technical specifications per compute capability
    @pytest.mark.parametrize(
        ("gpu", "room"),
        [("T4", (32, 16)), ("RTX3060", (48, 16)), ("L4", (48, 24)), ("A100-40", (64, 32)), ("B200", (64, 32))],
    )
    def test_room_on_an_sm(self, gpu, room):
        assert limits_of(gpu) == room

    @pytest.mark.parametrize(("gpu", "factor"), [("V100-16", "8 ×"), ("A100-80", "16 ×"), ("H100", "15 ×")])
    def test_tensor_cores_against_the_lanes_of_the_same_chip(self, gpu, factor):
        assert f"= {factor} the lanes" in str(Architecture(gpu=gpu).result)


class TestOverTheWholeRange:
    @settings(max_examples=40)
    @given(values=states(small=True))
    def test_every_element_gets_every_instruction(self, values):
        seen = list(every_clock(values))
        assert sum(sum(map(sum, one.working)) for one in seen) == values["elements"] * INSTRUCTIONS
        assert all(len(rows) <= one.rows_of_lanes for one in seen for rows in one.working)

    @settings(max_examples=25)
    @given(values=states(small=True))
    def test_a_warps_states_are_what_the_lanes_say(self, values):
        for one in every_clock(values):
            for sm in range(one.sms):
                warps = one.warps_on(sm)
                assert [warp.lanes for warp in warps if warp.state == "issuing"] == one.working[sm]
                assert all(0 <= warp.waited <= 1 for warp in warps)
                waiting = sum(warp.state == "waiting" for warp in warps)
                assert waiting <= one.wait * one.rows_of_lanes

    @whole_range
    def test_waves_hold_all_blocks_and_fill_the_time(self, values):
        seen = Kernel(**values)
        assert sum(wave.blocks for wave in seen.waves) == seen.blocks == math.ceil(seen.elements / seen.threads)
        assert len(seen.waves) == math.ceil(seen.blocks / seen.places) <= MOST_WAVES
        assert [wave.start for wave in seen.waves] == [
            sum(wave.clocks for wave in seen.waves[:index]) for index in range(len(seen.waves))
        ]
        assert seen.clocks == sum(wave.clocks for wave in seen.waves) > 0

    @whole_range
    def test_shares_are_shares(self, values):
        seen = Kernel(**values)
        assert 0 < seen.busy <= 1 + 1e-12
        assert 0 < seen.hidden <= 1
        for wave in seen.waves:
            assert 0 < wave.busy <= 1 + 1e-12
            assert 0 < wave.resident <= 1
        weighted = sum(wave.busy * wave.clocks for wave in seen.waves) / seen.clocks
        assert seen.busy == pytest.approx(weighted)

    @whole_range
    def test_blocks_fit_and_the_clock_is_in_the_kernel(self, values):
        seen = Kernel(**values)
        warps, blocks = limits_of(seen.gpu)
        assert 1 <= seen.blocks_per_sm <= blocks
        assert seen.warps_per_block <= seen.resident <= min(seen.room, warps)
        assert 0 <= seen.clock < seen.clocks
        assert sum(map(sum, seen.working)) <= seen.all_lanes

    @whole_range
    def test_the_last_frame_is_the_last_clock(self, values):
        last = limits(values)["frame"].high
        assert last <= FRAMES - 1
        assert Kernel(**values | {"frame": 0}).clock == 0
        assert Kernel(**values | {"frame": last}).clock == Kernel(**values).clocks - 1

    @whole_range
    def test_more_elements_take_no_less_time(self, values):
        more = Kernel(**values | {"elements": values["elements"] + values["threads"], "frame": 0})
        assert more.clocks >= Kernel(**values).clocks

    @whole_range
    def test_a_longer_wait_takes_no_less_time(self, values):
        longer = Kernel(**values | {"wait": values["wait"] + 1, "frame": 0})
        assert longer.clocks >= Kernel(**values).clocks


class TestSimulator:
    def test_sliders_that_a_preset_held_can_be_moved_again(self):
        page = Page(Architecture())
        held = page.ask(gpu="T4")
        assert (held["values"]["sms"], held["values"]["lanes"]) == (40, 64)
        assert (held["limits"]["sms"]["low"], held["limits"]["sms"]["high"]) == (40, 40)
        free = page.ask(gpu=TOY)
        assert free["values"]["sms"] == 4
        assert (free["limits"]["sms"]["low"], free["limits"]["sms"]["high"]) == (1, 170)
        assert free["limits"]["lanes"]["low"] < free["limits"]["lanes"]["high"]

    def test_the_default_state_makes_the_point(self):
        sim = Architecture()
        assert sim.result == Kernel(TOY, 4, 32, 64, 8, 7, 2100, 80)
        assert sim.values.items() >= Architecture.states[0].values.items()
        # what the headline says is on the screen: SMs without work, and a warp on the only other one
        assert sim.picture.title.endswith("leaves 3 of 4 SMs idle")
        assert sim.svg().count("no block, no work") == 3
        assert "room for 6 more" in sim.svg()
        assert "1 on the lanes" in sim.svg()
        assert "1 waiting" in sim.svg()
        assert "5.1% on average" in sim.svg()

    def test_a_preset_holds_its_own_numbers_and_gives_the_others_back(self):
        sim = Architecture(sms=6)
        sim.set(gpu="T4", threads=1024)
        assert (sim.values["sms"], sim.values["lanes"], sim.values["room"]) == (40, 64, 32)
        assert sim.limits(sim.values)["sms"][:2] == (40, 40)
        sim.set(gpu=TOY, threads=64)
        assert (sim.values["sms"], sim.values["lanes"], sim.values["room"]) == (6, 32, 8)

    def test_the_time_ends_with_the_kernel(self):
        sim = Architecture(frame=95)
        sim.set(elements=2048)
        assert sim.values["frame"] == 63
        sim.set(wait=500)
        assert sim.limits(sim.values)["frame"].high == FRAMES - 1

    def test_every_lane_is_drawn_where_there_is_room(self):
        few, many = Architecture().svg(), Architecture(gpu="H100").svg()
        assert "a mark is a lane" in few
        assert "the share of its lanes at work" in many
        assert len(many) < 60_000

    def test_warps_differ_by_more_than_colour(self):
        sim = Architecture(room=16, frame=13)
        assert {warp.state for warp in sim.result.warps_on(0)} == {"issuing", "waiting", "ready"}
        assert sim.svg().count(" ready<") == 2  # of those that wait, full means ready
        # the mark within a ready warp's box
        assert "h6v4h-6z" in sim.svg()

    @pytest.mark.parametrize("gpu", SHOWN)
    def test_a_presets_figures_are_recorded(self, gpu):
        rows = {name: (value, source) for name, value, source in Architecture(gpu=gpu).result.rows()}
        assert rows["GPU"] == (SHOWN[gpu].product, "recorded: data sheet")
        assert rows["peak of the lanes, fp32"][1].startswith("recorded")
        assert rows["time"][1].startswith("virtual")

    def test_the_toys_peak_is_that_of_its_lanes_at_a_named_clock(self):
        rows = {name: (value, source) for name, value, source in Architecture().result.rows()}
        assert rows["peak of the lanes, fp32"] == ("0.361 TFLOPS", "virtual: at an A100’s 1.41 GHz")


class TestTouch:
    def test_the_states_have_a_tail_then_are_full_then_have_too_few_warps(self):
        tail, full, few = (kernel(**state.values) for state in Architecture.states)
        assert (full.busy, full.clocks) == (1, 64)
        assert "every wave is full" in full.finding
        assert (tail.waves[-1].blocks, tail.clocks) == (1, 96)
        assert "leaves 3 of 4 SMs idle" in tail.finding
        assert few.busy == few.hidden == 0.25
        assert "8 warps on an SM cannot hide the wait" in few.finding
        assert sum(map(sum, few.working)) == few.busy * few.all_lanes  # the moment is like the average
        shown = Architecture(**Architecture.states[2].values)
        assert "8 warps, 32 would hide the wait" in shown.svg()
        assert shown.svg().count(": 8 warps wait<") == 3  # of the SMs whose lanes have nothing to do
        shown.set(room=32)
        assert shown.result.finding.endswith("the only wave of blocks fills 50% of the GPU")  # what the note asks for

    @pytest.mark.parametrize("gpu", [TOY, "T4", "B200"])
    def test_a_click_on_an_sm_shows_its_warps(self, gpu):
        page = Page(Architecture(gpu=gpu))
        seen = page.simulator.result
        looks = [json.loads(one) for one in re.findall(r"data-set='([^']*)'", page.view["svg"])]
        assert looks == [{"look": sm + 1} for sm in range(seen.sms)]
        last = page.ask(look=seen.sms)["svg"]
        assert f"SM {seen.sms}: {len(seen.warps_on(seen.sms - 1))} warps" in last

    def test_the_tail_has_no_warps_on_the_other_sms(self):
        assert "SM 1: 2 warps" in Architecture(frame=64).svg()
        assert "SM 2: 0 warps" in Architecture(frame=64, look=2).svg()

    def test_the_sm_is_one_that_there_is(self):
        sim = Architecture(gpu="H100", look=132)
        sim.set(gpu=TOY)
        assert sim.values["look"] == 4
        with pytest.raises(ValueError, match="look must be from 1 to 4: there are 4 SMs"):
            sim.set(look=5)

    @pytest.mark.parametrize("values", [{}, {"elements": 2048}, {"wait": 500, "elements": 30_000}])
    @pytest.mark.parametrize("share", [0, 0.4, 1])
    def test_the_time_is_dragged_where_it_is_drawn(self, values, share):
        sim = Architecture(**values)
        last = sim.limits(sim.values)["frame"].high
        sim.set(frame=round(share * last))
        (marks,) = re.findall(r'<g data-drag="frame"(.*?)</g>', sim.picture.inner())
        start, end, low, high = (
            float(re.search(f'data-{name}="([^"]*)"', marks)[1]) for name in ("from", "to", "low", "high")
        )
        drawn = float(re.search(r'<line x1="([^"]*)"', marks)[1])
        assert high == last
        assert round(low + (drawn - start) / (end - start) * (high - low)) == sim.values["frame"]

    def test_the_states_show_the_clock_of_the_slider(self):
        for state in Architecture.states:
            assert Architecture(**state.values).result.clock == state.values["frame"]

    def test_the_strip_counts_the_lanes_of_sms_without_a_block_as_the_map_does(self):
        root = ET.fromstring(Architecture().picture.inner())
        levels = [
            rect for rect in root.iter() if rect.get("fill") == SKY and rect.get("y") and rect.tag.endswith("rect")
        ]
        assert float(levels[-1].get("height")) / (CHART_BOTTOM - CHART_TOP) == pytest.approx(32 / 128)

    def test_the_parts_of_a_warps_turn_are_explained(self):
        svg = Architecture(frame=13).svg()
        assert "1 on the lanes" in svg
        assert "7 waiting, clocks left: full means ready" in svg
        assert "wave 3: 1 block in 16 places" in svg


class TestBadValues:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"lanes": 50}, "lanes is 50; it must be 32, 64, 96 or 128"),
            ({"gpu": "T4", "sms": 4}, "sms must be from 40 to 40: T4 has 40 SMs"),
            ({"gpu": "T4", "room": 64}, "room must be from 2 to 32: a block has 2 warps"),
            ({"threads": 1024, "room": 8}, "room must be from 32 to 64: a block has 32 warps"),
            ({"elements": 40_000}, "elements must be from 1 to 32768: 32 waves of 16 blocks of 64 threads are 32,768"),
            ({"frame": 96}, "frame must be from 0 to 95: the kernel takes 96 clocks"),
        ],
    )
    def test_are_named_with_what_would_be_right(self, values, message):
        with pytest.raises(ValueError, match=r"architecture|lanes") as caught:
            Architecture(**values)
        assert message in str(caught.value)

    def test_a_bad_value_changes_nothing(self):
        sim = Architecture()
        with pytest.raises(ValueError, match="lanes is 40"):
            sim.set(lanes=40)
        assert sim.values == DEFAULT
        assert WARP == 32
