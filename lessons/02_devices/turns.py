"""Judges the turns of lesson 02: what moves with a module, and code that names no device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

THERE = torch.device("cuda", 1)  # not the current GPU, so that "cuda" is another place


@turn("the table and both layers go along, the optimizer gets the layers alone, and the checkpoint has no table")
def registered(answer: Any) -> None:
    """A module class of `table`, of shape (8,), with two layers: all moves, the table is neither trained nor saved."""
    table = torch.randn(8)
    with virtual_gpu(count=2):
        model = answer(table.clone())
        if not isinstance(model, nn.Module):
            raise NotYet(f"{brief(model)} came", expected="an nn.Module", likely="the class lost its base, nn.Module")
        if not list(model.parameters()) and not list(model.buffers()) and _is_on(model, "cpu"):
            raise AsGiven("`.to` finds no tensor in the model")
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        if "table" in trained:
            raise NotYet(
                f"an optimizer gets {len(trained)} tensors, the table among them",
                expected="weights and biases of the two layers, 4",
                likely="nn.Parameter is for what is trained; a buffer goes along all the same",
            )
        if len(trained) != 4:
            raise NotYet(
                f"an optimizer gets {len(trained)} tensors of the layers",
                expected="weights and biases of the two layers, 4",
                likely="a list of Python's registers nothing; nn.ModuleList is the list that does",
            )
        model.to(THERE)
        if not _is_on(model, THERE):
            place = getattr(getattr(model, "table", None), "device", "nowhere")
            raise NotYet(
                f"after model.to('{THERE}') the table is on {place}",
                expected=f"on {THERE}",
                likely="a tensor in a plain attribute is not registered, and `.to` does not see it"
                if place == torch.device("cpu")
                else "the constructor chose its place; leave that to whoever calls `.to`",
            )
        if "table" in model.state_dict():
            raise NotYet(
                f"the checkpoint has {len(model.state_dict())} tensors, the table among them",
                expected="the 4 of the layers",
                likely="a buffer is saved unless it is made with persistent=False"
                if "table" in dict(model.named_buffers())
                else "a Parameter is always saved, also one that is not trained",
            )
        _same_values(model, table)


def _is_on(model: nn.Module, place: str | torch.device) -> bool:
    table = getattr(model, "table", None)
    return isinstance(table, torch.Tensor) and table.device == torch.device(place)


def _same_values(model: Any, table: torch.Tensor) -> None:
    x = torch.randn(3, 8)
    if not torch.equal(model.table.cpu(), table):
        raise NotYet("the table has other values", expected="those it was made of", likely="it was made anew")
    on_gpu, on_cpu = model(x.to(THERE)), model.cpu()(x)
    tensors = isinstance(on_gpu, torch.Tensor) and isinstance(on_cpu, torch.Tensor)
    if not tensors or on_gpu.device != THERE or not torch.allclose(on_gpu.cpu(), on_cpu, atol=1e-4):
        raise NotYet(
            f"forward gives {brief(on_gpu)} on {on_gpu.device if tensors else 'no device'}",
            expected=f"what it gives on the CPU, on {THERE}",
            likely="forward moves or makes something; only the two lines of the constructor need a change",
        )


@turn("the mask is where x is, on the CPU and on the second GPU")
def any_device(answer: Any) -> None:
    """A function (x, lengths) that gives True where a position of x, (batch, tokens), is behind its sequence's end."""
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
                    likely="more than the devices was changed: a position counts from 0, so it is behind from >= on",
                )


def _elsewhere(got: torch.device, place: torch.device) -> None:
    if place == THERE and got.type == "cpu":
        raise AsGiven(f"x is on {place} and the mask on the CPU")
    raise NotYet(
        f"x is on {place}, and the mask on {got}",
        expected=f"on {place}",
        likely="the code names a device: `cuda` is the current GPU, `device` the notebook's; x knows its own",
    )


def _rows(mask: torch.Tensor) -> str:
    if mask.dtype != torch.bool or mask.dim() != 2:
        return f"the shape {tuple(mask.shape)} and {mask.dtype}"
    return f"{mask.sum(1).tolist()} times True in its rows"
