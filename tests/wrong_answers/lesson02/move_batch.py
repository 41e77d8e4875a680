"""Answers to "move a nested batch": containers, what is no tensor, and the caller's own batch."""

import copy
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch.utils import _pytree

from gpulab.check.lesson02.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("move_batch", SECTIONS)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def calls_itself(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: calls_itself(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(calls_itself(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(calls_itself(item, device) for item in batch)
    return batch


@BANK.right
def uses_match(batch, device):
    match batch:
        case torch.Tensor():
            return batch.to(device)
        case dict():
            return type(batch)((key, uses_match(value, device)) for key, value in batch.items())
        case list():
            return [uses_match(item, device) for item in batch]
        case tuple():
            items = (uses_match(item, device) for item in batch)
            return batch._make(items) if hasattr(batch, "_make") else tuple(items)
        case _:
            return batch


@BANK.right
def uses_a_tree(batch, device):
    return _pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)


@BANK.right
def uses_the_abstract_types(batch, device):
    if torch.is_tensor(batch):
        return batch if batch.device == torch.device(device) else batch.to(device)
    if isinstance(batch, Mapping):
        return dict(zip(batch.keys(), [uses_the_abstract_types(v, device) for v in batch.values()], strict=True))
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        moved = [uses_the_abstract_types(item, device) for item in batch]
        if isinstance(batch, list):
            return moved
        return type(batch)(*moved) if hasattr(batch, "_fields") else tuple(moved)
    return batch


@BANK.right
def asks_by_type_at_the_first_argument(batch, device):
    @functools.singledispatch
    def moved(x):
        return x

    moved.register(torch.Tensor, lambda x: x.to(device))
    moved.register(dict, lambda x: {key: moved(value) for key, value in x.items()})
    moved.register(list, lambda x: list(map(moved, x)))
    moved.register(tuple, lambda x: x._make(map(moved, x)) if hasattr(x, "_make") else tuple(map(moved, x)))
    return moved(batch)


@BANK.right
def waits_for_its_copies_from_the_gpu(batch, device):
    got = of_tensors(lambda x, device: x.to(device, non_blocking=True), batch, device)
    torch.cuda.synchronize()
    return got


# --- wrong: containers ---------------------------------------------------------------------------------


@BANK.wrong("your function raised AttributeError", "not everything in a batch has a .to")
def moves_every_value(batch, device):
    return {key: value.to(device) for key, value in batch.items()}


@BANK.wrong("a tensor stayed behind", "a list in the dict was not entered")
def goes_one_deep(batch, device):
    if isinstance(batch, dict):
        return {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}
    return batch


@BANK.wrong("a tensor stayed behind", "a tuple is a container too")
def forgets_tuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: forgets_tuples(value, device) for key, value in batch.items()}
    if isinstance(batch, list):
        return [forgets_tuples(item, device) for item in batch]
    return batch


@BANK.wrong("a tensor stayed behind", "a namedtuple is a tuple")
def forgets_namedtuples(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: forgets_namedtuples(value, device) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(forgets_namedtuples(item, device) for item in batch)
    return batch


@BANK.wrong("your function raised TypeError", "a namedtuple takes its items one by one")
def builds_a_namedtuple_of_an_iterable(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: builds_a_namedtuple_of_an_iterable(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(builds_a_namedtuple_of_an_iterable(item, device) for item in batch)
    return batch


@BANK.wrong("a container changed its type", "a namedtuple became a plain tuple")
def makes_a_plain_tuple(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: makes_a_plain_tuple(value, device) for key, value in batch.items()}
    if isinstance(batch, list):
        return [makes_a_plain_tuple(item, device) for item in batch]
    if isinstance(batch, tuple):
        return tuple(makes_a_plain_tuple(item, device) for item in batch)
    return batch


@BANK.wrong("a container changed its type", "lists and tuples are told apart")
def makes_lists(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: makes_lists(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [makes_lists(item, device) for item in batch]
    return batch


@BANK.wrong("a container changed its type", "going through a dict gives its keys")
def goes_through_the_keys(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, str):
        return batch
    if isinstance(batch, Iterable):
        return [goes_through_the_keys(item, device) for item in batch]
    return batch


# --- wrong: what is no tensor --------------------------------------------------------------------------


@BANK.wrong("your function raised RecursionError", "do not go into texts")
def goes_into_texts(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: goes_into_texts(value, device) for key, value in batch.items()}
    if isinstance(batch, Iterable):
        return [goes_into_texts(item, device) for item in batch]
    return batch


@BANK.wrong("a container has other items than before", "None and texts belong to the batch too")
def drops_the_rest(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        moved = {key: drops_the_rest(value, device) for key, value in batch.items()}
        return {key: value for key, value in moved.items() if value is not None}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(drops_the_rest(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(drops_the_rest(item, device) for item in batch)
    return batch


@BANK.wrong("something that is no tensor did not come back as it was", "a branch of the function ends without")
def has_no_last_return(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: has_no_last_return(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(has_no_last_return(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(has_no_last_return(item, device) for item in batch)
    return None


@BANK.wrong("something that is no tensor did not come back as it was", "numbers were made into tensors")
def makes_tensors_of_numbers(batch, device):
    if isinstance(batch, torch.Tensor | float | int):
        return torch.as_tensor(batch).to(device)
    if isinstance(batch, dict):
        return {key: makes_tensors_of_numbers(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(makes_tensors_of_numbers(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(makes_tensors_of_numbers(item, device) for item in batch)
    return batch


@BANK.wrong("something that is no tensor did not come back as it was", "was copied")
def copies_everything(batch, device):
    return calls_itself(copy.deepcopy(batch), device)


# --- wrong: the caller's batch, and the device -----------------------------------------------------------


@BANK.wrong("the caller's batch was changed", "build new ones")
def changes_it_in_place(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for key in batch:
            batch[key] = changes_it_in_place(batch[key], device)
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(changes_it_in_place(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(changes_it_in_place(item, device) for item in batch)
    return batch


@BANK.wrong("a tensor stayed behind", "the result of .to was thrown away")
def throws_the_result_away(batch, device):
    if isinstance(batch, torch.Tensor):
        batch.to(device)
    elif isinstance(batch, dict):
        for value in batch.values():
            throws_the_result_away(value, device)
    elif isinstance(batch, list | tuple):
        for item in batch:
            throws_the_result_away(item, device)
    return batch


@BANK.wrong("a tensor stayed behind", "a GPU is named in the code")
def takes_the_current_gpu(batch, device):
    return calls_itself(batch, torch.device(device).type)


@BANK.wrong("a tensor that was there already was copied", "copy=True, clone()")
def copies_what_is_there(batch, device):
    return _pytree.tree_map(lambda x: x.to(device, copy=True) if isinstance(x, torch.Tensor) else x, batch)


@BANK.wrong("a tensor stayed behind", "a tensor without dimensions")
def forgets_numbers_on_the_device(batch, device):
    return _pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) and x.dim() else x, batch)


@BANK.wrong("a tensor came back as something else", "dtype and shape stay")
def makes_everything_float(batch, device):
    return _pytree.tree_map(lambda x: x.to(device).float() if isinstance(x, torch.Tensor) else x, batch)


@BANK.wrong("a tensor has other values than before", "the old one had to be copied")
def makes_new_ones(batch, device):
    def made(x):
        return torch.zeros_like(x, device=device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x

    return _pytree.tree_map(made, batch)


@BANK.wrong("your function raised AttributeError", "the batch is not always a dict")
def takes_a_dict(batch, device):
    return {key: calls_itself(value, device) for key, value in batch.items()}


def of_tensors(move, batch, device):
    return _pytree.tree_map(lambda x: move(x, device) if isinstance(x, torch.Tensor) else x, batch)


@BANK.wrong("a tensor stayed behind", "a tensor without elements")
def forgets_what_is_empty(batch, device):
    return of_tensors(lambda x, device: x.to(device) if x.numel() else x, batch, device)


@BANK.wrong("a tensor stayed behind", "the way back counts too")
def only_to_a_gpu(batch, device):
    return of_tensors(lambda x, device: x.to(device) if torch.device(device).type == "cuda" else x, batch, device)


@BANK.wrong("a tensor is no longer part of the graph", "detach() and .data cut it off")
def cuts_it_off(batch, device):
    return of_tensors(lambda x, device: x.detach().to(device) if x.requires_grad else x.to(device), batch, device)


@BANK.wrong("a tensor that was there already was copied", "contiguous()", same_as="copies_what_is_there")
def makes_it_contiguous(batch, device):
    return of_tensors(lambda x, device: x.to(device).contiguous(), batch, device)


@BANK.wrong("a container came back as the same object", "an empty one is a container too")
def gives_empty_ones_back(batch, device):
    leaf = lambda x: isinstance(x, list | dict) and not x  # noqa: E731
    return _pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, batch, is_leaf=leaf)


def of_containers(move, batch, device, other=lambda x: x):
    """`calls_itself`, with `move` for tensors and `other` for what is neither a tensor nor a container."""
    again = functools.partial(of_containers, move, device=device, other=other)
    if isinstance(batch, torch.Tensor):
        return move(batch, device)
    if isinstance(batch, dict):
        return {key: again(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(again, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(again, batch))
    return other(batch)


# --- wrong: dtypes, the graph, and when the values are there ---------------------------------------------


@BANK.wrong("a tensor came back as something else", "float64 and bfloat16 are floats too")
def casts_what_is_float(batch, device):
    return of_tensors(
        lambda x, device: x.to(device, torch.float32 if x.is_floating_point() else x.dtype), batch, device
    )


@BANK.wrong("a tensor came back as something else", "float64 and bfloat16", same_as="casts_what_is_float")
def casts_float64(batch, device):
    return of_tensors(lambda x, device: (x.float() if x.dtype == torch.float64 else x).to(device), batch, device)


@BANK.wrong("a tensor is no longer part of the graph", "never reaches the caller's tensor", same_as="cuts_it_off")
def makes_a_new_leaf(batch, device):
    def moved(x, device):
        there = x.device == torch.device(device)
        return x if there else x.detach().to(device).requires_grad_(x.requires_grad)

    return of_tensors(moved, batch, device)


@BANK.wrong("the values are not on the CPU yet when the function returns", "before the copy is made")
def never_blocks(batch, device):
    return of_tensors(lambda x, device: x.to(device, non_blocking=True), batch, device)


@BANK.wrong("a tensor that was there already was copied", "is equal to no tensor's device")
def compares_the_devices_itself(batch, device):
    there = torch.device(device)
    return of_tensors(lambda x, device: x if x.device == there else x.to(device, copy=True), batch, device)


@BANK.wrong("a tensor stayed behind", "an nn.Parameter is a tensor too")
def asks_for_the_type_itself(batch, device):
    return of_containers(lambda x, device: x.to(device) if type(x) is torch.Tensor else x, batch, device)


# --- wrong: more is taken apart, or moved, than was asked for ---------------------------------------------


def to(x, device):
    return x.to(device)


@BANK.wrong("something that is no tensor did not come back as it was", "what belongs to NumPy was made into a tensor")
def moves_arrays_too(batch, device):
    def other(x):
        return torch.from_numpy(x).to(device) if isinstance(x, np.ndarray) else x

    return of_containers(to, batch, device, other)


@BANK.wrong("something that is no tensor did not come back as it was", "only tensors move", same_as="moves_arrays_too")
def moves_numpys_numbers_too(batch, device):
    def other(x):
        return torch.as_tensor(x, device=device) if isinstance(x, np.generic) else x

    return of_containers(to, batch, device, other)


@BANK.wrong("something that is no tensor did not come back as it was", "and it is a dataclass")
def builds_dataclasses_anew(batch, device):
    def other(x):
        if not dataclasses.is_dataclass(x):
            return x
        parts = {part.name: getattr(x, part.name) for part in dataclasses.fields(x)}
        return dataclasses.replace(x, **builds_dataclasses_anew(parts, device))

    return of_containers(to, batch, device, other)


@BANK.wrong("something that is no tensor did not come back as it was", "One can iterate",
            same_as="builds_dataclasses_anew")  # fmt: skip
def goes_through_what_iterates(batch, device):
    def other(x):
        if isinstance(x, Iterable) and not isinstance(x, str | bytes | np.ndarray):
            return [goes_through_what_iterates(item, device) for item in x]
        return x

    return of_containers(to, batch, device, other)


@BANK.wrong("something that is no tensor did not come back as it was", "bytes are a sequence")
def goes_through_sequences(batch, device):
    def other(x):
        if isinstance(x, Sequence) and not isinstance(x, str):
            return [goes_through_sequences(item, device) for item in x]
        return x

    return of_containers(to, batch, device, other)


@BANK.wrong("something that is no tensor did not come back as it was", "bytes are a sequence",
            same_as="goes_through_sequences")  # fmt: skip
def builds_what_iterates_anew(batch, device):
    def other(x):
        if isinstance(x, Iterable) and not isinstance(x, str):
            return type(x)([builds_what_iterates_anew(item, device) for item in x])
        return x

    return of_containers(to, batch, device, other)


@BANK.wrong("the caller's batch was changed", "and so do its attributes")
def moves_attributes_in_place(batch, device):
    def other(x):
        for name, value in getattr(x, "__dict__", {}).items():
            setattr(x, name, moves_attributes_in_place(value, device))
        return x

    return of_containers(to, batch, device, other)


@BANK.wrong("your function raised TypeError", "a namedtuple without fields is one too")
def asks_whether_there_are_fields(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: asks_whether_there_are_fields(value, device) for key, value in batch.items()}
    if getattr(batch, "_fields", None):
        return type(batch)(*(asks_whether_there_are_fields(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)([asks_whether_there_are_fields(item, device) for item in batch])
    return batch
