import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest

from gpulab.sim.base.words import duration, many
from gpulab.sim.race.controls import Race
from gpulab.sim.race.model import (
    CORE_LANES,
    CPU_BANDWIDTH,
    MOST_TASKS,
    PLACES,
    TASK,
    TOY,
    Contest,
    limits,
    times,
)
from gpulab.sim.race.picture import BOTTOM, RIGHT, TOP
from virtualgpu.clock import rates
from virtualgpu.gpus.specs import SHOWN
from virtualgpu.pictures import svg

from . import states
from .page import Page

DEFAULT = {
    "gpu": TOY,
    "tasks": 128,
    "cores": 8,
    "simd": 1,
    "lanes": 256,
    "ratio": 3.0,
    "kilobytes": 1,
    "serial": 0,
    "launch": 10,
    "time": 30,
}
BARE = DEFAULT | {"kilobytes": 0, "launch": 0}


def race(**values):
    return Contest(**DEFAULT | values)


def bare(**values):
    """Nothing but arithmetic."""
    return Contest(**BARE | values)


whole_range = states.whole_range(Race)


class TestByHand:
    def test_eight_against_256_and_128_tasks(self):
        seen = bare()
        assert (seen.cpu.lanes, seen.gpu_side.lanes, seen.warps, seen.tasks) == (8, 256, 8, 128)
        assert seen.cpu.rounds == 16
        assert seen.cpu.seconds == pytest.approx(16 * TASK)
        assert seen.gpu_side.seconds == pytest.approx(3 * TASK)  # one round, at a third of the clock

    def test_eight_simd_cores_are_themselves_256_lanes(self):
        seen = bare(simd=32)
        assert seen.cpu.lanes == seen.gpu_side.lanes == 8 * 2 * 16 == 256
        assert seen.cpu.seconds == pytest.approx(TASK)
        assert seen.speedup == pytest.approx(1 / 3)
        assert seen.finding.startswith("The CPU is 3 × as fast")
        assert "a lane of the GPU is 3 times slower" in seen.finding

    def test_launch_and_copies_come_on_top(self):
        seen, reached = race(), rates.rates_of("T4")
        copy = reached.copy_us * 1e-6 + 128_000 / (reached.pinned_gbps * 1e9)
        assert [phase.name for phase in seen.gpu_side.phases] == ["copy in", "launch", "tasks", "copy out"]
        assert seen.gpu_side.spent("copy in") == seen.gpu_side.spent("copy out") == pytest.approx(copy)
        assert seen.gpu_side.seconds == pytest.approx(2 * copy + 10e-6 + 3 * TASK)
        assert [phase.name for phase in seen.cpu.phases] == ["tasks"]

    def test_one_task_more_than_the_lanes_takes_another_round(self):
        assert bare(tasks=256).gpu_side.seconds == pytest.approx(3 * TASK)
        assert bare(tasks=257).gpu_side.seconds == pytest.approx(6 * TASK)
        assert bare(tasks=9).cpu.seconds == pytest.approx(2 * TASK)

    def test_where_each_stands_after_two_rounds_of_the_cpu(self):
        seen = bare(time=15)  # 24 of 160 µs
        assert (seen.cpu.done(seen.now), seen.cpu.working(seen.now)) == (16, 8)
        assert (seen.gpu_side.done(seen.now), seen.gpu_side.working(seen.now)) == (0, 128)
        seen = bare(time=50)
        assert seen.cpu.done(seen.now) == 64
        assert (seen.gpu_side.done(seen.now), seen.gpu_side.working(seen.now)) == (128, 0)
        assert seen.doing(seen.gpu_side) == "finished"

    def test_the_last_round_may_leave_lanes_idle(self):
        seen = bare(tasks=20, time=99)
        assert (seen.cpu.done(seen.now), seen.cpu.working(seen.now)) == (16, 4)

    def test_the_crossover_of_bare_arithmetic(self):
        # the GPU needs 30 µs for up to 256 tasks, the CPU from 25 on 40 µs
        seen = bare()
        assert seen.crossover == 25
        assert seen.crossing == "ahead from about 25 tasks"

    def test_equal_lanes_at_a_slower_clock_never_win(self):
        seen = bare(simd=32)
        assert seen.crossover is None
        assert seen.crossing == "never ahead, up to a million tasks"

    def test_more_lanes_at_the_same_clock_win_from_the_first_task_that_needs_them(self):
        assert bare(ratio=1.0).crossover == 9

    def test_one_lane_against_many(self):
        assert bare(cores=1, ratio=1.0).crossover == 2

    def test_bytes_can_make_memory_the_limit_of_the_cpu(self):
        seen = bare(cores=64, simd=32, tasks=100_000, kilobytes=64)
        assert seen.cpu.seconds == pytest.approx(100_000 * 64_000 / CPU_BANDWIDTH)


