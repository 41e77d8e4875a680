"""What the memory at the peak is for: every category by what can be counted by hand."""

import gc

import pytest
import torch
from torch import nn

from gpulab.memory import activation_bytes
from virtualgpu.operations.products import keeps_workspaces
from virtualgpu.planning import plan

from . import steps
from .steps import MIB, rounded, steady_peak

BUILDS = {
    "mlp": steps.mlp,
    "mixed_precision": steps.mixed_precision,
    "accumulating": lambda batch: steps.accumulating(batch, 4),
    "checkpointing": lambda batch: steps.checkpointing(batch, False),
    "checkpointing, reentrant": lambda batch: steps.checkpointing(batch, True),
    "gan": steps.gan,
    "tied": steps.tied,
    "by_hand": steps.by_hand,
    "in_backward": steps.in_backward,
    "fused": lambda batch: steps.mlp(batch, fused=True),
    "one by one": lambda batch: steps.mlp(batch, foreach=False),
    "adafactor": lambda batch: steps.mlp(batch, optimizer=torch.optim.Adafactor),
    "made on the host": lambda batch: steps.mlp(batch, device="cpu"),
}


@pytest.mark.filterwarnings("ignore:with compute=False")
@pytest.mark.parametrize("name", BUILDS)
def test_the_categories_add_up_to_the_peak_that_torch_counts(name):
    found = plan(BUILDS[name], 64, "T4")
    assert (found.peak_allocated, found.peak_reserved) == steady_peak(BUILDS[name], 64)
    assert sum(found.categories.values()) == found.peak_allocated
    assert min(found.categories.values()) >= 0
    assert found.notes == ()


def layers(width, depth):
    return list(steps.stack(width, depth, "meta").parameters())


WEIGHTS = {
    **dict.fromkeys(BUILDS, layers(256, 4)),
    "checkpointing": layers(256, 8),
    "checkpointing, reentrant": layers(256, 8),
    "gan": layers(128, 5),
    "tied": [*steps.Tied().parameters(), *steps.Tied().buffers()],
    "by_hand": [torch.empty(256, 256)] * 2,
}


@pytest.mark.filterwarnings("ignore:with compute=False")
@pytest.mark.parametrize("name", BUILDS)
def test_weights_are_parameters_and_buffers(name):
    assert plan(BUILDS[name], 64, "T4").weights == rounded(WEIGHTS[name])


@pytest.mark.parametrize(
    ("optimizer", "options", "times"),
    [
        (torch.optim.AdamW, {}, 2),
        (torch.optim.AdamW, {"amsgrad": True}, 3),
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.RMSprop, {}, 1),
    ],
)
def test_state_of_the_optimizer(optimizer, options, times):
    found = plan(lambda batch: steps.mlp(batch, optimizer=optimizer, **options), 64, "T4")
    assert found.optimizer_state == times * found.weights


def test_the_optimizer_at_the_peak():
    found = plan(lambda batch: steps.mlp(batch, width=1024, depth=8), 8, "T4", where=True)
    assert found.where.phase == "optimizer"
    assert found.gradients == found.weights
    assert (found.activations, found.data) == (0, 8 * 1024 * 4)  # the batch is still in a variable of the step
    assert found.temporaries == found.weights  # the square roots of the second moments


def test_backward_by_hand():
    def build(batch):
        blocks = [nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU()) for _ in range(4)]
        model = torch.nn.Sequential(*blocks).to("cuda")
        x = torch.randn(batch, 64, device="cuda")

        def step():
            model(x).sum().backward()
            model.zero_grad()

        return step

    found = plan(build, 1 << 18, "T4", where=True)
    one = 64 * 2**18 * 4
    assert (found.where.phase, found.where.operation, found.where.node) == ("backward", "aten.mm", "MmBackward0")
    # The last ReLU's backward has freed its result: three are left, and the loss with its gradient.
    assert found.activations == 3 * one + 2 * 512
    assert (
        found.temporaries == 2 * one
    )  # the gradient that goes into the last Linear's backward, the one that comes out
    assert found.data == one
    # cuBLAS's: one for this call, or where PyTorch keeps them, one for the forward pass and one for backward
    assert found.workspaces == (8 * MIB + 128 * 1024) * (2 if keeps_workspaces() else 1)
    assert found.gradients == 64 * 64 * 4
    assert found.optimizer_state == 0


