import itertools
import json
import multiprocessing
import time
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from courselib.patience import HANG_SECONDS

from gpulab.sim.pipeline.controls import Pipeline
from gpulab.sim.pipeline.model import (
    AHEAD,
    BATCHES,
    EPOCHS,
    MOST_WORKERS,
    PERIOD,
    SPREAD,
    START,
    Work,
    first_wait,
    run,
    shown,
    steady,
)
from gpulab.sim.pipeline.picture import LEFT, LOW, RIGHT
from gpulab.sim.pipeline.result import FRAMES, simulate
from virtualgpu.clock import rates
from virtualgpu.pictures import svg

from . import hands, states

MS = 1e-3
MIB = 2**20
GPUS = list(Pipeline.controls[0].options)
DEFAULT = {control.name: control.value for control in Pipeline.controls}
PLAIN = Work(60 * MS, 0.0, 0, 2, False, 64 * MIB, False, False, False, 25 * MS, "T4")
HOST = rates.rates_of("T4").host
PAGEABLE, PINNED = 64 * MIB / 6e9 + 8e-6, 64 * MIB / 12e9 + 8e-6  # PCIe 3 x16, and 8 µs for each copy


whole_range = states.whole_range(Pipeline, examples=40)


class TestByHand:
    def test_the_default_state_is_a_gpu_that_waits(self):
        sim = Pipeline()
        assert sim.result.step == pytest.approx(60 * MS + PAGEABLE, rel=1e-3)
        assert sim.result.finding == ("The GPU computes 35% of the time: it waits for loading and for copies")

    @pytest.mark.parametrize(
        ("choices", "step"),
        [
            ({}, 60 * MS + PAGEABLE),  # loading hides the computing, a pageable copy nothing
            ({"workers": 1}, 60 * MS),
            ({"workers": 2}, PAGEABLE + 25 * MS),  # the copy waits for the step before
            ({"workers": 8}, PAGEABLE + 25 * MS),
            ({"workers": 3, "pinned": True}, PINNED + 25 * MS),
            ({"workers": 3, "pinned": True, "non_blocking": True}, PINNED + 25 * MS),  # still one stream
            ({"workers": 3, "pinned": True, "non_blocking": True, "side": True}, 25 * MS),
            ({"workers": 2, "pinned": True, "non_blocking": True, "side": True}, 30 * MS),
            ({"workers": 3, "non_blocking": True}, PAGEABLE + 25 * MS),  # pageable memory: it waits all the same
            ({"workers": 3, "side": True}, 25 * MS),
            ({"workers": 3, "side": True, "compute": MS}, 20 * MS),
            ({"workers": 8, "side": True, "compute": MS}, PAGEABLE),
        ],
    )
    def test_a_step(self, choices, step):
        launches = 2 * (HOST.operation_us + HOST.launch_us) * 1e-6  # a copy's and a step's: at most
        found = steady(replace(PLAIN, **choices)).step
        assert step * (1 - 2e-3) <= found <= step * (1 + 1e-3) + launches

    @pytest.mark.parametrize("spread", [0.0, 0.94, 1.0])
    @pytest.mark.parametrize("prefetch", [2, 8])
    def test_batches_that_were_pinned_out_of_turn_are_no_gain_in_the_long_run(self, spread, prefetch):
        work = Work(MS, spread, 3, prefetch, False, 71 * MIB, True, False, False, MS, "T4")
        pin, gpu = 71 * MIB / 10e9, 71 * MIB / 12e9 + 8e-6 + MS  # to pin a batch; to copy it and compute
        assert steady(work).step == pytest.approx(max(pin, gpu), rel=0.03)
        assert steady(work).step >= max(pin, gpu) * (1 - 1e-9)

    @pytest.mark.parametrize(
        "work",
        [
            Work(195 * MS, 0.64, 5, 5, False, 448 * MIB, True, True, False, 2 * MS, "H200"),
            Work(92 * MS, 0.6, 3, 7, False, 283 * MIB, True, True, True, 4 * MS, "A100-80"),
            Work(5 * MS, 0.56, 8, 8, False, 188 * MIB, True, True, True, 19 * MS, "RTX4090"),
            Work(50 * MS, 1.0, 4, 1, False, 16 * MIB, True, True, True, 13 * MS, "T4"),
        ],
    )
    def test_a_step_is_that_of_a_run_of_many_thousand(self, work):
        computed = run(work, 1, 12_001, used=True).computed
        assert steady(work).step == pytest.approx((computed[12_000] - computed[1000]) / 11_000, rel=0.05)

    def test_pinning_in_the_main_process_costs_what_it_saves(self):
        pin = 64 * MIB / 10e9
        assert steady(replace(PLAIN, pinned=True)).step == pytest.approx(60 * MS + pin + PINNED, rel=1e-3)

    def test_without_workers_the_main_process_pins(self):
        done = shown(replace(PLAIN, pinned=True))
        for batch, asked in enumerate(done.asked):
            load, pin = (
                next(s for s in done.spans if (s.where, s.name) == (where, str(batch))) for where in ("main", "pin")
            )
            assert asked == load.start
            assert load.start + load.seconds == pytest.approx(pin.start)
            assert pin.start + pin.seconds == pytest.approx(done.taken[batch])

    def test_the_thread_that_pins_is_one(self):
        fast = replace(PLAIN, workers=8, load=MS, compute=MS, nbytes=256 * MIB, pinned=True, side=True)
        assert steady(fast).step == pytest.approx(256 * MIB / 10e9, rel=1e-3)

    def test_memory_is_page_locked_once(self):
        done = shown(replace(PLAIN, workers=1, pinned=True))
        pins = [span.seconds for span in done.spans if span.where == "pin"]
        assert pins[0] == pytest.approx(64 * MIB / 2e9 + 100e-6)
        assert pins[-1] == pytest.approx(64 * MIB / 10e9)

    @pytest.mark.parametrize("workers", [1, 4, 8])
    def test_the_first_batch_waits_for_all_workers_to_start(self, workers):
        work = replace(PLAIN, workers=workers)
        assert first_wait(shown(work), 0) == pytest.approx(workers * START + 60 * MS)
        assert first_wait(shown(work), 1) == pytest.approx(workers * START + 60 * MS)
        kept = shown(replace(work, persistent=True))
        assert first_wait(kept, 0) == pytest.approx(workers * START + 60 * MS)
        assert first_wait(kept, 1) == pytest.approx(60 * MS)

    def test_the_fetch_is_the_loading_without_workers_and_the_wait_with_them(self):
        assert steady(PLAIN).fetch == pytest.approx(60 * MS)
        assert steady(replace(PLAIN, workers=1)).fetch == pytest.approx(60 * MS - PAGEABLE, rel=0.01)
        assert steady(replace(PLAIN, workers=4)).fetch == pytest.approx(0)

    def test_deeper_prefetching_helps_only_where_batches_differ(self):
        even = replace(PLAIN, workers=3, side=True, prefetch=1, load=72 * MS)
        assert steady(even).step == pytest.approx(steady(replace(even, prefetch=4)).step)
        uneven = replace(even, spread=0.9)
        assert steady(replace(uneven, prefetch=4)).step < 0.95 * steady(uneven).step

    def test_loading_times_are_spread_evenly_about_their_mean(self):
        assert sorted(SPREAD) == pytest.approx([-1 + 0.2 * k for k in range(11)])
        assert SPREAD[0] == 0
        work = replace(PLAIN, spread=0.5)
        assert sum(work.loading(number) for number in range(PERIOD)) / PERIOD == pytest.approx(60 * MS)

    def test_in_the_long_run_workers_bring_batches_at_their_rate_whatever_the_spread(self):
        for workers in range(1, MOST_WORKERS + 1):
            work = replace(PLAIN, workers=workers, spread=1.0, prefetch=8, load=200 * MS, compute=MS, nbytes=MIB)
            assert steady(work).step == pytest.approx(200 * MS / workers, rel=1e-6)


