import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from gpulab.sim.base.lanes import total
from gpulab.sim.launch_queue.controls import LaunchQueue
from gpulab.sim.launch_queue.model import MODES, STEPS, Work, addition_us, run, seconds
from gpulab.sim.launch_queue.picture import LEFT, RIGHT, _lanes
from gpulab.sim.launch_queue.result import FRAMES, simulate
from virtualgpu.clock import rates
from virtualgpu.pictures import svg

from . import hands, states

US = 1e-6
EAGER = Work(launch=5, kernel=20, kernels=24, item=0, streams=1, filling=True, mode="eager")
LATENCY = rates.rates_of("T4").launch_us * US  # from a launch to the start of its kernel on an idle GPU
COPY = rates.rates_of("T4").copy_us * US


whole_range = states.whole_range(LaunchQueue, examples=60)


DEFAULT = {control.name: control.value for control in LaunchQueue.controls}


class TestByHand:
    def test_the_default_state_is_a_timer_that_lies(self):
        sim = LaunchQueue()
        assert sim.result.timer == pytest.approx(24 * 5 * US)
        assert sim.result.step == pytest.approx(24 * 20 * US, rel=0.01)
        assert sim.result.finding == "Without synchronize a timer reads 120 µs a step, but the GPU takes 482 µs"
        assert sim.result.moment == pytest.approx(sim.result.run.unsynchronised, rel=0.01)

    def test_host_and_gpu_keep_step_only_where_both_are_as_fast(self):
        behind, even, ahead = (LaunchQueue(kernel=kernel).result.finding for kernel in (6, 5, 4))
        assert "a timer reads 120 µs a step, but the GPU takes 146 µs" in behind
        assert even.startswith("Host and GPU keep step")
        assert ahead.startswith("Launch-bound: the GPU computes 79% of the time")

    def test_the_gpu_works_off_what_was_launched(self):
        done = run(EAGER)
        assert len(done.launches) == len(done.kernels) == STEPS * 24
        assert done.unsynchronised == pytest.approx(STEPS * 24 * 5 * US)
        assert done.kernels[0][0] == pytest.approx(5 * US + LATENCY)
        assert done.kernels[-1][1] == pytest.approx(5 * US + LATENCY + STEPS * 24 * 20 * US)
        assert done.end == pytest.approx(done.kernels[-1][1])

    def test_launch_bound_the_gpu_waits_for_every_launch(self):
        result = simulate(**DEFAULT | {"kernel": 1, "launch": 10})
        gaps = [two[0] - one[1] for one, two in zip(result.run.kernels, result.run.kernels[1:], strict=False)]
        assert gaps == pytest.approx([9 * US] * len(gaps))
        assert result.running == pytest.approx(0.1, rel=0.01)
        assert result.finding == ("Launch-bound: the GPU computes 10% of the time and waits the rest")
        assert result.timer == pytest.approx(result.step, rel=0.01)  # the timer is right by accident

    def test_an_item_waits_for_the_kernels_and_the_copy(self):
        work = replace(EAGER, item=1)
        done = run(work)
        assert len(done.items) == len(done.copies) == STEPS
        launched = 24 * 5 * US + 5 * US
        computed = 5 * US + LATENCY + 24 * 20 * US
        assert done.items[0] == pytest.approx((launched, computed + COPY), abs=1e-9)
        # then all begins anew: the GPU idles for the copy, a launch and its way to the GPU
        assert done.kernels[24][0] - done.kernels[23][1] == pytest.approx(COPY + 5 * US + LATENCY, abs=1e-9)
        assert done.end - seconds(EAGER) == pytest.approx((STEPS - 1) * (COPY + 5 * US + LATENCY) + COPY, abs=2 * US)

    def test_after_the_last_item_the_timer_is_right(self):
        result = simulate(**DEFAULT | {"item": 6})
        assert result.timer == pytest.approx(result.step, rel=0.01)
        assert simulate(**DEFAULT | {"item": 1}).run.unsynchronised == pytest.approx(
            simulate(**DEFAULT | {"item": 1}).run.end, rel=0.01
        )

    def test_a_graph_is_one_launch(self):
        result = simulate(**DEFAULT | {"mode": "graph", "kernel": 3})
        assert len(result.run.launches) == STEPS
        assert result.step == pytest.approx(24 * 3 * US, rel=0.05)
        assert simulate(**DEFAULT | {"kernel": 3}).step == pytest.approx(24 * 5 * US, rel=0.05)

    @pytest.mark.parametrize(
        ("kernels", "fused"), [(1, [3]), (2, [3, 3]), (3, [3, 4]), (4, [3, 5]), (8, [3, 5, 3, 5]), (9, [3, 5, 3, 5, 3])]
    )
    def test_fusing_moves_each_tensor_between_operations_no_more(self, kernels, fused):
        work = replace(EAGER, kernel=3, kernels=kernels, mode="compile")
        assert work.durations == pytest.approx([part * US for part in fused])

    def test_streams_gain_where_a_kernel_leaves_room(self):
        small = replace(EAGER, streams=4, filling=False)
        assert seconds(replace(EAGER, streams=4)) >= seconds(EAGER)
        assert seconds(small) < 0.4 * seconds(EAGER)
        bound = replace(EAGER, kernel=1, launch=20)
        assert seconds(replace(bound, streams=4, filling=False)) >= seconds(bound)

    def test_a_kernel_running_all_the_time_may_leave_most_of_the_gpu_idle(self):
        result = simulate(**DEFAULT | {"fills": "quarter"})
        assert result.running > 0.99
        assert result.used == pytest.approx(result.running / 4)
        alone = simulate(**DEFAULT | {"fills": "quarter", "kernel": 5})
        assert alone.finding == "A kernel runs 99% of the time, yet 25% of the GPU’s capacity is in use"

    def test_the_host_waits_when_the_queue_holds_1024_launches(self):
        done = run(replace(EAGER, kernels=200, kernel=200))
        began, _ = done.full[0]
        waiting = sum(end <= began for _, end in done.launches) - sum(end <= began for _, end in done.kernels)
        assert 1022 <= waiting <= 1025
        assert len(done.launches) == STEPS * 200
        assert not run(replace(EAGER, kernels=170, kernel=200)).full

    def test_the_host_is_ahead_by_what_is_queued(self):
        done = run(EAGER)
        at, behind = done.backlog[-1]
        assert at == pytest.approx(done.unsynchronised)
        assert behind == pytest.approx(done.end - at)
        assert done.behind(at) == pytest.approx(behind)
        assert done.behind(0) == 0
        assert done.behind(done.end) == 0


