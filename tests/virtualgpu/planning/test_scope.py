"""What a plan does to the world around it: nothing, also when build or step fail."""

import copy
import gc
import warnings

import pytest
import torch
from torch.optim import optimizer as of_torch

import gpulab
from virtualgpu.planning import plan, tensor_roles
from virtualgpu.scope import in_force

from . import steps


class Own(Exception):
    pass


def failing(when):
    def build(batch):
        if when == "build":
            raise Own
        counted = iter(range(100))
        go_on = steps.mlp(batch)

        def step():
            go_on()
            if when == next(counted):
                raise Own

        return step

    return build


@pytest.mark.parametrize("when", ["build", 0, 1, 2])
def test_an_exception_passes_through_and_nothing_stays(when):
    gc.unfreeze()
    apply = torch.nn.Module._apply
    with pytest.raises(Own):
        plan(failing(when), 8, "T4", where=True)
    assert in_force.current is None
    assert torch.cuda.is_available.__module__ == "torch.cuda"
    assert (gc.get_freeze_count(), torch.nn.Module._apply) == (0, apply)
    assert not of_torch._global_optimizer_pre_hooks
    assert not torch.is_anomaly_enabled()


def test_objects_are_collected_again_after_a_plan_also_where_python_froze_some_of_its_own(monkeypatch):
    gc.unfreeze()
    counted = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375 + counted())  # as Python 3.12 starts
    plan(steps.mlp, 8, "T4")
    assert counted() == 0, "what was there before the plan stays frozen, and its cycles are never freed"


def test_holders_are_known_by_their_type_however_far_derived():
    class Both(torch.nn.Linear, torch.optim.Optimizer):
        def __init__(self):
            torch.nn.Linear.__init__(self, 2, 2)

    class Lies:
        __class__ = torch.nn.Module

    kinds = torch.Tensor, torch.nn.Module, torch.optim.Optimizer
    made = [Both(), torch.nn.Parameter(torch.ones(2)), torch.optim.SGD([torch.ones(2)]), torch.nn.Sequential(), Lies()]
    found = {kind: {id(item) for item in items} for kind, items in tensor_roles._all(*kinds).items()}
    expected = [torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.nn.Module, None]
    assert [next((kind for kind in kinds if id(item) in found[kind]), None) for item in made] == expected
    assert id(made[0]) not in found[torch.optim.Optimizer]


def test_out_of_memory_that_the_user_raises_is_the_users():
    def build(batch):
        def step():
            raise torch.OutOfMemoryError("mine")

        return step

    with pytest.raises(torch.OutOfMemoryError, match="mine"):
        plan(build, 8, "T4")


def test_a_scope_in_force_is_there_again_and_its_memory_as_it_was():
    with gpulab.VirtualGPU("L4") as scope:
        x = torch.ones(1000, device="cuda")
        before = torch.cuda.memory_stats()
        found = plan(steps.mlp, 8)
        assert found.gpu == "L4"
        assert plan(steps.mlp, 8, "T4").gpu == "T4"
        with pytest.raises(Own):
            plan(failing(1), 8)
        assert in_force.current is scope
        assert torch.cuda.memory_stats() == before
        assert x.sum().item() == 1000


def test_random_numbers_go_on_as_if_nothing_had_been():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    plan(lambda batch: steps.mlp(batch, device="cpu"), 8, "T4")
    assert torch.equal(torch.rand(3), expected)


def test_a_model_of_the_users_keeps_its_values():
    model = steps.stack(device="cpu")
    weight = model[0].weight.detach().clone()

    def build(batch, model):
        model = torch.nn.Sequential(model).to("cuda")

        def step():
            model(torch.randn(batch, 256, device="cuda")).sum().backward()

        return step

    with pytest.raises(RuntimeError, match=r"made before build was called.*copy.deepcopy"):
        plan(lambda batch: build(batch, model), 8, "T4")
    assert torch.equal(model[0].weight, weight)
    found = plan(lambda batch: build(batch, copy.deepcopy(model)), 8, "T4")
    assert found.weights == steps.rounded(model.parameters())
    assert torch.equal(model[0].weight, weight)
    model.half()  # may be done again


def test_a_model_that_build_keeps_from_call_to_call_is_refused_too():
    models = []

    def build(batch):
        if not models:
            models.append(steps.stack(device="cpu"))
        model = models[0].to("cuda")
        return lambda: model(torch.randn(batch, 256, device="cuda")).sum().backward()

    with pytest.raises(RuntimeError, match="made before build was called"):
        plan(build, 8, "T4", largest=True)


def test_unknown_values_are_warned_of_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan(steps.mixed_precision, 8, "T4", largest=True, where=True)
    assert len([w for w in caught if "knows only shapes, not values" in str(w.message)]) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((steps.stack(device="cpu"), 8, "T9"), ValueError, "T9"),
        ((steps.mlp, 8, "real"), ValueError, "a plan is for a kind of GPU"),
        ((steps.mlp, 0, "T4"), ValueError, "batch must be 1 or more, not 0"),
        ((steps.mlp, 2.5, "T4"), TypeError, "batch must be a whole number such as 32, not 2.5"),
        ((steps.mlp, True, "T4"), TypeError, "batch must be a whole number"),
        (("model", 8, "T4"), TypeError, "build must be a function"),
        ((lambda batch: None, 8, "T4"), TypeError, r"build\(8\) must return the step.*not None"),
        ((lambda batch: (1, 2), 8, "T4"), TypeError, r"build\(8\) must return the step.*not \(1, 2\) \(tuple\)"),
    ],
)
def test_arguments_that_cannot_be(arguments, error, text):
    with pytest.raises(error, match=text):
        plan(*arguments)
    assert in_force.current is None


def test_the_environment_names_the_gpu(monkeypatch):
    monkeypatch.setenv("GPULAB_GPU", "virtual:L4")
    assert plan(steps.mlp, 8).gpu == "L4"
    monkeypatch.setenv("GPULAB_GPU", "auto")
    assert plan(steps.mlp, 8).gpu == "T4"


@pytest.mark.parametrize(("product", "kind"), [("NVIDIA H200", "H200"), ("NVIDIA of tomorrow", "T4")])
def test_where_nobody_names_a_gpu_it_is_the_one_of_the_machine(monkeypatch, product, kind):
    monkeypatch.delenv("GPULAB_GPU", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: product)
    assert plan(steps.mlp, 8).gpu == kind
