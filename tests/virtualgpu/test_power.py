"""A board's power limit: short work runs at the full rate, long work at what the limit allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtualgpu.clock import rates
from virtualgpu.clock.power import WINDOW, Budget, Power
from virtualgpu.gpus.specs import SPECS

POWER = Power(70.0, 15.0, {"fp16": 2.0}, 100.0)


def test_a_short_kernel_runs_at_the_full_rate():
    assert Budget(POWER).spend(0.0, 1e-3, 0.1) == 1e-3


def test_in_a_long_loop_the_mean_power_is_the_limit():
    budget, at, joules = Budget(POWER), 0.0, 0.0
    for _ in range(2000):
        seconds = budget.spend(at, 1e-3, 0.1)  # 100 W beside what idles
        at, joules = at + seconds, joules + 0.1 + 15 * seconds
    assert joules / at == pytest.approx(70, rel=0.03)


def test_work_below_the_limit_is_never_slowed_down():
    budget, at = Budget(POWER), 0.0
    for _ in range(2000):
        assert budget.spend(at, 1e-3, 0.05) == 1e-3
        at += 1e-3


def test_a_pause_fills_the_budget_again():
    budget = Budget(POWER)
    while budget.spend(budget.at, 1e-3, 0.2) == 1e-3:
        pass
    assert budget.spend(budget.at + 10 * WINDOW, 1e-3, 0.2) == 1e-3


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.01), st.floats(0, 3)), max_size=50))
def test_nothing_becomes_faster_and_the_budget_is_kept(work):
    budget, at, used = Budget(POWER), 0.0, 0.0
    for pause, seconds, joules in work:
        took = budget.spend(at + pause, seconds, joules)
        assert took >= seconds
        at += pause + took
        used += joules
        assert used <= (POWER.watts - POWER.idle_watts) * at + budget.full + 1e-9


def test_the_boards_that_meet_their_limit():
    meet = {name for name in SPECS if rates.rates_of(name).power is not None}
    assert {"T4", "L4", "L40S", "H100-PCIE", "RTXPRO6000-MAXQ"} <= meet
    assert not {"V100-16", "A100-80", "H100", "RTX3090", "RTX4090"} & meet


def test_a_precision_without_hardware_needs_what_the_lanes_need():
    power = rates.rates_of("T4").power
    assert power.per_flop_pj["bf16"] == power.per_flop_pj["tf32"] == power.per_flop_pj["fp32"]
    assert power.per_flop_pj["fp16"] < power.per_flop_pj["fp32"] / 4
    assert rates.rates_of("L4").power.per_flop_pj["bf16"] < rates.rates_of("L4").power.per_flop_pj["fp32"]
