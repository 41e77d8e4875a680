import itertools
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import strategies as st

from gpulab.sim.allreduce.controls import AllReduce
from gpulab.sim.allreduce.model import (
    LINKS,
    MOST_GPUS,
    ONCE_US,
    Link,
    Work,
    data_parallel,
    data_parallel_seconds,
    ddp,
    ddp_seconds,
    held,
    hops,
    sends,
    sent_bytes,
)
from gpulab.sim.allreduce.picture import LEFT, PIECES, PIECES_HIGH, PIECES_TOP, RIGHT, draw
from gpulab.sim.allreduce.result import FRAMES, simulate
from gpulab.sim.base.simulator import Flag, Slider
from virtualgpu.gpus.specs import SPECS
from virtualgpu.pictures import style, svg

from . import hands, states

MIB = 2**20
DEFAULT = {control.name: control.value for control in AllReduce.controls}


def of_control(control):
    if isinstance(control, Slider):
        return st.integers(control.low, control.high)
    return st.booleans() if isinstance(control, Flag) else st.sampled_from(list(control.options))


whole_range = states.whole_range(AllReduce)


def at(**values):
    return simulate(**DEFAULT | values)


class TestTheRing:
    @pytest.mark.parametrize("gpus", range(1, MOST_GPUS + 1))
    def test_handing_pieces_on_sums_them_everywhere(self, gpus):
        """The algorithm itself on numbers: what `sends` says, done with what is there, gives what `held` says."""
        own = [[Fraction(gpu * 100 + piece, 7) for piece in range(gpus)] for gpu in range(gpus)]
        inside = [[{gpu} for _ in range(gpus)] for gpu in range(gpus)]
        sent = [0] * gpus
        for done in range(hops(gpus)):
            assert [[len(cell) for cell in row] for row in inside] == [
                [held(gpu, piece, gpus, done) for piece in range(gpus)] for gpu in range(gpus)
            ]
            messages = [(gpu, sends(gpu, gpus, done)) for gpu in range(gpus)]
            carried = [(own[gpu][piece], set(inside[gpu][piece])) for gpu, piece in messages]
            for (gpu, piece), (value, members) in zip(messages, carried, strict=True):
                to = (gpu + 1) % gpus
                sent[gpu] += 1
                if done < gpus - 1:
                    assert not inside[to][piece] & members, "no gradient is added twice"
                    own[to][piece] += value
                    inside[to][piece] |= members
                else:
                    own[to][piece], inside[to][piece] = value, members
        sums = [sum(Fraction(gpu * 100 + piece, 7) for gpu in range(gpus)) for piece in range(gpus)]
        assert own == [sums] * gpus
        assert all(held(gpu, piece, gpus, hops(gpus)) == gpus for gpu in range(gpus) for piece in range(gpus))
        assert [pieces / gpus for pieces in sent] == [sent_bytes(1, gpus)] * gpus

    @pytest.mark.parametrize(("gpus", "factor"), [(1, 0), (2, 1), (4, 1.5), (8, 1.75), (16, 1.875)])
    def test_each_gpu_sends_two_n_minus_one_over_n_of_the_bytes(self, gpus, factor):
        assert sent_bytes(1000, gpus) == pytest.approx(2 * (gpus - 1) / gpus * 1000) == pytest.approx(factor * 1000)
        assert at(gpus=gpus).sent_bytes == pytest.approx(factor * 4 * 124e6)

    def test_the_table_says_so(self):
        assert "828 MiB = 1.75 × the gradients" in str(at())


