"""Steps that are not like the one before, and what is said of them."""

import random

import torch

from virtualgpu.planning import plan

from . import steps
from .steps import MIB


def take(mib):
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def test_a_loss_that_is_summed_with_its_graph_is_told_of():
    def build(batch):
        model, total = steps.stack(), []

        def step():
            loss = model(torch.randn(batch, 256, device="cuda")).sum()
            total.append(loss)
            loss.backward(retain_graph=True)
            model.zero_grad()

        return step

    found = plan(build, 1024, "T4")
    (note,) = found.notes
    assert note.startswith("every step leaves 5.0 MiB more")
    assert "a loss that is summed up with its graph" in note
    assert sum(found.categories.values()) == found.peak_allocated


def test_steps_that_differ_show_the_highest():
    sizes = iter([1, 5, 3, 8, 2, 4, 6, 7, 9])

    def build(batch):
        def step():
            take(next(sizes))

        return step

    found = plan(build, 1, "T4")
    assert found.peak_allocated == 8 * MIB
    assert found.notes == ("the memory differs from step to step; this is the highest of 5",)


def test_an_optimizer_step_every_other_time_is_seen():
    def build(batch):
        go_on, calls = steps.mlp(batch), iter(range(100))
        model = steps.stack(1024, 8)

        def step():
            if next(calls) % 2:
                model(torch.randn(batch, 1024, device="cuda")).sum().backward()
                model.zero_grad()
            else:
                go_on()

        return step

    found = plan(build, 8, "T4")
    assert found.gradients > 0.8 * 4 * 8 * 1024 * 1024
    assert "the memory differs" in found.notes[0]


def test_more_in_build_than_in_any_step_is_told_of():
    def build(batch):
        take(600)
        return lambda: take(1)

    found = plan(build, 1, "T4")
    assert found.peak_allocated == MIB
    assert found.peak_reserved >= 600 * MIB
    assert found.notes == ("before these steps, in build or in the first one, up to 600.0 MiB are allocated",)


def test_a_build_that_draws_its_sizes_is_still_planned():
    def build(batch):
        return lambda: take(random.randint(1, 100))

    found = plan(build, 1, "T4")
    assert found.data == found.peak_allocated


def test_a_step_that_stays_on_the_host_is_told_so():
    def build(batch):
        model = steps.stack(device="cpu")
        return lambda: model(torch.randn(batch, 256)).sum().backward()

    found = plan(build, 4, "T4")
    assert found.peak_allocated == 0
    assert found.notes == ('nothing is on the GPU: build and step must use the device "cuda"',)


def test_a_short_of_memory_note():
    from virtualgpu.planning import planner

    measured = type("", (), {"growth": 0, "steady": True, "highest": 5, "peak": 5, "retries": 2, "steps": 3})
    (note,) = planner._notes(measured, True)
    assert "gives its reserve back 2 times" in note
    assert planner._notes(measured, False) == []
