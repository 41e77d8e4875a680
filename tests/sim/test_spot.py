import itertools
import math
import random
import re

import numpy as np
import pytest
from hypothesis import strategies as st

from gpulab.sim.base.scene import Scale
from gpulab.sim.base.simulator import Slider
from gpulab.sim.spot.controls import Spot
from gpulab.sim.spot.model import AT_ONCE, Plan, best_interval, retried, young
from gpulab.sim.spot.picture import BOTTOM, TOP, _columns, draw
from gpulab.sim.spot.result import LONGEST_INTERVAL, money, simulate, span
from virtualgpu.pictures import svg

from . import states
from .page import Page

DEFAULT = {control.name: control.value for control in Spot.controls}


def of_control(control):
    assert isinstance(control, Slider)
    if control.whole:
        return st.integers(control.low, control.high)
    return st.integers(round(control.low / control.step), round(control.high / control.step)).map(
        lambda steps: steps * control.step
    )


whole_range = states.whole_range(Spot)


def at(**values):
    return simulate(**DEFAULT | values)


def hours_of_one_run(plan: Plan, interval: float, chance: random.Random) -> dict[str, float]:
    """One run, lived through: a clock, the times of interruptions drawn ahead, work saved at each checkpoint."""
    now = lost = restarting = 0.0
    saved = 0.0
    interruptions = 0
    next_interruption = chance.expovariate(1 / plan.between)
    while saved < plan.work - 1e-9:
        work = min(interval, plan.work - saved)
        if now + work + plan.checkpoint <= next_interruption:
            now += work + plan.checkpoint
            saved += work
            continue
        lost += next_interruption - now
        while True:
            now = next_interruption
            interruptions += 1
            next_interruption = now + chance.expovariate(1 / plan.between)
            if now + plan.restart <= next_interruption:
                now, began = now + plan.restart, now
                restarting += now - began
                break
            restarting += next_interruption - now
    return {"hours": now, "lost": lost, "restarting": restarting, "interruptions": interruptions}


class TestMonteCarlo:
    """The formulas against runs that are lived through, within three standard errors of their mean."""

    @pytest.mark.parametrize(
        ("work", "checkpoint", "between", "restart", "interval"),
        [
            (100, 2 / 60, 8, 10 / 60, 4),  # the default
            (100, 2 / 60, 8, 10 / 60, 0.73),  # the best
            (50, 0.5, 6, 2, 1.7),  # dear checkpoints, long restarts; the last stretch is short
            (20, 0.01, 3, 0, 12),  # no restart, two long stretches
            (10, 1, 2, 1, 100),  # a single stretch, the checkpoint at its end
        ],
    )
    def test_mean_spread_and_parts(self, work, checkpoint, between, restart, interval):
        plan, chance = Plan(work, checkpoint, between, restart), random.Random(14)
        runs = [hours_of_one_run(plan, interval, chance) for _ in range(2000)]
        expected = plan.time(interval)
        writing, restarting, lost = plan.extra(interval)
        for name, mean in (
            ("hours", expected.mean),
            ("lost", lost),
            ("restarting", restarting),
            ("interruptions", expected.mean / between),
        ):
            seen = np.array([run[name] for run in runs])
            error = seen.std(ddof=1) / math.sqrt(len(seen))
            assert seen.mean() == pytest.approx(mean, abs=3 * error + 1e-9), name
        seen = np.array([run["hours"] for run in runs])
        variance, fourth = seen.var(ddof=1), ((seen - seen.mean()) ** 4).mean()
        error = math.sqrt((fourth - variance**2) / len(seen))
        assert variance == pytest.approx(expected.variance, abs=3 * error)
        assert writing == pytest.approx(math.ceil(work / interval - 1e-9) * checkpoint)