class TestLinks:
    @pytest.mark.parametrize(
        ("name", "gbps"),
        [
            ("nvlink5", 900),
            ("nvlink4", 450),
            ("nvlink3", 300),
            ("nvlink2", 150),
            ("pcie5", 64),
            ("pcie4", 32),
            ("pcie3", 16),
            ("ethernet100", 12.5),
            ("ethernet25", 3.125),
            ("ethernet10", 1.25),
        ],
    )
    def test_one_way_is_half_of_the_vendors_figure(self, name, gbps):
        assert LINKS[name].one_way_gbps == gbps
        assert LINKS[name].reached_gbps == pytest.approx(0.75 * gbps)

    def test_they_are_those_of_the_specs(self):
        assert LINKS["nvlink4"].one_way_gbps == SPECS["H100"].gpu_link.one_way_gbps
        assert LINKS["pcie3"].one_way_gbps == SPECS["T4"].host_link.one_way_gbps

    def test_without_peer_to_peer_bytes_cross_pcie_twice(self):
        assert LINKS["pcie4"].gbps(False) == pytest.approx(12)
        assert LINKS["nvlink3"].gbps(False) == LINKS["pcie4"].gbps(False)
        assert LINKS["pcie4"].hop(False) == 2 * LINKS["pcie4"].hop(True)

    def test_between_machines_it_changes_nothing(self):
        assert at(link="ethernet10", peer=False).seconds == at(link="ethernet10").seconds


ROUND = Link("a link of 1 GB/s", 1, 1.0, 0.5, 0.0)
# 4 buckets of 100 MB, one every 100 ms from 200 ms + 100 ms on
WORK = Work(400_000_000, 0.6, 100_000_000, 0, ROUND, True)
ONCE = ONCE_US * 1e-6


class TestByHand:
    def test_buckets_beside_backward(self):
        # on two GPUs a bucket takes the ring 100 ms, just as long as backward needs for the next
        buckets = ddp(replace(WORK), 2)
        assert [bucket.ready for bucket in buckets] == pytest.approx([0.3, 0.4, 0.5, 0.6])
        assert [bucket.end for bucket in buckets] == pytest.approx([0.4, 0.5, 0.6, 0.7], abs=5 * ONCE)
        assert ddp_seconds(WORK, 2) == buckets[-1].end

    def test_a_ring_that_falls_behind(self):
        # three halves of 100 ms each on four GPUs: four of them after 300 ms
        buckets = ddp(WORK, 4)
        assert buckets[-1].end == pytest.approx(0.3 + 4 * 0.15 + 4 * ONCE)
        assert ddp_seconds(WORK, 4) == pytest.approx(buckets[-1].end)

    def test_one_bucket_waits_for_all_of_backward(self):
        whole = replace(WORK, bucket_bytes=400_000_000)
        assert ddp(whole, 2)[0].ready == pytest.approx(0.6)
        assert ddp_seconds(whole, 2) == pytest.approx(1.0 + ONCE)

    def test_data_parallel_overlaps_nothing(self):
        # 400 MB out and 400 MB in, 50 MB from each of three others in, and as much back; 39 pieces of 10 MiB
        copies = data_parallel(replace(WORK, output_bytes=50_000_000), 4)
        assert copies.weights == copies.gradients == pytest.approx(0.4 + 39 * ONCE)
        assert copies.outputs == copies.output_gradients == pytest.approx(0.15)

    def test_the_default_on_pcie_4(self):
        step = at()
        assert len(step.buckets) == math.ceil(4 * 124e6 / (25 * MIB)) == 19
        by_hand = 1.75 * 4 * 124e6 / 24e9 + 19 * (8.4e-6 + 14 * 5.7e-6)
        assert step.ring == pytest.approx(by_hand)
        rest = 4 * 124e6 - 18 * 25 * MIB
        assert step.seconds == pytest.approx(0.1 + 1.75 * rest / 24e9 + 8.4e-6 + 14 * 5.7e-6)

    def test_ten_gigabits_make_eight_gpus_slower_than_one(self):
        step = at(link="ethernet10")
        assert step.seconds > 1.75 * 4 * 124e6 / (0.75 * 1.25e9) == pytest.approx(0.926, abs=0.001)
        assert step.finding.startswith("8 GPUs are slower than one")

    def test_forward_is_a_third_of_the_computing(self):
        assert at().work.forward == pytest.approx(0.1 / 3)