class TestPresets:
    @pytest.mark.parametrize("gpu", ["T4", "A100-80"])
    def test_the_addition_takes_what_the_virtual_gpu_takes(self, gpu):
        torch = pytest.importorskip("torch")
        from gpulab import VirtualGPU
        from virtualgpu.scope import in_force

        with VirtualGPU(gpu, compute=False):
            x, y = (torch.zeros(512, 1024, device="cuda") for _ in range(2))
            for _ in range(5):
                before = in_force.current.clock.busy(0)
                z = x + y
                del z
                took = in_force.current.clock.busy(0) - before
        assert addition_us(gpu) == round(took * 1e6)

    def test_a_chosen_gpu_holds_the_kernel_time(self):
        sim = LaunchQueue(gpu="T4")
        assert sim.values["kernel"] == addition_us("T4") == 31
        with pytest.raises(ValueError, match="adding two 512 × 1024 fp32 tensors takes 31 µs on Tesla T4"):
            sim.set(kernel=50)
        sim.set(gpu="")
        assert sim.values["kernel"] == 20

    def test_the_same_work_is_launch_bound_on_a_faster_gpu(self):
        assert LaunchQueue(gpu="T4").result.running > 0.99
        assert LaunchQueue(gpu="H200", launch=10).result.finding.startswith("Launch-bound")


class TestOverTheWholeRange:
    @whole_range
    def test_times_add_up(self, values):
        result = simulate(**values)
        done = result.run
        assert 0 < done.unsynchronised <= done.end
        assert total(done.launches) + total(done.items) + total(done.full) <= done.unsynchronised * (1 + 1e-9)
        assert 0 <= result.used <= result.running * (1 + 1e-9) <= 1 + 1e-6
        assert 0 <= result.launching <= 1 + 1e-9
        assert sum(end - start for start, end in done.kernels) == pytest.approx(STEPS * sum(result.work.durations))
        assert all(behind >= 0 for _, behind in done.backlog)

    @whole_range
    def test_what_is_launched_runs_later_and_in_order(self, values):
        done = simulate(**values).run
        for (_, launched), (start, end) in zip(done.launches, done.kernels, strict=True):
            assert launched <= start < end <= done.end * (1 + 1e-9)
        for stream in set(done.streams):
            mine = [kernel for kernel, where in zip(done.kernels, done.streams, strict=True) if where == stream]
            assert all(one[1] <= two[0] + 1e-12 for one, two in itertools.pairwise(mine))
        if values["fills"] == "all":
            ordered = sorted(done.kernels)
            assert all(one[1] <= two[0] + 1e-12 for one, two in itertools.pairwise(ordered))

    @whole_range
    def test_reading_values_never_makes_it_faster_and_fewer_launches_never_slower(self, values):
        result = simulate(**values)
        assert result.item_cost >= -1e-12
        eager, compiled, graph, both = result.modes
        assert graph <= eager * (1 + 1e-9)
        assert both <= compiled * (1 + 1e-9)
        if values["streams"] == 1:  # else fewer kernels may also be fewer side by side
            assert compiled <= eager * (1 + 1e-9)

    @pytest.mark.parametrize("argument", ["launch", "kernel"])
    def test_longer_launches_and_kernels_make_longer_steps(self, argument):
        steps = [simulate(**DEFAULT | {argument: value}).step for value in (1, 5, 20, 50)]
        assert steps == sorted(steps)