class TestChoices:
    def test_each_is_the_difference_to_its_neighbour(self):
        sim = Pipeline(workers=2, spread=0)
        found = {change.name: change for change in sim.result.changes}
        assert found["side stream"].seconds == pytest.approx(30 * MS - (PAGEABLE + 25 * MS), rel=0.01)
        assert found["pin_memory"].words(sim.result.step) == "would save 5.6 ms"
        assert found["non_blocking"].words(sim.result.step) == "would save nothing"
        assert found["persistent_workers"].words(sim.result.step) == "would save 32 ms/epoch"
        sim.set(pinned=True)
        found = {change.name: change for change in sim.result.changes}
        assert found["pin_memory"].words(sim.result.step) == "on, saves 5.6 ms"

    def test_a_choice_can_cost(self):
        changes = {change.name: change for change in Pipeline().result.changes}
        assert changes["pin_memory"].words(Pipeline().result.step) == "would cost 1.1 ms"

    def test_workers_are_added_until_more_do_not_help(self):
        first = Pipeline().result.changes[0]
        assert (first.name, first.words(Pipeline().result.step)) == ("num_workers 0 → 2", "would save 35 ms")
        assert Pipeline(workers=2).result.changes[0].name == "num_workers 2 → 3"

    def test_where_more_workers_stop_helping(self):
        assert Pipeline().result.enough == 2
        assert Pipeline(side=True).result.enough == 3
        assert Pipeline(load=200, compute=1, batch=1).result.enough == MOST_WORKERS
        assert Pipeline(load=1, compute=200).result.enough == 0
        assert "no gain from 2 workers on" in Pipeline().svg()
        assert "no gain from any worker" in Pipeline(load=1, compute=200).svg()
        assert "still gaining at 8" in Pipeline(load=200, compute=1, batch=1).svg()

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"workers": 2}, "it stands still during copies of 11 ms"),
            ({"workers": 1}, "1 worker brings a batch every 60 ms, and it could take one every 36 ms"),
            ({"workers": 3, "side": True}, "After 119 ms the GPU is fed almost without a gap until the next"),
            ({"workers": 7, "side": True}, "; 3 workers would do"),
            ({"workers": 8, "side": True, "compute": 1, "load": 1}, "a copy takes 11 ms, longer than all else"),
            ({"workers": 8, "pinned": True, "compute": 1, "load": 1}, "the one thread that pins takes 6.7 ms a batch"),
            ({"workers": 3, "side": True, "prefetch": 1, "spread": 100, "load": 70}, "waits for a slow batch"),
        ],
    )
    def test_the_finding_names_what_holds_it_up(self, values, words):
        assert words in Pipeline(**values).result.finding


