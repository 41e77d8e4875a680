"""Judges the turns of lesson 02: copies, what moves with a module, the order of resuming, no device named."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

THERE = torch.device("cuda", 1)  # not the current GPU, so that "cuda" is another place


@turn("batch + 1 is on the device, and the caller's tensor is unchanged, wherever it was")
def brighten(answer: Any) -> None:
    """A function (batch, device) that returns batch + 1 on the device and leaves the caller's tensor unchanged."""
    with virtual_gpu(count=2):
        for source, place in ((THERE, THERE), (torch.device("cpu"), torch.device("cpu")), (torch.device("cpu"), THERE)):
            batch = torch.rand(2, 5, device=source)
            before = batch.clone()
            got = answer(batch, place)
            _caller_unchanged(batch, before, got)
            if not isinstance(got, torch.Tensor):
                raise NotYet(f"{brief(got)} came back", expected="the batch", likely="the return is missing")
            if got.device != place:
                raise NotYet(
                    f"the batch is on {got.device}", expected=f"on {place}", likely="a line with .to is missing"
                )
            if got.shape != before.shape or not torch.allclose(got.cpu(), before.cpu() + 1):
                raise NotYet(
                    f"other values than the batch plus one ({brief(got)})",
                    expected="batch + 1",
                    likely="the sum is thrown away"
                    if got.shape == before.shape and torch.equal(got.cpu(), before.cpu())
                    else "something else was added",
                )


def _caller_unchanged(batch: torch.Tensor, before: torch.Tensor, got: object) -> None:
    if torch.equal(batch, before):
        return
    if got is batch:
        raise AsGiven(f"the caller's tensor is changed if it is already on {batch.device}")
    raise NotYet(
        f"the caller's tensor on {batch.device} is changed",
        expected="as it was",
        likely="a view and .detach() share the caller's memory; a sum or .clone() has its own",
    )


@turn("the table and both layers move, the optimizer gets only the layers, and the checkpoint has no table")
def registered(answer: Any) -> None:
    """A module class of `table`, of shape (8,), with two layers: all move, the table is not trained or saved."""
    table = torch.randn(8)
    with virtual_gpu(count=2):
        model = answer(table.clone())
        if not isinstance(model, nn.Module):
            raise NotYet(
                f"{brief(model)} came", expected="an nn.Module", likely="the class no longer inherits from nn.Module"
            )
        if not list(model.parameters()) and not list(model.buffers()) and _is_on(model, "cpu"):
            raise AsGiven("`.to` finds no tensor in the model")
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        if "table" in trained:
            raise NotYet(
                f"an optimizer gets {len(trained)} tensors, including the table",
                expected="weights and biases of the two layers, 4",
                likely="nn.Parameter is for trained tensors; `.to` moves a buffer as well",
            )
        if len(trained) != 4:
            raise NotYet(
                f"an optimizer gets {len(trained)} tensors of the layers",
                expected="weights and biases of the two layers, 4",
                likely="a Python list registers nothing; nn.ModuleList does",
            )
        model.to(THERE)
        if not _is_on(model, THERE):
            place = getattr(getattr(model, "table", None), "device", "nowhere")
            raise NotYet(
                f"after model.to('{THERE}') the table is on {place}",
                expected=f"on {THERE}",
                likely="a tensor in a plain attribute is not registered, and `.to` does not see it"
                if place == torch.device("cpu")
                else "the constructor chose the device; leave that to the caller of `.to`",
            )
        if "table" in model.state_dict():
            raise NotYet(
                f"the checkpoint has {len(model.state_dict())} tensors, including the table",
                expected="the 4 of the layers",
                likely="a buffer is saved unless it is made with persistent=False"
                if "table" in dict(model.named_buffers())
                else "a Parameter is always saved, even if it is not trained",
            )
        _same_values(model, table)


def _is_on(model: nn.Module, place: str | torch.device) -> bool:
    table = getattr(model, "table", None)
    return isinstance(table, torch.Tensor) and table.device == torch.device(place)


def _same_values(model: Any, table: torch.Tensor) -> None:
    x = torch.randn(3, 8)
    if not torch.equal(model.table.cpu(), table):
        raise NotYet(
            "the table has other values", expected="those given to the constructor", likely="a new table was made"
        )
    on_gpu, on_cpu = model(x.to(THERE)), model.cpu()(x)
    tensors = isinstance(on_gpu, torch.Tensor) and isinstance(on_cpu, torch.Tensor)
    if not tensors or on_gpu.device != THERE or not torch.allclose(on_gpu.cpu(), on_cpu, atol=1e-4):
        raise NotYet(
            f"forward gives {brief(on_gpu)} on {on_gpu.device if tensors else 'no device'}",
            expected=f"the same result as on the CPU, on {THERE}",
            likely="forward moves or makes a tensor; change only the two lines of the constructor",
        )