class TestAmdahl:
    # coverage.md: 95% parallel ends at 20 ×, and 8 workers get 5.9 × of it
    def test_eight_workers_and_five_percent(self):
        seen = bare(tasks=1600, serial=5)
        assert seen.amdahl == 20
        assert seen.over_one_lane(1600, "cpu") == pytest.approx(1 / (0.05 + 0.95 / 8))
        assert round(seen.over_one_lane(1600, "cpu"), 1) == 5.9

    def test_no_number_of_lanes_gets_beyond_it(self):
        seen = bare(gpu="B200", lanes=18_944, tasks=100_000, serial=5, ratio=1.0)
        assert 19 < seen.over_one_lane(100_000, "gpu") < 20
        assert "the serial part holds both below 20 ×" in bare(tasks=100_000, serial=5, simd=32).finding

    def test_nothing_serial_has_no_limit(self):
        assert race().amdahl == math.inf
        assert "none, nothing is serial" in str(race())

    def test_the_gpu_waits_for_the_serial_part_on_the_cpu(self):
        seen = race(serial=50, time=10)
        assert seen.gpu_side.phases[0] == seen.cpu.phases[0]
        assert seen.doing(seen.cpu) == "one lane, serial part"
        assert seen.doing(seen.gpu_side) == "waiting for the CPU"


class TestOverTheWholeRange:
    @whole_range
    def test_phases_follow_one_another(self, values):
        seen = Contest(**values)
        for side in (seen.cpu, seen.gpu_side, seen.simd_cpu):
            assert side.phases[0].start == 0
            assert all(phase.length > 0 for phase in side.phases)
            for one, two in zip(side.phases, side.phases[1:], strict=False):
                assert two.start == one.end
            assert side.seconds == pytest.approx(sum(phase.length for phase in side.phases))

    @whole_range
    def test_tasks_add_up_and_only_grow(self, values):
        before = (0, 0)
        for time in range(0, 101, 4):
            seen = Contest(**values | {"time": time})
            done = tuple(side.done(seen.now) for side in (seen.cpu, seen.gpu_side))
            for side, number, earlier in zip((seen.cpu, seen.gpu_side), done, before, strict=True):
                assert earlier <= number <= side.tasks
                assert 0 <= side.working(seen.now) <= min(side.lanes, side.tasks - number)
            before = done
        assert before == (values["tasks"], values["tasks"])

    @whole_range
    def test_nobody_beats_amdahl_or_the_lanes(self, values):
        seen = Contest(**values)
        for tasks in (values["tasks"], *PLACES[::12]):
            assert 0 < seen.over_one_lane(tasks, "cpu") <= min(seen.amdahl, seen.cpu.lanes) * (1 + 1e-9)
            assert 0 < seen.over_one_lane(tasks, "gpu") <= min(seen.amdahl, seen.lanes / seen.ratio) * (1 + 1e-9)

    @whole_range
    def test_the_plot_agrees_with_the_race(self, values):
        seen = Contest(**values)
        ratio = seen.over_one_lane(seen.tasks, "gpu") / seen.over_one_lane(seen.tasks, "cpu")
        assert ratio == pytest.approx(seen.speedup)
        assert [len(curve) for curve in seen.curves.values()] == [len(PLACES)] * 2
        assert (PLACES[0], PLACES[-1]) == (1, MOST_TASKS)

    @whole_range
    def test_the_crossover_is_where_the_gpu_gets_ahead(self, values):
        seen = Contest(**values)

        def ahead(tasks):
            return seen.over_one_lane(tasks, "gpu") > seen.over_one_lane(tasks, "cpu")

        if seen.crossover is None:
            assert not ahead(MOST_TASKS)
        else:
            assert all(ahead(tasks) for tasks in PLACES if tasks >= seen.crossover)
            assert seen.crossover == 1 or not ahead(seen.crossover - 1)

    @whole_range
    def test_more_costs_never_help(self, values):
        seen = Contest(**values)
        for name, more in (("launch", 1), ("kilobytes", 1), ("ratio", 0.5)):
            other = Contest(**values | {name: values[name] + more})
            assert other.gpu_side.seconds >= seen.gpu_side.seconds
        assert Contest(**values | {"simd": CORE_LANES}).cpu.seconds <= seen.cpu.seconds
        assert Contest(**values | {"cores": values["cores"] + 1}).cpu.seconds <= seen.cpu.seconds