class TestTheLoader:
    @pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 3), (5, 2), (8, 1)])
    def test_batches_go_round_and_a_new_one_is_asked_for_when_one_is_taken(self, workers, prefetch):
        done = run(replace(PLAIN, workers=workers, prefetch=prefetch, spread=0.7), 1, 40, record=True)
        loads = sorted((int(span.name), span) for span in done.spans if span.where == "worker")
        assert [number for number, _ in loads] == list(range(40))
        for number, span in loads:
            assert span.stream == number % workers
            if number >= workers * prefetch:
                assert span.start >= done.taken[number - workers * prefetch]
            assert done.taken[number] >= span.start + span.seconds

    def test_the_host_is_at_most_a_few_steps_ahead(self):
        work = replace(PLAIN, workers=8, load=MS, pinned=True, non_blocking=True, side=True)
        done = run(work, 1, 40)
        for number in range(AHEAD + 1, 40):
            assert done.asked[number] >= done.computed[number - 1 - AHEAD]

    def test_a_real_dataloader_does_the_same(self):
        data = pytest.importorskip("torch.utils.data")
        workers, prefetch = 2, 3
        asked = multiprocessing.Value("i", 0)

        class Numbers(data.Dataset):
            def __len__(self):
                return 20

            def __getitem__(self, index):
                with asked:
                    asked.value += 1
                return index, data.get_worker_info().id

        def settles_at(count):
            end = time.monotonic() + HANG_SECONDS
            while asked.value < count and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.1)  # one more would be loaded by now
            return asked.value

        loader = data.DataLoader(
            Numbers(), batch_size=None, num_workers=workers, prefetch_factor=prefetch, multiprocessing_context="fork"
        )
        iterator = iter(loader)
        assert settles_at(workers * prefetch) == workers * prefetch
        for number in range(4):
            assert list(next(iterator)) == [number, number % workers]
            assert settles_at(workers * prefetch + number + 1) == workers * prefetch + number + 1
        iterator._shutdown_workers()


