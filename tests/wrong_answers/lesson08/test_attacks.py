"""Answers that do not try to be right: they must not pass either, and what they leave behind must not help the next."""

import contextlib
import copy
import io
import itertools
import random

import pytest
import torch
from torch import nn

import gpulab

from . import accumulation_amp as amp
from . import accumulation_window as window
from . import batch_norm_free as norms
from . import token_weighting as tokens

RIGHT = {
    "accumulation_window": window.windows_by_slicing,
    "token_weighting": tokens.sums_over_all_tokens,
    "accumulation_amp": amp.windows_by_slicing,
    "batch_norm_free": norms.SOLUTION,
}
EACH_CHECK = pytest.mark.parametrize("name", RIGHT)


def steps_with_nonsense(model, optimizer, loss_fn, micro_batches, steps):
    for _ in range(0, len(micro_batches), steps):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return 1.0


def copies_other_weights(model, optimizer, loss_fn, micro_batches, steps):
    loss = window.windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    return loss


def switches_the_optimizer_off(model, optimizer, loss_fn, micro_batches, steps):
    optimizer.step = lambda closure=None: None
    return window.windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps)


def rewrites_the_record(model, optimizer, loss_fn, micro_batches, steps):
    loss = window.windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps)
    optimizer.gradients.reverse()
    return loss


def trains_a_copy(model, optimizer, loss_fn, micro_batches, steps):
    own = copy.deepcopy(model)
    loss = window.windows_by_slicing(own, torch.optim.SGD(own.parameters(), lr=0.1), loss_fn, micro_batches, steps)
    model.load_state_dict(own.state_dict())
    return loss


def puts_new_layers_into_the_model(model, optimizer, loss_fn, micro_batches, steps):
    model[0] = nn.Linear(6, 16).double()
    return window.windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps)


def puts_larger_layers_into_the_model(model, optimizer, loss_fn, micro_batches, steps):
    loss = window.windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps)
    model[0] = nn.Linear(7, 99)
    return loss


def catches_its_own_errors(model, optimizer, loss_fn, micro_batches, steps):
    with contextlib.suppress(Exception):
        return window.windows_by_slicing(model, optimizer, None, micro_batches, steps)


def shuffles_the_micro_batches(model, optimizer, loss_fn, micro_batches, steps):
    return window.windows_by_slicing(model, optimizer, loss_fn, random.sample(micro_batches, len(micro_batches)), steps)


def does_nothing(*args):
    return None


def returns_what_it_got(*args):
    return args[0]


@pytest.mark.parametrize(
    "attack",
    [
        steps_with_nonsense,
        copies_other_weights,
        switches_the_optimizer_off,
        rewrites_the_record,
        trains_a_copy,
        puts_new_layers_into_the_model,
        puts_larger_layers_into_the_model,
        catches_its_own_errors,
        shuffles_the_micro_batches,
        does_nothing,
        returns_what_it_got,
    ],
)
def test_an_epoch_that_is_not_one_never_passes(attack):
    with pytest.raises(gpulab.CheckFailed):
        gpulab.check.accumulation_window(attack)
    gpulab.check.accumulation_window(RIGHT["accumulation_window"])


@EACH_CHECK
def test_to_be_right_at_the_first_call_is_not_enough(name):
    calls = itertools.count()

    def student(*args):
        return RIGHT[name](*args) if next(calls) == 0 else None

    with pytest.raises(gpulab.CheckFailed):
        getattr(gpulab.check, name)(student)


@EACH_CHECK
@pytest.mark.parametrize("answer", [does_nothing, returns_what_it_got])
def test_to_do_nothing_never_passes(name, answer):
    with pytest.raises(gpulab.CheckFailed):
        getattr(gpulab.check, name)(answer)


@EACH_CHECK
def test_what_a_right_answer_prints_is_one_line_more(name, capfd):
    def student(*args):
        print("epoch 1 …\n" * 100_000)
        return RIGHT[name](*args)

    getattr(gpulab.check, name)(student)
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    assert len(out) < 500
    assert err == ""


@EACH_CHECK
def test_a_right_answer_with_hooks_of_its_own_on_the_model_passes(name, capsys):
    seen = []

    def student(model, *args):
        handle = model.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
        try:
            return RIGHT[name](model, *args)
        finally:
            handle.remove()

    getattr(gpulab.check, name)(student)
    assert seen
    assert capsys.readouterr().out.startswith("✔")


@EACH_CHECK
def test_the_notebooks_own_settings_do_not_decide(name):
    """A notebook in float64, under autocast and without gradients, with another default device."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            getattr(gpulab.check, name)(RIGHT[name], seed=1)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


@EACH_CHECK
def test_a_check_takes_no_random_number_from_the_notebook(name):
    torch.manual_seed(5)
    random.seed(5)
    expected = torch.rand(3), random.random()
    torch.manual_seed(5)
    random.seed(5)
    getattr(gpulab.check, name)(RIGHT[name])
    with pytest.raises(gpulab.CheckFailed), contextlib.redirect_stdout(io.StringIO()):
        getattr(gpulab.check, name)(does_nothing)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