class TestSimulator:
    def test_a_slider_that_a_preset_held_can_be_moved_again(self):
        page = Page(Race())
        held = page.ask(gpu="T4")
        assert held["values"]["lanes"] == held["limits"]["lanes"]["low"] == held["limits"]["lanes"]["high"] == 2560
        free = page.ask(gpu=TOY)
        assert free["values"]["lanes"] == 256
        assert free["limits"]["lanes"]["high"] == 21_760

    def test_the_default_state_makes_the_point(self):
        sim = Race()
        assert isinstance(sim.result, Contest)
        assert sim.values == DEFAULT
        assert sim.picture.title == "The GPU’s 256 slow lanes are 2.1 × as fast as 8 fast CPU lanes"
        assert "32 of 128 tasks done; 8 at work" in sim.svg()
        assert "0 of 128 tasks done; 128 at work" in sim.svg()

    def test_whole_warps_run_and_lanes_without_a_task_are_told(self):
        assert Race(tasks=100).result.gpu_side.working(Race(tasks=100).result.now) == 100
        assert "100 at work, 28 of their warp idle" in Race(tasks=100).svg()
        assert "idle" not in Race(tasks=128).svg()

    def test_amdahls_limit_is_drawn_where_there_is_one(self):
        assert "holds both below" not in Race().svg()
        assert Race(serial=10).svg().count('stroke-dasharray="2 4"') == Race().svg().count('stroke-dasharray="2 4"') + 1

    @pytest.mark.parametrize("gpu", SHOWN)
    def test_a_preset_holds_its_lanes_and_has_its_own_link(self, gpu):
        result = Race(gpu=gpu).result
        assert result.lanes == SHOWN[gpu].fp32_lanes
        copy = rates.rates_of(gpu).copy_us * 1e-6 + 128_000 / (rates.rates_of(gpu).pinned_gbps * 1e9)
        assert result.gpu_side.spent("copy in") == pytest.approx(copy)
        rows = {name: source for name, _, source in result.rows()}
        assert rows["GPU lanes"] == "recorded: data sheet"
        assert rows["GPU, time"].startswith("virtual")

    def test_the_toy_gives_its_lanes_back_after_a_preset(self):
        sim = Race(lanes=512)
        sim.set(gpu="H100")
        assert sim.values["lanes"] == 16_896
        sim.set(gpu=TOY)
        assert sim.values["lanes"] == 512
        assert limits(sim.values)["lanes"][:2] == (32, 21_760)

    @pytest.mark.parametrize(("factor", "shown"), [(2.13, "2.1 ×"), (9.96, "10 ×"), (18_944.0, "18,944 ×")])
    def test_factors_in_words(self, factor, shown):
        assert times(factor) == shown