class TestFindings:
    def test_the_default_makes_the_point(self):
        sim = AllReduce()
        assert sim.result.finding == "8 GPUs do the work of 7.85: backward hides 95% of the all-reduce"
        assert sim.picture.title == sim.result.finding

    def test_one_gpu_sends_nothing(self):
        step = at(gpus=1)
        assert step.finding == "One GPU has nothing to send: its step takes the 100 ms of its computing"
        assert step.seconds == step.data_parallel_seconds == step.work.compute
        assert step.ring == step.hidden == 0

    def test_one_bucket_hides_nothing(self):
        step = at(bucket="all")
        assert step.finding.startswith("8 GPUs do the work of 5.87: the only bucket is full when backward ends")
        assert step.hidden == 0
        assert step.seconds > at().seconds

    def test_a_small_model_needs_no_overlap(self):
        assert at(parameters=1, gpus=3, link="nvlink5").finding.endswith(
            "the only bucket goes round in 30 µs after backward"
        )

    def test_tiny_buckets_cost_latency(self):
        step = at(bucket=1, link="nvlink2", gpus=16, compute=40)
        assert step.finding.endswith("with so many buckets 86% of the all-reduce is latency")
        assert step.seconds > at(link="nvlink2", gpus=16, compute=40).seconds

    def test_no_peer_to_peer(self):
        assert at(peer=False, compute=80).finding.endswith(": the all-reduce takes 1.42 times as long as backward")

    def test_data_parallel_cannot_leave_its_machine(self):
        step = at(link="ethernet100")
        assert step.data_parallel_seconds is None
        assert "cannot leave its machine" in str(step)
        assert "cannot leave its machine" in AllReduce(link="ethernet100").svg()


class TestOverTheWholeRange:
    @whole_range
    def test_the_ring_takes_one_bucket_at_a_time_once_it_is_full(self, values):
        step = simulate(**values)
        done = 0.0
        for bucket in step.buckets:
            assert bucket.start >= max(bucket.ready, done)
            assert bucket.end >= bucket.start
            done = bucket.end
        assert step.buckets[-1].ready == pytest.approx(step.work.compute)
        assert step.seconds == pytest.approx(max(step.work.compute, done))

    @whole_range
    def test_buckets_hold_all_gradients(self, values):
        work = simulate(**values).work
        assert 0 < work.last_bytes <= work.bucket_bytes
        assert (work.buckets - 1) * work.bucket_bytes + work.last_bytes == work.gradient_bytes

    @whole_range
    def test_the_short_way_to_the_end_is_right(self, values):
        step = simulate(**values)
        for gpus in range(1, MOST_GPUS + 1):
            end = max(step.work.compute, ddp(step.work, gpus)[-1].end) if gpus in (2, 7, 16) else None
            assert end is None or ddp_seconds(step.work, gpus) == pytest.approx(end)
        assert ddp_seconds(step.work, step.gpus) == pytest.approx(step.seconds)

    @whole_range
    def test_times_add_up(self, values):
        step = simulate(**values)
        assert 0 <= step.exposed <= step.ring + 1e-12
        assert 0 <= step.hidden <= 1
        assert step.latency <= step.ring + 1e-12
        assert step.exposed == pytest.approx(step.ring * (1 - step.hidden), abs=1e-9)
        assert 0 < step.speedup <= step.gpus + 1e-9
        bound = step.sent_bytes / step.work.rate
        assert step.seconds >= max(step.work.compute, bound)
        if step.copies:
            assert step.data_parallel_seconds == pytest.approx(step.work.compute + sum(step.copies))
            assert all(seconds >= 0 for seconds in step.copies)

    @whole_range
    def test_what_never_helps(self, values):
        step = simulate(**values)
        for worse in (
            {"peer": False},
            {"compute": min(1000, values["compute"] + 50)},
        ):
            assert simulate(**values | worse).seconds >= step.seconds - 1e-12
        # a larger model may end with a smaller bucket, and so sooner; its ring has more to do all the same
        assert simulate(**values | {"parameters": min(1000, values["parameters"] + 1)}).ring >= step.ring - 1e-12
        order = list(LINKS)
        slower = order[min(order.index(values["link"]) + 1, len(order) - 1)]
        if values["peer"]:
            assert simulate(**values | {"link": slower}).seconds >= step.seconds - 1e-12

    @whole_range
    def test_with_the_default_bucket_ddp_is_never_the_slower(self, values):
        step = simulate(**values | {"bucket": 25})
        other = step.data_parallel_seconds
        assert other is None or step.seconds <= other

    @whole_range
    def test_data_parallel_is_absent_only_between_machines(self, values):
        step = simulate(**values)
        assert (step.copies is None) == (values["link"].startswith("ethernet") and values["gpus"] > 1)
        assert data_parallel_seconds(step.work, 1) == step.work.compute

    @whole_range
    def test_curves_stay_on_their_plots(self, values):
        check_points(draw(simulate(**values)).text())