class TestOverTheWholeRange:
    @whole_range
    def test_every_batch_is_loaded_copied_and_computed_once_and_in_that_order(self, values):
        result = simulate(**values)
        done = result.run
        number = EPOCHS * BATCHES
        at = {kind: {} for kind in ("load", "pin", "to GPU", "kernels")}
        for span in done.spans:
            assert span.seconds >= 0
            assert span.start >= 0
            kind = "load" if span.where in ("worker", "main") else span.where
            if kind in at and span.name != "start":
                assert int(span.name) not in at[kind]
                at[kind][int(span.name)] = span
        for kind, spans in at.items():
            assert len(spans) == (number if kind != "pin" or values["pinned"] else 0)
        order = ["load", *(["pin"] if values["pinned"] else []), "to GPU", "kernels"]
        for batch in range(number):
            spans = [at[kind][batch] for kind in order]
            assert all(a.start + a.seconds <= b.start + 1e-9 for a, b in itertools.pairwise(spans))
        assert done.end == pytest.approx(max(done.computed), abs=1e-4)
        assert list(done.computed) == sorted(done.computed)
        ready = [done.ready(done.end * k / 7) for k in range(8)]
        assert all(0 <= count <= values["workers"] * values["prefetch"] for count in ready)

    @whole_range
    def test_a_step_takes_as_long_as_its_slowest_part_and_no_longer_than_all_of_them(self, values):
        result = simulate(**values)
        work = result.work
        load = work.load / max(1, work.workers)
        assert result.step >= max(work.compute, work.copy, load, work.pin) * (1 - 1e-9)
        assert result.step <= work.load + work.pin + work.copy + work.compute + 1e-4
        assert -1e-12 <= result.fetch <= result.step * (1 + 1e-9)
        for share in (result.computing, result.copying, result.loading, result.pinning):
            assert 0 <= share <= 1 + 1e-9

    @whole_range
    def test_where_all_batches_are_alike_more_workers_never_hurt(self, values):
        steps = simulate(**values | {"spread": 0}).by_workers
        assert all(two <= one * (1 + 1e-6) + 1e-5 for one, two in itertools.pairwise(steps[1:]))

    @pytest.mark.parametrize("argument", ["load", "batch", "compute"])
    def test_more_of_anything_never_makes_a_step_shorter(self, argument):
        for workers in (0, 1, 3):
            steps = [
                simulate(**DEFAULT | {"workers": workers, "spread": 0, argument: value}).step
                for value in (1, 20, 90, 200)
            ]
            assert all(one <= two * (1 + 1e-9) for one, two in itertools.pairwise(steps))


class TestPicture:
    def test_the_moment_is_told_in_words(self):
        assert "at 0: main process loads, 0 batches ready, GPU waits" in Pipeline(moment=0).svg()
        assert "main process starts workers, 0 batches ready, GPU waits" in Pipeline(workers=4, moment=1).svg()
        assert "all is done" in Pipeline(moment=100).svg()

    def test_workers_are_no_cause_where_copies_set_the_step(self):
        held, late = (Pipeline(workers=3, load=load).result for load in (107, 112))
        assert "it stands still during copies" in held.finding
        assert "it could take one every 36 ms" in late.finding

    def test_the_batch_that_the_gpu_computes_is_framed_in_all_lanes(self):
        sim = Pipeline(**Pipeline.states[2].values)
        assert "computes batch 4" in sim.result.now
        assert "batch 4 on its way" in sim.svg()
        frames = [rect for rect in ET.fromstring(sim.picture.inner()).iter() if rect.get("stroke-width") == "2"]
        assert sum(40 < float(frame.get("y")) < LOW for frame in frames if frame.tag.endswith("rect")) == 4
        assert Pipeline(moment=100).result.followed is None

    def test_the_second_epoch_is_marked(self):
        assert "epoch 2" in Pipeline(workers=3).svg()

    def test_what_a_choice_does_is_said_in_words_and_not_by_colour_alone(self):
        off, on = Pipeline(workers=2, spread=0), Pipeline(workers=2, spread=0, pinned=True)
        assert "would save 5.6 ms" in off.svg()
        assert ">on, saves 5.6 ms" in on.svg()
        left, right = (knobs(sim.picture)["pinned"] for sim in (off, on))
        assert left < right

    def test_sources_of_numbers(self):
        for name, _, source in Pipeline(workers=2).result.rows():
            assert source.split(":")[0] == ("recorded" if name == "starting the workers" else "virtual")

    def test_it_says_what_it_leaves_out(self):
        assert "Workers never compete for cores" in Pipeline().svg()