class TestPicture:
    def test_play_moves_the_moment_and_nothing_else(self):
        sim = LaunchQueue()
        still = []
        for moment in (0, 50, 100):
            sim.set(moment=moment)
            still.append((_lanes(sim.result.run, 1), sim.result.finding, sim.result.step))
        assert still[0] == still[1] == still[2]
        assert "all is done" in sim.svg()

    @pytest.mark.parametrize("moment", [10, 25, 60, 93])
    def test_the_moments_line_cuts_no_name_of_a_step(self, moment):
        picture = LaunchQueue(moment=moment).picture
        now = hands.grip(picture, "moment").at(moment)
        for element in ET.fromstring(picture.inner()).iter():
            if (element.text or "").startswith("step ") and element.get("text-anchor") == "middle":
                half = svg.length(element.text, svg.SMALL) / 2
                assert abs(float(element.get("x")) - now) > half

    def test_a_timer_that_is_wrong_has_a_cross(self):
        for item, signs in ((0, ["✗", "✓"]), (1, ["✓"])):
            assert re.findall(">([✓✗]) timer reads", LaunchQueue(item=item).svg()) == signs

    def test_every_stream_has_its_lane(self):
        assert "4 streams" in LaunchQueue(streams=4).svg()
        one, four = (LaunchQueue(streams=streams).svg().count('fill-opacity="0.6"') for streams in (1, 4))
        assert four - one == 3

    def test_waiting_differs_by_more_than_colour(self):
        assert "waits" in LaunchQueue(item=1).svg()
        without, with_waits = (LaunchQueue(item=item).svg().count('fill="none"/>') for item in (0, 1))
        assert with_waits > without  # strokes of a hatch

    def test_every_number_of_time_is_virtual(self):
        for name, value, source in LaunchQueue().result.rows():
            assert source == ("" if name == "kernels per step" else "virtual"), (name, value)

    def test_it_says_what_it_leaves_out(self):
        assert "compile is a toy" in LaunchQueue().svg()


class TestStates:
    def test_a_timer_that_lies(self):
        result = LaunchQueue(**LaunchQueue.states[0].values).result
        assert result.timer < 0.3 * result.step
        assert result.finding.startswith("Without synchronize a timer reads")
        assert LaunchQueue.states[0].values.items() <= LaunchQueue().values.items()  # it opens with it

    def test_launch_bound_and_a_graph_mends_it(self):
        result = LaunchQueue(**LaunchQueue.states[1].values).result
        assert result.running < 0.3
        assert result.finding.startswith("Launch-bound")
        assert result.modes[2] < 0.4 * result.modes[0]  # what its note says: click CUDA graph

    def test_item_lets_the_gpu_run_dry(self):
        state = LaunchQueue.states[2].values
        result = LaunchQueue(**state).result
        assert result.finding.startswith("Each .item() leaves the GPU idle")
        assert result.running < 0.7 < 0.95 < simulate(**DEFAULT | state | {"item": 0}).running


class TestTouched:
    @pytest.mark.parametrize("moment", [0, 30, 100])
    def test_the_playhead_is_where_the_lanes_are_touched(self, moment):
        sim = LaunchQueue(moment=moment)
        grip = hands.grip(sim.picture, "moment")
        assert (grip.low, grip.high) == (0, FRAMES)
        assert f'x1="{grip.at(moment):.1f}"'.replace(".0", "") in "".join(sim.picture.body)
        start, end = LEFT, RIGHT  # of the axis: the first launch and the end of the run
        assert (grip.start, grip.end) == (start, end)

    def test_each_mode_is_chosen_by_its_row(self):
        assert hands.clicks(LaunchQueue().picture) == [{"mode": mode} for mode in MODES]

    def test_a_kernel_tells_its_fate(self):
        sim = LaunchQueue()
        names = hands.names(sim.picture)
        assert len(names) == STEPS * 24
        # the second kernel: launched after 10 µs, and the first runs from 5 µs + latency for 20 µs
        waits = 5 + LATENCY / US + 20 - 10
        assert names[1] == (
            f"step 1, kernel 2: launched at 10 µs, waited {waits:.0f} µs, started at {waits + 10:.0f} µs"
        )
        assert not hands.names(LaunchQueue(kernels=200).picture)  # too thin to be pointed at

    def test_the_one_that_runs_is_told_at_the_moment(self):
        sim = LaunchQueue(moment=50)
        start, end = sim.result.run.kernels[sim.result.at_work]
        assert start <= sim.result.moment < end
        assert f"{sim.result.name(sim.result.at_work)} runs; " in sim.svg()
        assert f"{sim.result.name(sim.result.at_work).split(', ')[1]} waited " in sim.svg()
        assert "the GPU has nothing to run" in LaunchQueue(**LaunchQueue.states[1].values).svg()
        assert LaunchQueue(moment=0).result.at_work is None
        assert LaunchQueue(mode="graph", moment=50).result.name(2) == "step 3"