def check_points(document: str) -> None:
    """No curve leaves the picture sideways."""
    root = ET.fromstring(document)
    width = float(root.get("viewBox").split()[2])
    for element in root.iter():
        for x in re.findall(r"(-?[\d.]+),", element.get("points", "")):
            assert 0 <= float(x) <= width


class TestPlay:
    @pytest.mark.parametrize("gpus", [2, 5, 16])
    def test_the_ring_goes_round_while_it_is_at_work(self, gpus):
        done = [at(gpus=gpus, moment=moment).hops_done for moment in range(FRAMES + 1)]
        idle = [step for step in done if step is None]
        working = done[len(idle) :]
        assert idle
        assert working == sorted(working)
        assert working[0] == 0
        assert working[-1] == hops(gpus)

    def test_each_frame_differs_from_the_one_before(self):
        pictures = [AllReduce(moment=moment).svg() for moment in range(FRAMES + 1)]
        assert all(a != b for a, b in itertools.pairwise(pictures))

    def test_what_it_says_of_the_hop(self):
        assert "no bucket is full yet" in AllReduce(moment=0).svg()
        assert "hop 6 of 14, reduce-scatter" in AllReduce().svg()
        assert "all-gather: finished sums go round" in AllReduce(moment=90).svg()
        assert "done: every GPU has the sum of all 8" in AllReduce(moment=100).svg()

    @pytest.mark.parametrize("gpus", [1, 2, 8, 16])
    def test_in_the_end_every_gpu_has_all_pieces(self, gpus):
        assert pieces(AllReduce(gpus=gpus, moment=100), style.GREEN) == gpus * gpus
        assert pieces(AllReduce(gpus=gpus, moment=100), style.PURPLE) == 0
        assert pieces(AllReduce(gpus=gpus, moment=0), style.GREEN) == 0

    @pytest.mark.parametrize("moment", [40, 62, 90])
    def test_a_head_stands_at_the_piece_that_gets_what_the_gpu_above_hands_on(self, moment):
        tips, done = heads(moment), at(moment=moment).hops_done
        rows = [(y - PIECES_TOP) / (PIECES_HIGH / 8) for _, y in tips]
        assert rows == pytest.approx([1, 2, 3, 4, 5, 6, 7, 0], abs=0.01), "below each GPU, and from the last to GPU 0"
        assert [int((x - PIECES) / 42) for x, _ in tips] == [sends(gpu, 8, done) for gpu in range(8)]

    @pytest.mark.parametrize("gpus", [2, 8, 16])
    def test_only_pieces_that_travel_say_of_how_many_gpus_they_are_the_sum(self, gpus):
        for moment in (0, 62, 100):
            sim = AllReduce(gpus=gpus, moment=moment)
            moving = gpus <= 8 and moment == 62  # more have no room; each is sent by one and received by another
            assert numbers(sim) == (2 * gpus if moving else 0)


def pieces(sim, fill):
    """How many pieces in the ring have this colour."""
    paths = ET.fromstring(sim.picture.inner()).iter("{http://www.w3.org/2000/svg}path")
    drawn = [path.get("d") for path in paths if path.get("fill") == fill]
    return sum(float(y) >= PIECES_TOP for path in drawn for y in re.findall(r"M\S+ (\S+?)h", path))