class TestPublished:
    @pytest.mark.parametrize(
        ("length", "between", "restart"), [(1, 8, 0.1), (0.5, 24, 2), (5, 1, 3), (0.001, 100, 0.5)]
    )
    def test_an_interval_takes_what_daly_says(self, length, between, restart):
        daly = between * math.exp(restart / between) * (math.exp(length / between) - 1)
        assert retried(length, between, retried(restart, between)).mean == pytest.approx(daly, rel=1e-9)

    def test_young_by_hand(self):
        # two minutes and eight hours: the root of 2 · 2 · 480 minutes²
        assert young(2 / 60, 8) * 60 == pytest.approx(math.sqrt(1920)) == pytest.approx(43.8, abs=0.05)
        assert at().young * 60 == pytest.approx(43.8, abs=0.05)

    @pytest.mark.parametrize(("ratio", "near"), [(1e-5, 1e-6), (1e-3, 1e-4), (0.01, 1e-3), (0.1, 1e-3), (0.5, 0.01)])
    def test_the_best_interval_is_dalys(self, ratio, near):
        # his higher-order estimate (2006, equation 37), which is an approximation itself
        half = ratio / 2
        daly = math.sqrt(2 * ratio) * (1 + math.sqrt(half) / 3 + half / 9) - ratio
        assert best_interval(ratio, 1) == pytest.approx(daly, rel=near)

    def test_young_is_its_limit_for_short_checkpoints(self):
        gaps = [abs(young(c, 10) / best_interval(c, 10) - 1) for c in (1, 0.1, 0.01, 0.001)]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] < 0.01

    def test_a_certain_stretch_takes_its_length(self):
        assert retried(3, 1e12, AT_ONCE).mean == pytest.approx(3)
        assert retried(0, 5) == AT_ONCE

    def test_without_checkpoints_a_run_of_e_lengths(self):
        # a stretch as long as the mean time between interruptions: e - 1 of them
        assert retried(8, 8).mean == pytest.approx(8 * (math.e - 1))


class TestFindings:
    def test_the_default_makes_the_point(self):
        sim = Spot()
        assert sim.result.finding == "Saved every 4 h, 100 h of work take 34% longer; every 44 min, 12% longer"
        assert sim.picture.title == sim.result.finding

    def test_at_the_formula(self):
        assert at(interval=44).finding == "Saved every 44 min, 100 h of work take 12% longer and cost 61% less"
        assert ">61% less<" in Spot(interval=44).svg()  # in place of a second bar for the same

    def test_twice_or_half_the_best_costs_little(self):
        best = at(interval=44).hours
        assert at(interval=88).hours < 1.05 * best
        assert at(interval=22).hours < 1.05 * best

    def test_too_often(self):
        finding = at(interval=2).finding
        assert finding.startswith("Saved every 2 min, 100 h of work take 105% longer; every 44 min")

    def test_spot_that_is_no_cheaper(self):
        assert at(interval=44, discount=5).finding.endswith("and cost 6.4% more")

    def test_where_the_formula_is_no_longer_near(self):
        run = at(checkpoint=1800, between=1, restart=0, interval=10)
        assert "best: 42 min, +231%" in draw(run).text()
        assert "the best ≈ √(2 × 2 min × 8 h)" in draw(at(interval=44)).text()
        assert "best: 44 min ≈ √(2 × 2 min × 8 h), +12%" in draw(at(interval=240)).text()
        assert "every 42 min (best)" in draw(run).text()

    def test_never(self):
        run = at(interval=720, between=1)
        assert "100 h of work never end; every 15 min" in run.finding
        assert "never done" in "".join(draw(run).body)


class TestCosts:
    def test_by_hand(self):
        run = at()
        assert run.cost_on_demand == 1200
        assert run.spot_price == pytest.approx(4.2)
        assert run.cost == pytest.approx(4.2 * run.hours)
        assert "$1,200" in str(run)

    def test_interruptions_come_at_their_rate(self):
        run = at()
        assert run.interruptions == pytest.approx(run.hours / 8)


