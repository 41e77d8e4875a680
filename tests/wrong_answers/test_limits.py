"""A check of lesson 11 in a notebook whose reader has set the compiler's limits."""

import pytest
import torch

import gpulab

from .lesson11 import graphs_per_call

NO_LIMIT = next(wrong for wrong in graphs_per_call.BANK.wrong_answers if wrong.name == "no_limit")


@pytest.mark.parametrize("limit", [2, 1000])
def test_a_limit_that_the_reader_has_set_before_neither_hides_a_mistake_nor_makes_one(limit, capsys):
    with torch._dynamo.config.patch(recompile_limit=limit):
        graphs_per_call.BANK.check(graphs_per_call.SOLUTION, seed=1)
        assert "✔ graphs_per_call" in capsys.readouterr().out
        with pytest.raises(gpulab.CheckFailed) as caught:
            graphs_per_call.BANK.check(NO_LIMIT.answer, seed=1)
        assert caught.value.summary == NO_LIMIT.summary
        assert torch._dynamo.config.recompile_limit == limit