def numbers(sim):
    """How many pieces in the ring have a number."""
    words = ET.fromstring(sim.picture.inner()).iter("{http://www.w3.org/2000/svg}text")
    right = PIECES + 8 * 42
    return sum(float(t.get("y")) >= PIECES_TOP and PIECES < float(t.get("x")) < right for t in words)


def heads(moment):
    """Where the piece that each GPU hands on arrives, from GPU 0's to the last one's."""
    polygons = ET.fromstring(AllReduce(moment=moment).picture.inner()).iter("{http://www.w3.org/2000/svg}polygon")
    tips = [polygon.get("points").split()[-1].split(",") for polygon in polygons if polygon.get("fill") == style.INK]
    return [(float(x), float(y)) for x, y in tips]


class TestStates:
    def test_each_makes_its_point(self):
        behind, whole, slow = (AllReduce(**state.values).result for state in AllReduce.states)
        assert behind.hidden > 0.9
        assert "95% of the all-reduce" in behind.finding
        assert whole.hidden == 0
        assert "the only bucket is full when backward ends" in whole.finding
        assert slow.speedup < 1
        assert slow.finding.startswith("8 GPUs are slower than one")
        worth_seven = [name for name in LINKS if at(link=name).speedup > 7]
        assert worth_seven[-1] == "pcie3"  # what the note asks for
        assert "faster from 10 GPUs on" in AllReduce(**AllReduce.states[2].values).svg()
        assert [at(link="ethernet10", gpus=gpus).speedup > 1 for gpus in (9, 10)] == [False, True]
        assert AllReduce.states[0].values.items() <= DEFAULT.items()  # it opens with it


class TestTouched:
    @pytest.mark.parametrize("moment", [20, 60, 100])
    @pytest.mark.parametrize("link", ["pcie4", "ethernet10"])
    def test_the_playhead_runs_as_long_as_the_ddp_step(self, moment, link):
        sim = AllReduce(moment=moment, link=link)
        grip = hands.grip(sim.picture, "moment")
        longest = max(sim.result.seconds, sim.result.data_parallel_seconds or 0)
        assert (grip.low, grip.high, grip.start) == (0, FRAMES, LEFT)
        assert grip.end == pytest.approx(LEFT + (RIGHT - LEFT) * sim.result.seconds / longest, rel=1e-4)
        assert f'x1="{svg.num(grip.at(moment))}"' in "".join(sim.picture.body)

    @pytest.mark.parametrize("gpus", [1, 5, 16])
    def test_the_dot_of_the_present_number_of_gpus_is_dragged(self, gpus):
        picture = AllReduce(gpus=gpus).picture
        grip = hands.grip(picture, "gpus")
        assert (grip.low, grip.high) == (1, MOST_GPUS)
        assert f'<circle cx="{svg.num(grip.at(gpus))}"' in "".join(picture.body)

    def test_each_size_of_a_bucket_is_chosen_by_its_chip(self):
        choice = next(control for control in AllReduce.controls if control.name == "bucket")
        assert hands.clicks(AllReduce().picture) == [{"bucket": value} for value in choice.options]

    def test_a_bucket_tells_when_it_is_full_and_on_its_way(self):
        names = hands.names(AllReduce().picture)
        assert len(names) == 19
        ready, start, end = (f"{1e3 * seconds:.0f} ms" for seconds in at().buckets[-1])
        assert names[-1] == f"bucket 19 of 19: full at {ready}, in the ring from {start} to {end}"


class TestForm:
    def test_set_moves_it(self):
        sim = AllReduce()
        sim.set(link="ethernet10", gpus=4)
        assert sim.result.gpus == 4
        assert sim.picture.title.startswith("4 GPUs are slower than one")

    def test_it_says_what_is_assumed(self):
        assert "three quarters" in AllReduce.leaves_out
        assert "NCCL takes from backward" in repr(AllReduce()).replace("\n", " ")
