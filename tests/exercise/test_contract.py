"""What a contract says of a fact that is not as wanted."""

import pytest
import torch

from gpulab.exercise.contract import Near, contrast


@pytest.mark.parametrize(
    ("wanted", "seen", "told"),
    [
        (3, 4, ("3", "4")),
        (Near(1.5), 2.0, ("1.5", "2")),
        (1.00001, 1.00002, ("1.00001", "1.00002")),
        ([], [[]], ("[]", "[[]]")),
        ([], "none", ("[]", "'none'")),
        (None, "nothing", ("None", "'nothing'")),
        (1, "1", ("1", "'1'")),
    ],
)
def test_what_is_expected_never_reads_as_what_came(wanted, seen, told):
    assert contrast(wanted, seen) == told


def test_tensors_of_one_norm_are_told_apart_by_their_distance():
    wanted, seen = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert contrast(Near(wanted), seen) == (
        "2 numbers, of norm 5",
        "2 numbers, of norm 5; their difference has norm 1.414",
    )


def test_long_facts_are_cut():
    expected, got = contrast([1] * 1000, ["1"] * 1000)
    assert expected != got
    assert max(len(expected), len(got)) <= 300