@turn("the mask is on the device of x, both on the CPU and on the second GPU")
def any_device(answer: Any) -> None:
    """A function (x, lengths) that gives True where a position of x, (batch, tokens), is past its sequence's end."""
    tokens = 6
    lengths = [tokens, *torch.randint(1, tokens, (3,)).tolist()]
    right = [[position >= length for position in range(tokens)] for length in lengths]
    with virtual_gpu(count=2):
        for place in (THERE, torch.device("cpu")):
            x = torch.zeros(len(lengths), tokens, device=place)
            mask = answer(x, list(lengths))
            if not isinstance(mask, torch.Tensor):
                raise NotYet(f"{brief(mask)} came back", expected="the mask", likely="the return is missing")
            if mask.device != place:
                _elsewhere(mask.device, place)
            if mask.tolist() != right or mask.dtype != torch.bool:
                raise NotYet(
                    f"for the lengths {lengths} the mask has {_rows(mask)}",
                    expected=f"{[sum(row) for row in right]} times True in its rows of {tokens}, dtype torch.bool",
                    likely="more than devices was changed: positions count from 0, the first past the end is == length",
                )


def _elsewhere(got: torch.device, place: torch.device) -> None:
    if place == THERE and got.type == "cpu":
        raise AsGiven(f"x is on {place} and the mask on the CPU")
    raise NotYet(
        f"x is on {place}, and the mask on {got}",
        expected=f"on {place}",
        likely="the code names a device: `cuda` is the current GPU, `device` the notebook's; ask x for its own",
    )


def _rows(mask: torch.Tensor) -> str:
    if mask.dtype != torch.bool or mask.dim() != 2:
        return f"the shape {tuple(mask.shape)} and {mask.dtype}"
    return f"{mask.sum(1).tolist()} times True in its rows"


@turn("the model and the optimizer's state are on the GPU with the checkpoint's values, and a step changes the model")
def resume_in_order(answer: Any) -> None:
    """A function (build, checkpoint, device) that returns the model and its Adam, both resumed on the device."""
    checkpoint = _checkpoint()
    with virtual_gpu(count=2):
        got = answer(_network, checkpoint, THERE)
        if not (isinstance(got, tuple) and len(got) == 2 and isinstance(got[0], nn.Module)):
            raise NotYet(f"{brief(got)} came back", expected="(model, optimizer)", likely="the last line was changed")
        model, optimizer = got
        parameters = dict(model.named_parameters())
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        states = [state.get("exp_avg") for state in optimizer.state.values()]
        _resumed_model(parameters, checkpoint, held, states)
        if len(states) != len(parameters):
            raise NotYet(
                f"the optimizer has state for {len(states)} of {len(parameters)} parameters",
                expected="for all",
                likely="optimizer.load_state_dict is missing, or another optimizer was made after it",
            )
        for name, p in parameters.items():
            moment = optimizer.state[p]["exp_avg"]
            if moment.device != p.device:
                raise NotYet(
                    f"the moment of {name} is on {moment.device}, the parameter on {p.device}",
                    expected=f"both on {THERE}",
                    likely="loading puts the state on the parameters' device: move the model before that",
                )
        model(torch.randn(4, 6, device=THERE)).sum().backward()
        optimizer.step()


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def _checkpoint() -> dict[str, Any]:
    """The checkpoint of a network and its Adam after one step, on the CPU."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _resumed_model(
    parameters: dict[str, nn.Parameter], checkpoint: dict[str, Any], held: set[int], states: list[Any]
) -> None:
    """The model is on the GPU with the checkpoint's values, and its parameters are those that the optimizer holds."""
    elsewhere = [f"{name} on {p.device}" for name, p in parameters.items() if p.device != THERE]
    if elsewhere:
        raise NotYet(
            elsewhere[0],
            expected=f"on {THERE}",
            likely="assign=True makes the checkpoint's tensors the parameters, on their device: move the model later",
        )
    if not all(torch.equal(p.cpu(), checkpoint["model"][name].cpu()) for name, p in parameters.items()):
        raise NotYet(
            "the model has other values than the checkpoint",
            expected="the checkpoint's",
            likely="model.load_state_dict is missing, or another model was built after it",
        )
    if any(id(p) not in held for p in parameters.values()):
        if any(moment is not None and moment.device.type == "cpu" for moment in states):
            raise AsGiven("the optimizer holds parameters that the model no longer has, and its state is on the CPU")
        raise NotYet(
            "the optimizer holds parameters that the model no longer has",
            expected="the model's own",
            likely="assign=True replaces the parameters, so load the model before you make the optimizer",
        )