class TestOverTheWholeRange:
    @whole_range
    def test_the_parts_add_up(self, values):
        run = simulate(**values)
        writing, restarts, lost = run.plan.extra(run.interval)
        assert min(writing, restarts, lost) >= 0
        assert run.hours == pytest.approx(run.plan.work + writing + restarts + lost)
        assert math.isfinite(run.spread)
        number = run.plan.checkpoints(run.interval)
        assert number == math.ceil(60 * values["work"] / values["interval"])
        stretches = run.plan.stretches(run.interval)
        assert sum(n * hours for n, hours in stretches) == pytest.approx(values["work"] + writing)

    @whole_range
    def test_restarts_are_what_they_are_expected_to_be(self, values):
        run = simulate(**values)
        _, restarts, _ = run.plan.extra(run.interval)
        failures = sum(n * math.expm1(hours / values["between"]) for n, hours in run.plan.stretches(run.interval))
        restart = values["between"] * math.expm1(values["restart"] / 60 / values["between"])
        assert restarts == pytest.approx(failures * restart, rel=1e-6, abs=1e-6 * run.hours)

    @whole_range
    def test_no_interval_beats_the_best(self, values):
        run = simulate(**values)
        assert run.best_hours <= run.hours * (1 + 1e-9)
        assert run.best_hours <= run.plan.time(run.young).mean * (1 + 1e-9)
        for parts in (1, 2, 3, 10, 100):
            assert run.best_hours <= run.plan.time(run.plan.work / parts).mean * (1 + 1e-9)

    @whole_range
    def test_what_never_helps(self, values):
        hours = simulate(**values).hours
        for worse in (
            {"between": max(1, values["between"] - 1)},
            {"restart": min(120, values["restart"] + 10)},
            {"checkpoint": min(1800, values["checkpoint"] + 60)},
            {"work": min(500, values["work"] + 10)},
        ):
            assert simulate(**values | worse).hours >= hours * (1 - 1e-9)

    @whole_range
    def test_the_formula_lies_in_the_plot(self, values):
        assert 1 / 60 <= simulate(**values).young <= LONGEST_INTERVAL / 60