def knobs(picture):
    """Where the knob of each switch is."""
    found = {}
    for element in ET.fromstring(picture.inner()).iter():
        knob = element.find("{http://www.w3.org/2000/svg}circle")
        if element.get("data-set") and knob is not None:
            found[next(iter(json.loads(element.get("data-set"))))] = float(knob.get("cx"))
    return found


class TestStates:
    def test_without_workers_the_gpu_waits_for_the_main_process(self):
        result = Pipeline(**Pipeline.states[0].values).result
        assert result.computing < 0.4
        assert result.finding == "The GPU computes 35% of the time: it waits for loading and for copies"
        assert Pipeline.states[0].values.items() <= DEFAULT.items()  # it opens with it

    def test_what_the_notes_ask_for_can_be_had(self):
        one, two, three = (state.values for state in Pipeline.states)
        assert Pipeline(**one | {"workers": 2, "side": True}).result.step == pytest.approx(30 * MS, rel=0.01)
        assert "a batch every" not in Pipeline(**two, load=100).result.finding
        assert "a batch every" in Pipeline(**two, load=115).result.finding
        assert "almost without a gap" in Pipeline(**three, compute=21).result.finding
        assert "3 workers bring a batch every 20 ms" in Pipeline(**three, compute=15).result.finding

    def test_with_workers_it_waits_for_copies_whatever_their_number(self):
        result = Pipeline(**Pipeline.states[1].values).result
        assert "it stands still during copies of 11 ms" in result.finding
        assert result.run.ready(result.moment) == 3  # the note says so
        assert result.by_workers[8] == pytest.approx(result.step, rel=0.01)

    def test_with_copies_beside_it_the_gpu_waits_for_the_first_batch_alone(self):
        result = Pipeline(**Pipeline.states[2].values).result
        assert result.computing > 0.99
        assert result.finding == "After 177 ms the GPU is fed almost without a gap until the next epoch"
        assert result.idle(1) == pytest.approx(27 * MS, abs=0.5 * MS)
        assert "until the next epoch" not in Pipeline(**Pipeline.states[2].values, persistent=True).result.finding
        assert "idle 177 ms" in Pipeline(**Pipeline.states[2].values).svg()  # in the lane, the same
        # 3 workers start, load, one batch is pinned in fresh memory and copied
        assert result.idle(0) == pytest.approx(result.run.copied[0], rel=0.01)


class TestTouched:
    @pytest.mark.parametrize("workers", [0, 5, 8])
    def test_the_dot_of_the_present_number_of_workers_is_dragged(self, workers):
        picture = Pipeline(workers=workers).picture
        grip = hands.grip(picture, "workers")
        assert (grip.low, grip.high) == (0, MOST_WORKERS)
        assert f'<circle cx="{svg.num(grip.at(workers))}"' in "".join(picture.body)

    def test_the_playhead_is_where_the_lanes_are_touched(self):
        picture = Pipeline(moment=40).picture
        grip = hands.grip(picture, "moment")
        assert (grip.low, grip.high, grip.start, grip.end) == (0, FRAMES, LEFT, RIGHT)
        assert f'x1="{svg.num(grip.at(40))}"' in "".join(picture.body)

    def test_a_row_of_a_choice_is_its_switch(self):
        sim = Pipeline()
        sets = hands.clicks(sim.picture)
        assert sets == [
            {"workers": 2}, {"prefetch": 3}, {"pinned": True}, {"non_blocking": True}, {"side": True},
            {"persistent": True},
        ]  # fmt: skip
        for values in sets:
            sim.set(**values)
        back = {name: not value for values in sets[2:] for name, value in values.items()}
        assert hands.clicks(sim.picture)[2:] == [{name: value} for name, value in back.items()]

    def test_at_the_most_a_row_goes_one_back(self):
        assert hands.clicks(Pipeline(workers=8, prefetch=8).picture)[:2] == [{"workers": 7}, {"prefetch": 7}]

    @whole_range
    def test_what_a_row_says_is_what_its_click_does(self, values):
        before = simulate(**values)
        for change in before.changes[:5]:
            after = simulate(**values | {change.control: change.other})
            saved = after.step - before.step
            assert change.seconds == pytest.approx(-saved if change.on else saved, abs=1e-12)
