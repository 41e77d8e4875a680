"""Every misconception that a check of lesson 08 names by its table is committed by an answer of its bank."""

import pytest

from gpulab.check.lesson08 import misconceptions

from . import accumulation_amp, accumulation_window

TABLES = [
    (misconceptions.WINDOW, accumulation_window.BANK),
    (misconceptions.AMP, accumulation_amp.BANK),
]


@pytest.mark.parametrize(("table", "bank"), TABLES, ids=[bank.name for _, bank in TABLES])
def test_every_misconception_of_the_table_has_an_answer(table, bank):
    answered = {wrong.summary for wrong in bank.wrong_answers}
    assert [mistake.summary for mistake in table if mistake.summary not in answered] == []
