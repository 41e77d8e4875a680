"""A check of lesson 11 in a notebook whose reader has set the compiler's limits."""

import pytest
import torch

import gpulab

from .test_banks import BANKS

BANK = BANKS["graphs_per_call"]
(NO_LIMIT,) = BANK.told("after the eighth compilation of a function nothing is counted")


@pytest.mark.parametrize(
    "settings",
    [{"recompile_limit": 2}, {"recompile_limit": 1000}, {"automatic_dynamic_shapes": False}],
    ids=str,
)
def test_what_the_reader_has_set_before_neither_hides_a_mistake_nor_makes_one(settings, capsys):
    config = torch._dynamo.config
    with config.patch(settings):
        BANK.check(BANK.solution, seed=1)
        assert "✔ graphs_per_call" in capsys.readouterr().out
        with pytest.raises(gpulab.CheckFailed) as caught:
            BANK.check(NO_LIMIT.answer, seed=1)
        assert caught.value.summary == NO_LIMIT.summary
        assert {name: getattr(config, name) for name in settings} == settings