def test_what_is_kept_for_backward_is_what_activation_bytes_counts():
    model = steps.stack(512, 6, "meta")

    def build(batch):
        model = steps.stack(512, 6)

        def step():
            loss = model(torch.randn(batch, 512, device="cuda")).sum()
            steps.spike()
            loss.backward()
            model.zero_grad()

        return step

    found = plan(build, 4096, "T4")
    kept = activation_bytes(model, torch.empty(4096, 512, device="meta"))
    assert found.activations == kept.total + 512  # and the loss
    assert found.data == kept.input_bytes + 512 * MIB
    assert found.temporaries == 0


@pytest.mark.parametrize("batch", [4096, 8192])
def test_activations_of_a_stack_double_with_the_batch(batch):
    def activations(batch):
        return plan(steps.mlp, batch, "T4").activations - 2 * 512

    assert activations(2 * batch) == 2 * activations(batch)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_less(reentrant):
    plain = plan(lambda batch: steps.checkpointing(batch, None), 16384, "T4")
    found = plan(lambda batch: steps.checkpointing(batch, reentrant), 16384, "T4")
    one = 256 * 16384 * 4
    assert plain.activations == 8 * one + 512  # what every ReLU returns, and the loss
    assert found.activations == 3 * one + 512  # what goes from block to block, and the loss
    assert found.weights == plain.weights


def test_accumulation_takes_the_activations_of_one_micro_batch():
    whole = plan(lambda batch: steps.accumulating(batch, 1), 16384, "T4")
    parts = plan(lambda batch: steps.accumulating(batch, 4), 16384, "T4")
    assert parts.activations - 512 == (whole.activations - 512) / 4
    assert parts.gradients == parts.weights  # those of the micro-batches before
    assert whole.gradients == 0


def test_autocast_keeps_copies_of_the_weights():
    def build(batch, enabled):
        model = steps.stack(1024, 4)

        def step():
            with torch.autocast("cuda", torch.float16, enabled=enabled):
                loss = model(torch.randn(batch, 1024, device="cuda")).sum()
                steps.spike()
            loss.backward()
            model.zero_grad()

        return step

    halves = plan(lambda batch: build(batch, True), 1, "T4")
    whole = plan(lambda batch: build(batch, False), 1, "T4")
    assert halves.weights == whole.weights
    copy = 1024 * 1024 * 2
    # Backward needs no first weight, for the batch has no gradient: autocast alone holds that copy, until its end.
    assert halves.activations - whole.activations == pytest.approx(3 * copy, rel=0.01)
    assert halves.temporaries == pytest.approx(copy, rel=0.01)


def test_frozen_weights_have_no_gradient_and_no_state():
    def build(batch):
        model = steps.stack(1024, 8)
        for p in model[:8].parameters():
            p.requires_grad_(False)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])

        def step():
            model(torch.randn(batch, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = plan(build, 4, "T4")
    assert found.weights == 2 * found.gradients == found.optimizer_state


def test_gradients_that_go_at_once_never_add_up():
    at_once = plan(steps.in_backward, 4, "T4")
    usual = plan(lambda batch: steps.mlp(batch, optimizer=torch.optim.SGD, lr=0.1), 4, "T4")
    assert usual.gradients > 0.99 * usual.weights
    assert 0 < at_once.gradients <= 256 * 256 * 4 + 1024


def test_evaluation_has_no_activations():
    def build(batch):
        model, x = steps.stack(), torch.randn(batch, 256, device="cuda")

        def step():
            with torch.no_grad():
                model(x)

        return step

    found = plan(build, 4096, "T4")
    assert (found.activations, found.gradients, found.optimizer_state) == (0, 0, 0)
    assert found.data == 4096 * 256 * 4
    assert found.temporaries == 2 * found.data


def test_a_model_made_on_meta_and_given_memory():
    def build(batch):
        with torch.device("meta"):
            model = steps.stack(device=None)
        model = model.to_empty(device="cuda")
        model.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)

        def step():
            model(torch.randn(batch, 256, device="cuda")).sum().backward()
            model.zero_grad()

        return step

    found = plan(build, 64, "T4")
    assert found.weights == rounded(layers(256, 4))


def test_workspaces_that_stay_are_workspaces(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")
    found = plan(steps.mlp, 8192, "T4")
    assert found.workspaces >= 2 * (8 * MIB + 128 * 1024)  # one for the forward pass, one for backward
    assert found.notes == ()


def test_what_is_planned_is_not_kept_alive():
    steps_made = []

    def build(batch):
        step = steps.mlp(batch)
        steps_made.append(step.__closure__)
        return step

    def optimizers():
        return sum(issubclass(type(o), torch.optim.Optimizer) for o in gc.get_objects())

    before = optimizers()
    plan(build, 8, "T4")
    steps_made.clear()
    gc.collect()
    assert optimizers() == before