class TestTouch:
    def test_the_states_lose_work_then_write_it_all_down_then_do_neither(self):
        rarely, often, best = (at(**state.values) for state in Spot.states)
        assert "every 4 h, 100 h of work take 34% longer" in rarely.finding
        assert "every 5 min, 100 h of work take 44% longer" in often.finding
        assert "12% longer and cost" in best.finding
        assert best.hours < min(rarely.hours, often.hours) - 15
        writing, _, lost = best.plan.extra(best.interval)
        assert rarely.plan.extra(rarely.interval)[2] > 5 * lost
        assert often.plan.extra(often.interval)[0] > 5 * writing

    def test_the_line_is_dragged_where_its_interval_is_drawn(self):
        (grip,) = re.findall(r"<g data-drag=\"interval\"(.*?)>", Spot().picture.inner())
        known = dict(re.findall(r'data-(\w+)="([^"]*)"', grip))
        start, end, low, high = (float(known[name]) for name in ("from", "to", "low", "high"))
        assert (low, high, known["log"], known["axis"]) == (1, LONGEST_INTERVAL, "1", "x")
        for interval in (1, 44, 240, 720):
            drawn = re.findall(r'<line x1="([\d.]+)"[^>]*stroke-width="2"', Spot(interval=interval).picture.inner())[0]
            share = (float(drawn) - start) / (end - start)
            assert low * (high / low) ** share == pytest.approx(interval, rel=0.002)

    def test_at_the_best_there_is_one_label_and_each_bar_says_what_it_comes_from(self):
        words = Spot(interval=44).svg()
        assert "every 44 min, the best ≈" in words
        assert "best: 44 min" not in words
        assert words.count("≈ 112 h × $4.20") == words.count("spot, every") == 1

    @pytest.mark.parametrize("interval", [1, 20, 30, 40, 50, 90, 240, 720])
    def test_the_line_does_not_go_through_the_label_of_the_best(self, interval):
        inner = Spot(interval=interval).picture.inner()
        line = float(re.findall(r'<line x1="([\d.]+)"[^>]*stroke-width="2"', inner)[0])
        middle, words = re.findall(r'<text x="([\d.]+)"[^>]*>(best: [^<]*)<', inner)[0]
        assert abs(float(middle) - line) > svg.length(words, svg.SMALL) / 2

    @pytest.mark.parametrize("values", [{}, {"checkpoint": 1800, "between": 1, "restart": 0, "interval": 10}])
    def test_headline_plot_and_bar_name_one_interval_as_the_best_and_a_click_takes_it(self, values):
        page = Page(Spot(**values))
        run = page.simulator.result
        for words in (f"every {span(run.advised)}", f"best: {span(run.advised)}"):
            assert words in page.view["headline"] + page.view["svg"]
        assert f"every {span(run.advised)} (best)" in page.view["svg"]
        (minutes,) = re.findall(r'data-set=\'{"interval": (\d+)}', page.view["svg"])
        page.ask(interval=int(minutes))
        assert "and cost" in page.view["headline"]

    @whole_range
    def test_what_is_advised_is_as_good_as_the_best(self, values):
        run = simulate(**values)
        assert run.best_hours <= run.advised_hours * (1 + 1e-9) <= 1.021 * run.best_hours

    @pytest.mark.parametrize(("values", "ticks"), [({}, range(0, 51, 10)), ({"checkpoint": 20}, range(0, 21, 5))])
    def test_ticks_are_round(self, values, ticks):
        inner = Spot(**values).picture.inner()
        assert [f"{tick}%" for tick in ticks] == re.findall(r">([\d.]+%)<", inner)[: len(ticks)]


class TestWords:
    def test_times(self):
        hours = [1 / 3600, 30 / 3600, 1 / 60, 100 / 3600, 2.5 / 60, 0.73, 1, 1.9, 6.53, 31.26, 131.4, 4521.3, 1e9]
        assert [span(number) for number in hours] == [
            "1 s",
            "30 s",
            "1 min",
            "100 s",
            "2.5 min",
            "44 min",
            "1 h",
            "114 min",
            "6.5 h",
            "31.3 h",
            "131 h",
            "4,521 h",
            "over 100,000 h",
        ]

    def test_prices(self):
        assert [money(amount) for amount in (0.5, 99.999, 1234.4, 2e7)] == [
            "$0.50",
            "$100.00",
            "$1,234",
            "over $10 million",
        ]


class TestForm:
    def test_set_moves_it(self):
        sim = Spot()
        sim.set(interval=44)
        assert sim.result.interval == pytest.approx(44 / 60)
        assert "and cost 61% less" in sim.picture.title

    @pytest.mark.parametrize("values", [{}, {"work": 500, "between": 2}, {"checkpoint": 1800, "between": 1}])
    def test_the_curve_leaves_the_plot_where_it_is_cut_and_goes_through_the_best(self, values):
        run = Spot(**values).result
        share = Scale(BOTTOM, TOP, 0, 0.5)
        columns = _columns(run.plan, share)
        assert all((a[4] - TOP) * (b[4] - TOP) > -1e-6 for a, b in itertools.pairwise(columns))
        best = max(columns, key=lambda column: column[4])
        assert (BOTTOM - best[4]) / (BOTTOM - TOP) * 0.5 == pytest.approx(run.best_hours / run.plan.work - 1, rel=0.01)

    def test_lost_work_differs_by_more_than_colour(self):
        assert 'stroke-width="0.8"' in Spot().svg()

    def test_it_says_what_it_leaves_out(self):
        assert Spot.leaves_out.endswith(".")
        assert "constant rate" in Spot().svg()