class TestTouch:
    def test_the_states_are_won_by_the_gpu_then_the_cpu_then_a_larger_gpu(self):
        shown, lanes, large = (race(**Race(**state.values).values) for state in Race.states)
        assert shown.speedup > 2
        assert shown.simd_cpu.seconds < shown.gpu_side.seconds / 7  # "the CPU’s 256" would win
        assert "GPU ahead from about 49 tasks" in Race().svg()
        assert lanes.speedup < 1 / 7
        assert lanes.finding.startswith("The CPU is 7.7 × as fast")
        assert large.speedup > 8
        assert large.tasks > large.crossover
        assert "it is ahead from about" in large.finding

    def grip(self, simulator, name):
        (marks,) = re.findall(f'<g data-drag="{name}"(.*?)>', simulator.picture.inner())
        known = dict(re.findall(r'data-(\w+)="([^"]*)"', marks))
        return known["log"] == "1", *(float(known[key]) for key in ("from", "to", "low", "high"))

    @pytest.mark.parametrize("tasks", [1, 49, 128, 100_000])
    def test_the_dots_are_dragged_where_their_tasks_are_drawn(self, tasks):
        sim = Race(tasks=tasks)
        log, start, end, low, high = self.grip(sim, "tasks")
        drawn = {float(x) for x in re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="7"', sim.picture.inner())}
        assert len(drawn) == 1
        share = (drawn.pop() - start) / (end - start)
        assert log
        assert low * (high / low) ** share == pytest.approx(tasks, rel=0.002)

    @pytest.mark.parametrize("values", [{}, {"simd": 32}, {"gpu": "H100"}, {"tasks": 1}])
    @pytest.mark.parametrize("time", [0, 30, 100])
    def test_the_moment_is_dragged_where_it_is_drawn(self, values, time):
        sim = Race(**values, time=time)
        log, start, end, low, high = self.grip(sim, "time")
        x = float(re.search(r'data-drag="time".*?<line x1="([\d.]+)"', sim.picture.inner())[1])
        assert not log
        assert low + (x - start) / (end - start) * (high - low) == pytest.approx(time, abs=0.1)

    def test_a_click_goes_to_the_crossover(self):
        page = Page(Race())
        (tasks,) = re.findall(r'data-set=\'{"tasks": (\d+)}', page.view["svg"])
        assert int(tasks) == page.simulator.result.crossover == 49
        page.ask(tasks=49)
        assert page.simulator.result.speedup > 1
        page.ask(tasks=48)
        assert page.simulator.result.speedup <= 1

    @pytest.mark.parametrize(
        ("values", "gpu", "curve"),
        [
            ({}, "toy GPU", "CPU, 1 lane per core"),
            ({"simd": 8, "gpu": "A100-80"}, "GPU: A100-80", "CPU, 8 lanes per core"),
            ({"simd": 32}, "toy GPU", "CPU"),
        ],
    )
    def test_the_gpu_in_use_and_the_cpus_lanes_are_named(self, values, gpu, curve):
        found = re.findall(r">((?:toy )?[GC]PU(?:: .*?|, \d+ lanes? per core)?)<", Race(**values).picture.inner())
        assert sorted(found) == sorted(["CPU", gpu, curve, "GPU"])

    @whole_range
    def test_names_of_curves_stay_beside_the_plot_and_apart(self, values):
        inner = Race.draw(Contest(**values)).inner()
        ys = [float(y) for y in re.findall(rf'<text x="{RIGHT + 8:g}" y="([\d.]+)"', inner)]
        assert len(ys) == 2 + bool(values["serial"])
        assert all(low - high >= 16.9 for high, low in itertools.pairwise(ys))
        assert ys[0] >= TOP
        assert ys[-1] <= BOTTOM + 5


class TestBadValues:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"lanes": 100}, "lanes is 100; it must be a multiple of 32"),
            ({"gpu": "A100-80", "lanes": 256}, "lanes must be from 6912 to 6912: A100-80 has 6,912 lanes"),
        ],
    )
    def test_are_named_with_what_would_be_right(self, values, message):
        with pytest.raises(ValueError, match=r"race|lanes") as caught:
            Race(**values)
        assert message in str(caught.value)


class TestHelpers:
    @pytest.mark.parametrize(
        ("seconds", "shown"),
        [(0, "0 ns"), (5.4e-8, "54 ns"), (2.06e-6, "2.1 µs"), (9.96e-6, "10 µs"), (9.999e-4, "1.0 ms"), (311, "311 s")],
    )
    def test_durations_have_their_own_unit(self, seconds, shown):
        assert duration(seconds) == shown

    def test_thousands_are_set_apart(self):
        assert [many(1, "task"), many(12_345, "lane")] == ["1 task", "12,345 lanes"]

    def test_a_row_of_marks_ends_with_its_last_mark(self):
        row = ET.fromstring(svg.marks(10, 20, 4, pitch=6, height=8, fill="#000000", gap=2))
        assert row.get("d") == "M10 24h22"
        assert (row.get("stroke-width"), row.get("stroke-dasharray")) == ("8", "4 2")
        assert svg.marks(0, 0, 0, pitch=6, height=8, fill="#000000") == ""

    def test_boxes_are_one_path_without_the_empty_ones(self):
        path = ET.fromstring(svg.boxes([(1, 2, 3, 4), (5, 6, 0, 4), (7, 8, 9, 10)], fill="#000000"))
        assert path.get("d") == "M1 2h3v4h-3zM7 8h9v10h-9z"
        assert svg.boxes([], fill="#000000") == ""
