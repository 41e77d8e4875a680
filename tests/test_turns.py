"""The reader's turns in the lectures: unsolved they are calm, solved they pass, wrong answers are told what is wrong.

The lectures as saved, with the code that is given, are run by the lane `notebooks`; here they are run solved.
"""

import dis
import functools
import logging
import math
import os
import pickle
import re
import subprocess
import time
import traceback
import zipfile
import zlib
from contextlib import nullcontext
from pathlib import Path

import build
import nbformat
import numpy as np
import pytest
import torch
from courselib.lanes import lanes_for_tests
from courselib.ready import python_here
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import gpulab
from gpulab import course
from gpulab.exercise import turns as base

ROOT = Path(__file__).resolve().parent.parent
CALL = re.compile(r"gpulab\.turn\.(\w+)\((\w+)\)$")
NOTEBOOKS = {path: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def is_turn(cell):
    return "your-turn" in cell.metadata.get("tags", [])


# Per turn: its lecture, the cell as the reader gets it, and its code solved.
TURNS = {
    CALL.search(cell.source)[1]: (path, cell, solved.source)
    for path, notebook in NOTEBOOKS.items()
    for cell, solved in zip(notebook.cells, build.solved(notebook).cells, strict=True)
    if is_turn(cell)
}
BY_NAME = pytest.mark.parametrize("name", TURNS)
PLACES = pytest.mark.parametrize("place", ["without", "virtual"])
WRONG, RIGHT = [], []


def wrong(turn, *told):
    """A wrong answer to this turn, and what the reader must be told."""
    return lambda answer: WRONG.append((turn, answer, told)) or answer


def right(turn):
    return lambda answer: RIGHT.append((turn, answer)) or answer


# --- lesson 01 -------------------------------------------------------------------------------------------------------


@right("half_the_time")
def in_bf16(x):
    return x.bfloat16()


@wrong("half_the_time", "shape (2048,)", "numbers were left out")
def half_of_the_numbers(x):
    return x[: len(x) // 2]


@wrong("half_the_time", "8 bytes a number", "half of 4 is 2")
def more_bytes(x):
    return x.double()


@wrong("half_the_time", "1 bytes a number", "half of 4 is 2")
def in_one_byte(x):
    return x.to(torch.float8_e4m3fn)


@wrong("half_the_time", "other numbers (torch.int16)", "an integer type")
def whole_numbers(x):
    return x.short()


@wrong("half_the_time", "4 bytes a number", "half of 4 is 2")
def rounded_and_back(x):
    return x.half().float()


@wrong("half_the_time", "None", "the return is missing")
def returns_no_numbers(x):
    x.half()


@right("two_masks")
def whole_warps_and_halves_of_warps(thread):
    return [thread // 32 % 2 == 0, thread % 32 < 16]


@wrong("two_masks", "32 of 32 warps of `cheap` run both sides", "a warp is 32 consecutive threads")
def the_wrong_way_round(thread):
    return thread % 2 == 0, thread < 512


@wrong("two_masks", "2 of 32 warps of `expensive`", "a warp is 32 consecutive threads")
def across_two_warps(thread):
    return thread < 512, (thread >= 16) & (thread < 528)


@wrong("two_masks", "32 threads of `expensive` take the branch", "half of the threads")
def one_of_each_warp(thread):
    return thread < 512, thread % 32 == 0


@wrong("two_masks", "for `expensive`", "a comparison gives them")
def numbers_for_a_mask(thread):
    return thread < 512, thread % 2


@wrong("two_masks", "None", "the return or one of the two")
def returns_no_masks(thread):
    thread < 512, thread % 2 == 0


WAITS = {
    "relu of 64 Mi numbers": "memory",
    "relu of 1,000 numbers": "launch",
    "4096 × 4096 product": "arithmetic",
    "1 row × 4096 × 4096": "memory",
    "softmax of 4096 × 4096": "memory",
    "3 × 3 convolution": "arithmetic",
}


@right("read_on_any_device")
def cuda_if_there_is_one(model, images):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device)(images.to(device)).argmax(1).cpu()


@wrong("read_on_any_device", "the model runs on the CPU", "always the CPU")
def only_the_cpu(model, images):
    return model.to("cpu")(images).argmax(1)


@wrong("read_on_any_device", "the digits are on cuda:0", ".cpu() after the return is missing")
def digits_left_there(model, images):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device)(images.to(device)).argmax(1)


@wrong("read_on_any_device", "wrong digits came back", "more than the devices")
def smallest_logit(model, images):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device)(images.to(device)).argmin(1).cpu()


@wrong("read_on_any_device", "None came back", "the return is missing")
def nothing_returned(model, images):
    model(images)


@wrong("read_on_any_device", "fails on a machine without a GPU", "the code names a device")
def cuda_by_name(model, images):
    return model.to("cuda")(images.to("cuda")).argmax(1).cpu()


@wrong("read_on_any_device", "the images are not on the model's device", "does not move `images`")
def images_left(model, images):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images.to(device)
    return model.to(device)(images).argmax(1).cpu()


@right("evaluated")
@torch.no_grad()
def counts_with_no_grad(model, loader, device):
    model.eval()
    found = [(model(x.to(device)).argmax(1) == y.to(device)).float() for x, y in loader]
    return float(torch.cat(found).mean())


@wrong("evaluated", "drops activations at random", "inference_mode keeps nothing")
@torch.inference_mode()
def without_eval(model, loader, device):
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in loader)
    return right.item() / len(loader.dataset)


@wrong("evaluated", "keeps what backward would need", "leaves autograd on")
def without_inference_mode(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in loader)
    return right.item() / len(loader.dataset)


@wrong("evaluated", "waits for the GPU 5 times in 5 batches", "sum in a tensor on the device")
@torch.inference_mode()
def an_item_a_batch(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    return right / len(loader.dataset)


@wrong("evaluated", "0.7", "divide by len(loader.dataset)")
@torch.inference_mode()
def mean_of_means(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in loader)
    return right.item() / (5 * len(loader))


@wrong("evaluated", "came back", "the .item() at the end is missing")
@torch.inference_mode()
def a_tensor_returned(model, loader, device):
    model.eval()
    return sum((model(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in loader) / len(loader.dataset)


@right("through_a_file")
def state_on_the_cpu(model, copy, path, device):
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, path)
    copy.load_state_dict(torch.load(path))
    return copy.to(device)


@wrong("through_a_file", "bytes of the GPU's memory", "where it was saved")
def without_map_location(model, copy, path, device):
    torch.save(model.state_dict(), path)
    copy.load_state_dict(torch.load(path))
    return copy.to(device)


@wrong("through_a_file", "outputs differ", "load_state_dict was not called")
def never_loaded(model, copy, path, device):
    torch.save(model.state_dict(), path)
    return copy.to(device)


@wrong("through_a_file", "the file holds", "without names")
def a_list_saved(model, copy, path, device):
    torch.save(list(model.parameters()), path)
    return copy.to(device)


@wrong("through_a_file", "another model came back", "the trained model was returned")
def the_trained_one(model, copy, path, device):
    torch.save(model.state_dict(), path)
    return model.to(device)


@wrong("through_a_file", "there is no file", "the save is missing")
def never_saved(model, copy, path, device):
    copy.load_state_dict(model.state_dict())
    return copy.to(device)


@right("what_waits")
def in_another_order():
    return dict(reversed(WAITS.items()))


@wrong("what_waits", "'memory' for relu of 1,000 numbers", "longer to launch it")
def forgets_the_launch():
    return WAITS | {"relu of 1,000 numbers": "memory"}


@wrong("what_waits", "'arithmetic' for 1 row × 4096 × 4096", "only a few times")
def takes_every_product_for_arithmetic():
    return WAITS | {"1 row × 4096 × 4096": "arithmetic"}


@wrong("what_waits", "'memory' for 3 × 3 convolution", "hundreds of times")
def takes_a_convolution_for_memory():
    return WAITS | {"3 × 3 convolution": "memory"}


@wrong("what_waits", "'compute' for 4096 × 4096 product", "the three words are")
def another_word():
    return WAITS | {"4096 × 4096 product": "compute"}


@wrong("what_waits", "None", "the return is missing")
def returns_no_words():
    WAITS.copy()


# --- lesson 02 -------------------------------------------------------------------------------------------------------


class _Embed(nn.Module):
    def forward(self, x):
        return self.layers[1](self.layers[0](x + self.table).relu())


def two_layers():
    return [nn.Linear(8, 8), nn.Linear(8, 8)]


def embed(name, judged, make):
    """A class whose constructor is `make(self, table)`."""

    def __init__(self, table):
        nn.Module.__init__(self)
        make(self, table)

    judged(type(name, (_Embed,), {"__init__": __init__}))


def registers_the_old_way(self, table):
    self.register_buffer("table", table, persistent=False)
    self.layers = nn.Sequential(*two_layers())


def trains_the_table(self, table):
    self.table, self.layers = nn.Parameter(table), nn.ModuleList(two_layers())


def freezes_the_table(self, table):
    self.table, self.layers = nn.Parameter(table, requires_grad=False), nn.ModuleList(two_layers())


def saves_the_table(self, table):
    self.table, self.layers = nn.Buffer(table), nn.ModuleList(two_layers())


def leaves_the_list(self, table):
    self.table, self.layers = nn.Buffer(table, persistent=False), two_layers()


def leaves_the_table(self, table):
    self.table, self.layers = table, nn.ModuleList(two_layers())


def names_a_gpu(self, table):
    self.table, self.layers = table.to("cuda"), nn.ModuleList(two_layers())


def makes_another_table(self, table):
    self.table, self.layers = nn.Buffer(torch.zeros(8), persistent=False), nn.ModuleList(two_layers())


embed("OldWay", right("registered"), registers_the_old_way)
for make, *told in (
    (trains_the_table, "an optimizer gets 5 tensors, including the table", "nn.Parameter is for trained tensors"),
    (freezes_the_table, "the checkpoint has 5 tensors", "a Parameter is always saved"),
    (saves_the_table, "the checkpoint has 5 tensors", "persistent=False"),
    (leaves_the_list, "an optimizer gets 0 tensors of the layers", "nn.ModuleList does"),
    (leaves_the_table, "the table is on cpu; expected: on cuda:1", "a plain attribute"),
    (names_a_gpu, "the table is on cuda:0; expected: on cuda:1", "the constructor chose the device"),
    (makes_another_table, "the table has other values", "a new table was made"),
):
    embed(make.__name__, wrong("registered", *told), make)


@wrong("registered", "forward gives None on no device", "only the two lines")
class ForwardGivesNothing(_Embed):
    def __init__(self, table):
        super().__init__()
        registers_the_old_way(self, table)

    def forward(self, x):
        super().forward(x)


@wrong("registered", "expected: an nn.Module", "no longer inherits from nn.Module")
class NoModule:
    def __init__(self, table):
        self.table = table


@right("any_device")
def with_new_tensors(x, lengths):
    return torch.arange(x.shape[1]).to(x.device) >= x.new_tensor(lengths)[:, None]


@wrong("any_device", "x is on cuda:1, and the mask on cuda:0", "ask x for its own")
def on_the_current_gpu(x, lengths):
    return torch.arange(x.shape[1], device="cuda") >= torch.tensor(lengths, device="cuda")[:, None]


@wrong("any_device", "x is on cpu, and the mask on cuda:1", "ask x for its own")
def on_the_second_gpu(x, lengths):
    return (torch.arange(x.shape[1]) >= torch.tensor(lengths)[:, None]).to("cuda:1")


@wrong("any_device", "None came back", "the return is missing")
def without_return(x, lengths):
    with_new_tensors(x, lengths)


@wrong("any_device", "times True in its rows", "the first past the end is == length")
def one_too_few(x, lengths):
    return torch.arange(x.shape[1], device=x.device) > torch.tensor(lengths, device=x.device)[:, None]


@wrong("any_device", "torch.int64", "dtype torch.bool")
def in_numbers(x, lengths):
    return with_new_tensors(x, lengths).long()


@right("brighten")
def copies_first(batch, device):
    batch = batch.to(device, copy=True)
    batch += 1
    return batch


@right("brighten")
def adds_anew(batch, device):
    return torch.add(batch.to(device), 1)


@wrong("brighten", "the caller's tensor on cuda:1 is changed", "detach() share the caller's memory")
def adds_to_a_detached_one(batch, device):
    batch = batch.to(device).detach()
    batch += 1
    return batch


@wrong("brighten", "other values", "the sum is thrown away")
def throws_the_sum_away(batch, device):
    batch = batch.to(device)
    batch.add(1)
    return batch


@wrong("brighten", "other values", "something else was added")
def adds_twice(batch, device):
    return batch.to(device) + 2


@wrong("brighten", "None came back", "the return is missing")
def brightens_nothing(batch, device):
    batch.to(device) + 1


@wrong("brighten", "the batch is on cpu", "a line with .to is missing")
def stays_where_it_is(batch, device):
    return batch + 1


def resume_with(*steps):
    """A `resume` of these steps in this order; each gets what there is: model, optimizer, checkpoint, device, build."""

    def resume(build, checkpoint, device):
        now = {"build": build, "checkpoint": checkpoint, "device": device}
        for step in steps:
            step(now)
        return now["model"], now["optimizer"]

    return resume


def builds(now):
    now["model"] = now["build"]()


def moves(now):
    now["model"].to(now["device"])


def to_the_current_gpu(now):
    now["model"].to("cuda")


def makes_adam(now):
    now["optimizer"] = torch.optim.Adam(now["model"].parameters())


def loads_adam(now):
    now["optimizer"].load_state_dict(now["checkpoint"]["optimizer"])


def assigns(now):
    now["model"].load_state_dict(now["checkpoint"]["model"], assign=True)


def copies(now):
    now["model"].load_state_dict(now["checkpoint"]["model"])


right("resume_in_order")(resume_with(builds, assigns, moves, makes_adam, loads_adam))
right("resume_in_order")(resume_with(builds, moves, makes_adam, loads_adam, copies))
for told, *steps in (
    (("on cpu", "move the model later"), builds, moves, assigns, makes_adam, loads_adam),
    (("on cuda:0; expected: on cuda:1",), builds, assigns, to_the_current_gpu, makes_adam, loads_adam),
    (("the moment of 0.weight is on cpu", "move the model before"), builds, assigns, makes_adam, loads_adam, moves),
    (
        ("the model no longer has", "before you make the optimizer"),
        builds,
        moves,
        makes_adam,
        loads_adam,
        assigns,
        moves,
    ),
    (("other values than the checkpoint", "model.load_state_dict is missing"), builds, moves, makes_adam, loads_adam),
    (("has state for 0 of 4 parameters", "is missing"), builds, assigns, moves, makes_adam),
):
    wrong("resume_in_order", *told)(resume_with(*steps))


@wrong("resume_in_order", "came back", "the last line was changed")
def resumes_the_model_alone(build, checkpoint, device):
    model = build()
    model.load_state_dict(checkpoint["model"])
    return model.to(device)


# --- lesson 03 -------------------------------------------------------------------------------------------------------


@right("honest_clock")
def by_two_events(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


@right("honest_clock")
def by_the_stream(work):
    stream = torch.cuda.current_stream()
    stream.synchronize()
    start = time.perf_counter()
    work()
    stream.synchronize()
    return 1000 * (time.perf_counter() - start)


@wrong("honest_clock", "older work was in the queue")
def waits_at_the_end_only(work):
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000


@wrong("honest_clock", "wait before the second reading")
def waits_at_the_start_only(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


@wrong("honest_clock", "wait before the second reading")
def waits_after_the_reading(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return took * 1000


@wrong("honest_clock", "older work was in the queue")
def starts_before_the_first_wait(work):
    start = time.perf_counter()
    torch.cuda.synchronize()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1000


@wrong("honest_clock", "perf_counter counts seconds")
def in_seconds(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


@wrong("honest_clock", "by time.time", "other clocks can be set back")
def by_another_clock(work):
    torch.cuda.synchronize()
    start = time.time()
    work()
    torch.cuda.synchronize()
    return (time.time() - start) * 1000


@wrong("honest_clock", "None", "the last line was changed")
def returns_no_time(work):
    torch.cuda.synchronize()
    work()
    torch.cuda.synchronize()


@right("everyday_form")
def shuffled_and_through_a_device(dataset):
    loader = torch.utils.data.DataLoader(dataset, batch_size=100, shuffle=True, pin_memory=True)
    for batch in loader:
        yield [part.to(torch.device("cuda", 0), non_blocking=True) for part in batch]


@right("everyday_form")
def by_cuda(dataset):
    loader = torch.utils.data.DataLoader(dataset, 256, pin_memory=True)
    return ((images.cuda(non_blocking=True), labels.cuda(non_blocking=True)) for images, labels in loader)


@wrong("everyday_form", "the host waits: copy to GPU, pinned", "non_blocking=True is missing")
def pinned_alone(dataset):
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True):
        yield images.to("cuda"), labels.to("cuda")


@wrong("everyday_form", "the host waits: copy to GPU, pinned", "in one `.to` or both")
def one_of_two(dataset):
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True):
        yield images.to("cuda", non_blocking=True), labels.to("cuda")


@wrong("everyday_form", "in pageable memory", "pin_memory=True in the DataLoader is missing")
def the_flag_alone(dataset):
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=256):
        yield images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)


@wrong("everyday_form", "pinned in the loop", "pinning in the loop costs more than it saves")
def pinned_in_the_line(dataset):
    for batch in torch.utils.data.DataLoader(dataset, batch_size=256):
        yield [part.pin_memory().to("cuda", non_blocking=True) for part in batch]


@wrong("everyday_form", "images and labels on the GPU", "a `.to` is missing")
def labels_stay(dataset):
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True):
        yield images.to("cuda", non_blocking=True), labels


@wrong("everyday_form", "512 samples arrived", "the loop was changed")
def drops_the_last_batch(dataset):
    for batch in torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True, drop_last=True):
        yield [part.to("cuda", non_blocking=True) for part in batch]


@wrong("everyday_form", "None", "the yield is missing")
def yields_nothing(dataset):
    torch.utils.data.DataLoader(dataset, batch_size=256, pin_memory=True)


@right("no_wait_in_the_loop")
def sums_on_the_gpu(step, batches):
    total, worst = 0.0, torch.tensor(0.0, device="cuda")
    for batch in batches:
        loss = step(batch).detach()
        total += loss
        worst = torch.maximum(worst, loss)
    return float(total) / len(batches), float(worst)


@right("no_wait_in_the_loop")
def a_list_of_copies(step, batches):
    losses = []
    for batch in batches:
        losses.append(step(batch).detach().clone())
    read = torch.stack(losses).tolist()
    return [sum(read) / len(read), max(read)]


@wrong("no_wait_in_the_loop", "waits 5 times", "read the values they compare")
def max_still_compares(step, batches):
    total, worst = 0.0, 0.0
    for batch in batches:
        loss = step(batch).detach()
        total += loss
        worst = max(worst, loss)
    return float(total) / len(batches), float(worst)


@wrong("no_wait_in_the_loop", "bytes on the GPU", "keep loss.detach()")
def keeps_the_graphs(step, batches):
    losses = torch.stack([step(batch) for batch in batches])
    return losses.mean().item(), losses.max().item()


@wrong("no_wait_in_the_loop", "for the mean", ".item() after the loop")
def returns_tensors(step, batches):
    losses = torch.stack([step(batch).detach() for batch in batches])
    return losses.mean(), losses.max()


@wrong("no_wait_in_the_loop", "for the mean", "a loss is left out, or added twice")
def the_sum_for_the_mean(step, batches):
    losses = torch.stack([step(batch).detach() for batch in batches])
    return losses.sum().item(), losses.max().item()


@wrong("no_wait_in_the_loop", "None", "the return is missing")
def returns_no_losses(step, batches):
    for batch in batches:
        step(batch)


@right("safe_in_two_streams")
def by_an_event(batch, side):
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
        arrived = side.record_event()
    coming.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_event(arrived)
    return coming


@right("safe_in_two_streams")
def into_memory_of_main(batch, side):
    main = torch.cuda.current_stream()
    coming = torch.empty_like(batch, device="cuda")
    side.wait_stream(main)
    with torch.cuda.stream(side):
        coming.copy_(batch, non_blocking=True)
    main.wait_stream(side)
    return coming


@wrong("safe_in_two_streams", "may be overwritten", "coming.record_stream(main) is missing")
def waits_without_recording(batch, side):
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    return coming


@wrong("safe_in_two_streams", "before the batch has arrived", "main.wait_stream(side), after the copy")
def records_without_waiting(batch, side):
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    coming.record_stream(torch.cuda.current_stream())
    return coming


@wrong("safe_in_two_streams", "before the batch has arrived", "main.wait_stream(side), after the copy")
def waits_too_early(batch, side):
    main = torch.cuda.current_stream()
    main.wait_stream(side)
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    coming.record_stream(main)
    return coming


@wrong("safe_in_two_streams", "before the batch has arrived", "main.wait_stream(side), after the copy")
def side_waits_for_main(batch, side):
    main = torch.cuda.current_stream()
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    side.wait_stream(main)
    coming.record_stream(main)
    return coming


@wrong("safe_in_two_streams", "the host waits", "lets one stream wait for the other")
def the_host_waits(batch, side):
    with torch.cuda.stream(side):
        coming = batch.to("cuda", non_blocking=True)
    side.synchronize()
    coming.record_stream(torch.cuda.current_stream())
    return coming


@wrong("safe_in_two_streams", "None", "the return was changed")
def returns_no_batch(batch, side):
    batch.to("cuda", non_blocking=True)


# --- lesson 04 -------------------------------------------------------------------------------------------------------


def total(model, count, trained=False):
    return sum(count(p) for p in model.parameters() if p.requires_grad or not trained)


def nbytes(p):
    return p.nbytes


@right("held_bytes")
def by_numbers(model):
    return sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in model.parameters())


@wrong("held_bytes", "expected: ", "Adam keeps no moments for it")
def as_if_all_were_trained(model):
    return 4 * total(model, nbytes)


@wrong("held_bytes", "its weights still take memory")
def without_the_frozen(model):
    return 4 * total(model, nbytes, trained=True)


@wrong("held_bytes", "Adam's two moments are missing")
def without_moments(model):
    return total(model, nbytes) + total(model, nbytes, trained=True)


@wrong("held_bytes", "either the gradients, or one of Adam's two moments")
def with_one_moment(model):
    return total(model, nbytes) + 2 * total(model, nbytes, trained=True)


@wrong("held_bytes", "these are the weights")
def weights_alone(model):
    return total(model, nbytes)


@wrong("held_bytes", "these are numbers, not bytes")
def counts_numbers(model):
    return total(model, torch.numel) + 3 * total(model, torch.numel, trained=True)


@wrong("held_bytes", "in bfloat16", "in bf16 it has 2")
def four_bytes_each(model):
    return 4 * counts_numbers(model)


@wrong("held_bytes", "no gradient for a frozen layer")
def gradients_of_all(model):
    return 2 * total(model, nbytes) + 2 * total(model, nbytes, trained=True)


@wrong("held_bytes", "Adam gets the trained parameters only")
def moments_of_all(model):
    return 3 * total(model, nbytes) + total(model, nbytes, trained=True)


@wrong("held_bytes", "in bfloat16", "moments are bf16, too")
def moments_in_float32(model):
    return without_moments(model) + 8 * total(model, torch.numel, trained=True)


@wrong("held_bytes", "in bfloat16", "gradients and moments are bf16, too")
def weights_alone_in_bf16(model):
    return weights_alone(model) + 12 * total(model, torch.numel, trained=True)


@wrong("held_bytes", "return bytes")
def in_mib(model):
    return by_numbers(model) / 2**20


@wrong("held_bytes", "an object of type Size", "return a number")
def gives_a_shape(model):
    return torch.Size([4])


@wrong("held_bytes", "None for a model of", "the return is missing")
def nothing_back(model):
    by_numbers(model)


def accuracy(logits, targets):
    return (logits.argmax(-1) == targets).float().mean()


def backward_and_step(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@right("lean_row")
def copied_row():
    row = torch.ones(100, 2**18, device="cuda")[0]
    row = row + 0
    torch.cuda.empty_cache()
    return row


@wrong("lean_row", "100 MiB are reserved", "as in the code given")
def emptied_only():
    row = torch.ones(100, 2**18, device="cuda")[0]
    torch.cuda.empty_cache()
    return row


@wrong("lean_row", "102 MiB are reserved", "another call returns it to the driver")
def cloned_only():
    row = torch.ones(100, 2**18, device="cuda")[0]
    return row.clone()


@wrong("lean_row", "102 MiB are reserved", "another call returns it to the driver")
def emptied_too_early():
    row = torch.ones(100, 2**18, device="cuda")[0]
    torch.cuda.empty_cache()
    return row.clone()


@wrong("lean_row", "the row is on the CPU")
def row_on_the_cpu():
    row = torch.ones(100, 2**18, device="cuda")[0].cpu()
    torch.cuda.empty_cache()
    return row


@wrong("lean_row", "102 MiB are reserved", "something still refers to the matrix")
def keeps_the_matrix_elsewhere():
    matrix = torch.ones(100, 2**18, device="cuda")
    row = matrix[0].clone()
    row.matrix = matrix
    torch.cuda.empty_cache()
    return row


@wrong("lean_row", "return the row itself")
def a_part_of_the_row():
    row = torch.ones(100, 2**18, device="cuda")[0, :4].clone()
    torch.cuda.empty_cache()
    return row


@wrong("lean_row", "the return is missing")
def no_row():
    return None


@right("four_sizes")
def one_large_and_three_small():
    return [18, 0.5, 0.4, 0.3]


@right("four_sizes")
def none_of_ten():
    return [7, 6, 4, 3]


@wrong("four_sizes", "22 MiB", "as in the code given")
def sizes_as_given():
    return [0.5, 9, 8, 3]


@wrong("four_sizes", "22 MiB are reserved", "in segments of 2 MiB")
def one_from_the_small_pool():
    return [0.5, 9, 8, 2]


@wrong("four_sizes", "18 MiB in 4 different sizes", "nearly fill the segment")
def too_little():
    return [9, 4, 3, 2]


@wrong("four_sizes", "a list of four sizes")
def five_sizes():
    return [6, 5, 4, 3, 2]


@wrong("four_sizes", "in 1 different sizes", "two are the same")
def four_of_five():
    return [5, 5, 5, 5]


@wrong("four_sizes", "a segment of its own size")
def a_large_one_first():
    return [10.5, 2, 3, 4]


@wrong("four_sizes", "more than 20 MiB do not fit")
def too_much():
    return [9, 8, 7, 6]


@wrong("four_sizes", "None", "the return is missing")
def no_sizes():
    return None


@right("lean_step")
def keeps_the_choices_alone(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss, chosen = F.cross_entropy(logits, targets), logits.argmax(-1)
    logits = None
    backward_and_step(loss, optimizer)
    return (chosen == targets).float().mean().item()


@right("lean_step")
def clears_first(model, optimizer, inputs, targets):
    def loss_and_accuracy():
        logits = model(inputs).flatten(0, 1)
        return F.cross_entropy(logits, targets), accuracy(logits, targets)

    optimizer.zero_grad()
    loss, right = loss_and_accuracy()
    loss.backward()
    optimizer.step()
    model.zero_grad()
    return right


@wrong("lean_step", "the model has run 2 times", "a second one costs its time again")
def runs_it_twice(model, optimizer, inputs, targets):
    with torch.no_grad():
        right = accuracy(model(inputs).flatten(0, 1), targets)
    backward_and_step(F.cross_entropy(model(inputs).flatten(0, 1), targets), optimizer)
    return right


@wrong("lean_step", "the accuracy before the step", "the weights after the step")
def asks_afterwards(model, optimizer, inputs, targets):
    backward_and_step(F.cross_entropy(model(inputs).flatten(0, 1), targets), optimizer)
    return accuracy(model(inputs).flatten(0, 1), targets)


@wrong("lean_step", "expected: the same step", "optimizer.step() is gone")
def forgets_the_step(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    return accuracy(logits, targets)


@wrong("lean_step", "the weights have other values")
def sums_the_loss(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss, right = F.cross_entropy(logits, targets, reduction="sum"), accuracy(logits, targets)
    del logits
    backward_and_step(loss, optimizer)
    return right


@wrong("lean_step", "gradients are left")
def forgets_to_clear(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss, right = F.cross_entropy(logits, targets), accuracy(logits, targets)
    del logits
    loss.backward()
    optimizer.step()
    return right


@wrong("lean_step", "return a share")
def counts_the_right_ones(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss, right = F.cross_entropy(logits, targets), (logits.argmax(-1) == targets).sum()
    del logits
    backward_and_step(loss, optimizer)
    return right


@wrong("lean_step", "None came back")
def gives_nothing_back(model, optimizer, inputs, targets):
    backward_and_step(F.cross_entropy(model(inputs).flatten(0, 1), targets), optimizer)


@wrong("lean_step", "as in the code given")
def deletes_too_late(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    F.cross_entropy(logits, targets).backward()
    right = accuracy(logits, targets)
    del logits
    optimizer.step()
    optimizer.zero_grad()
    return right


@wrong("lean_step", "as in the code given")
def detaches_them(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    loss, logits = F.cross_entropy(logits, targets), logits.detach()
    backward_and_step(loss, optimizer)
    return accuracy(logits, targets)


@wrong("lean_step", "the peak is", "another tensor of their size")
def keeps_a_copy_too(model, optimizer, inputs, targets):
    logits = model(inputs).flatten(0, 1)
    copy = logits.detach().softmax(-1)
    backward_and_step(F.cross_entropy(logits, targets), optimizer)
    return accuracy(copy, targets)


# --- lesson 05 -------------------------------------------------------------------------------------------------------


def shares(capacity, free, process, allocated, cached, tried):
    return capacity - free - process, process - allocated - cached


@right("account")
def asks_for_the_missing(capacity, free, process, allocated, cached, tried):
    others = capacity - process - free
    cause = "another process" if others + free >= tried else "live tensors"
    return others, process - (allocated + cached), "fragmentation" if tried <= cached else cause


@wrong("account", "others is", "capacity = free + this process + others")
def forgets_the_free(capacity, free, process, allocated, cached, tried):
    return capacity - process, process - allocated - cached, "live tensors"


@wrong("account", "context is", "this process = context + allocated + cached")
def forgets_the_cache(capacity, free, process, allocated, cached, tried):
    return capacity - free - process, process - allocated, "live tensors"


@wrong("account", "'another process' for", 'expected: "live tensors"')
def accuses_whoever_is_there(**figures):
    return *shares(**figures), "another process"


@wrong("account", "'another process' for", "check this first", 'expected: "fragmentation"')
def knows_no_fragmentation(**figures):
    others, context = shares(**figures)
    missing = figures["tried"] - figures["free"]
    return others, context, "another process" if others >= missing else "live tensors"


@wrong("account", "'live tensors' for", "at least tried - free")
def compares_with_the_whole_request(**figures):
    others, context = shares(**figures)
    return others, context, "another process" if others >= 10 * figures["tried"] else "live tensors"


@wrong("account", "expected: (others, context, cause)", "the last line was changed")
def gives_the_cause_alone(**figures):
    return "live tensors"


@right("recover")
def with_a_flag(attempt, batch):
    fits = False
    while batch and not fits:
        try:
            attempt(batch)
            fits = True
        except torch.OutOfMemoryError:
            fits = False
        batch = batch if fits else batch // 2
    return batch


@right("recover")
def asks_a_helper(attempt, batch):
    def fits(size):
        try:
            attempt(size)
        except torch.OutOfMemoryError:
            return False
        return True

    if fits(batch):
        return batch
    return asks_a_helper(attempt, batch // 2) if batch > 1 else 0


@wrong("recover", "as in the code given")
def empties_the_cache_in_the_block(attempt, batch):
    try:
        attempt(batch)
        return batch
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return empties_the_cache_in_the_block(attempt, batch // 2) if batch > 1 else 0


@wrong("recover", "return the batch that fits")
def halves_once_too_often(attempt, batch):
    return with_a_flag(attempt, batch) // 2


@wrong("recover", "1 came back", "0 means that not even")
def ends_at_one(attempt, batch):
    return max(1, with_a_flag(attempt, batch))


@wrong("recover", "halve it after the except block")
def tries_again_and_again(attempt, batch):
    while True:
        try:
            attempt(batch)
            return batch
        except torch.OutOfMemoryError:
            pass


@wrong("recover", "a ValueError of the attempt is swallowed", "catch torch.OutOfMemoryError alone")
def catches_everything(attempt, batch):
    while batch:
        try:
            attempt(batch)
            return batch
        except Exception:
            pass
        batch //= 2
    return 0


@wrong("recover", "None came back", "a return is missing")
def finds_and_keeps_it(attempt, batch):
    with_a_flag(attempt, batch)


def validation(name, judged, one, context=torch.no_grad, trains=True, evaluates=True):
    def loop(model, batches):
        losses = []
        if evaluates:
            model.eval()
        for x, y in batches:
            with context():
                losses.append(one(F.mse_loss(model(x), y)))
        if trains:
            model.train()
        return losses

    loop.__name__ = name
    judged(loop)


validation("in_inference_mode", right("validate"), torch.Tensor.item, torch.inference_mode)
validation("on_the_host", right("validate"), lambda loss: loss.cpu())
validation(
    "without_the_block", wrong("validate", "builds a graph", "come after the pass"), torch.Tensor.item, nullcontext
)
validation("detaches_at_the_end", wrong("validate", "builds a graph"), torch.Tensor.detach, nullcontext)
validation("keeps_the_elements", wrong("validate", "32,768 bytes", "keep loss.item()"), torch.Tensor.detach)
validation("stays_in_evaluation", wrong("validate", "model.train() is gone"), torch.Tensor.item, trains=False)
validation(
    "never_evaluates", wrong("validate", "the losses are", "in evaluation mode"), torch.Tensor.item, evaluates=False
)


@wrong("validate", "expected: a list of 4 losses", "the return was changed")
def gives_no_losses(model, batches):
    list(batches)


# --- lesson 06 -------------------------------------------------------------------------------------------------------


@right("in_segments")
def segments_by_sequential(model, x):
    return checkpoint_sequential(model, 8, x, use_reentrant=False)


@right("in_segments")
def segments_of_two(model, x):
    for first in range(0, len(model), 2):
        x = checkpoint(model[first : first + 2], x, use_reentrant=False)
    return x


@wrong("in_segments", "a peak of 100%", "no block is recomputed")
def no_segment(model, x):
    return model(x)


@wrong("in_segments", "a peak of", "recomputed, too many at once")
def two_large_segments(model, x):
    for half in (model[:6], model[6:]):
        x = checkpoint(half, x, use_reentrant=False)
    return x


@wrong("in_segments", "block 0 of 0 to 7 gets no gradient", "cuts the graph")
def segments_detached(model, x):
    for block in model:
        x = checkpoint(block, x.detach(), use_reentrant=False)
    return x


@wrong("in_segments", "an output without a graph", "no_grad or detach")
def segments_without_a_graph(model, x):
    with torch.no_grad():
        return model(x)


@wrong("in_segments", "gets another gradient", "preserve_rng_state=False")
def segments_with_other_masks(model, x):
    for block in model:
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x


@wrong("in_segments", "None came back", "the return is missing")
def segments_returned_by_none(model, x):
    for block in model:
        x = checkpoint(block, x, use_reentrant=False)


@right("best_segments")
def segments_tried_out(layers, inside, given):
    best = None
    for count in range(1, layers + 1):
        kept = count * given + layers / count * inside
        if layers % count == 0 and (best is None or kept < best[0]):
            best = kept, count
    return best[1]


@wrong("best_segments", "does not divide", "compare the divisors")
def segments_by_the_formula(layers, inside, given):
    return max(1, min(layers, round((layers * inside / given) ** 0.5)))


@wrong("best_segments", "the number that keeps the most")
def segments_as_few_as_can_be(layers, inside, given):
    return 1


@wrong("best_segments", "S inputs, and the inside of layers / S layers")
def segments_of_one_layer(layers, inside, given):
    return layers


@wrong("best_segments", "the return is missing")
def segments_of_none(layers, inside, given):
    layers // given


@right("untrained")
def untrained_in_a_set(model):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name for name in trained if trained[name].grad is None}


@wrong("untrained", "layer 1 is frozen")
def untrained_and_frozen(model):
    return [name for name, p in model.named_parameters() if p.grad is None]


@wrong("untrained", "a gradient of zeros is a gradient")
def untrained_by_value(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]


@wrong("untrained", "a list of names", "has names and parameters")
def untrained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad and p.grad is None]


@wrong("untrained", "look at p.requires_grad and p.grad")
def untrained_weights(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None and p.dim() == 2]


REMEDIES = ["fused AdamW", "autocast", "checkpoint", "Adafactor"]


def remedies(name, judged, **said):
    """The right list with another remedy for one job: `job2="…"`."""
    (job, word), *_ = said.items()
    answer = lambda: [word if f"job{i}" == job else right for i, right in enumerate(REMEDIES, 1)]  # noqa: E731
    answer.__name__ = name
    judged(answer)


@right("must_fit")
def remedies_in_a_tuple():
    return tuple(REMEDIES)


remedies(
    "checkpoints_what_is_not_in_the_peak",
    wrong("must_fit", "'checkpoint' for job 1, batch 1 in 950 MiB", "peak is 1,080 MiB, at the optimizer's step"),
    job1="checkpoint",
)
remedies(
    "fuses_what_is_not_in_the_peak",
    wrong("must_fit", "'fused AdamW' for job 2", "peak is 2,232 MiB, at the end of the forward pass"),
    job2="fused AdamW",
)
remedies(
    "checkpoints_where_autocast_is_enough",
    wrong("must_fit", "expected: autocast: 648 + max(900, 432) MiB", "it fits too, but costs more"),
    job2="checkpoint",
)
remedies("another_remedy", wrong("must_fit", "'offload' for job 4", "the four words are"), job4="offload")


@wrong("must_fit", "None", "the return or one of the four")
def returns_no_remedies():
    REMEDIES.copy()


# --- lesson 07 -------------------------------------------------------------------------------------------------------


def thirds(name, judged, answer):
    """A choice of the three networks."""

    def networks():
        return answer

    networks.__name__ = name
    judged(networks)


thirds("only_the_resnet", right("save_a_third"), {"A"})
thirds("only_the_resnet_as_text", right("save_a_third"), "A")
thirds("small_images_too", wrong("save_a_third", "B is in the list", "1.3 of 224 x 224"), ["A", "B"])
thirds("the_gpt_too", wrong("save_a_third", "C is in the list", "25,142 and 17,478"), ("A", "C"))
thirds("nobody", wrong("save_a_third", "A is not in the list", "1,676 and 1,065"), [])
thirds("their_names", wrong("save_a_third", "letters A, B, C"), ["resnet50"])
thirds("returns_no_network", wrong("save_a_third", "None", "the return is missing"), None)


def fp16_loop(
    name, judged, *, clear=True, cast=True, dtype=torch.float16, loss_in=True, scale=True, inside=False, after="scaler"
):
    def loop(model, optimizer, scaler, batches):
        for x, y in batches:
            if clear:
                optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype, enabled=cast):
                scores = model(x)
                loss = F.cross_entropy(scores, y) if loss_in else None
                if inside:
                    scaler.scale(loss).backward()
            loss = loss if loss_in else F.cross_entropy(scores, y)
            if not inside:
                (scaler.scale(loss) if scale else loss).backward()
            if after != "optimizer":
                scaler.step(optimizer)
            else:
                optimizer.step()
            if after != "no update":
                scaler.update()

    loop.__name__ = name
    judged(loop)


fp16_loop("every_piece_in_place", right("train_fp16"))
fp16_loop("in_bf16", wrong("train_fp16", "the model gives bfloat16", "no bf16 in hardware"), dtype=torch.bfloat16)
fp16_loop("casts_nothing", wrong("train_fp16", "the model gives float32", "outside of `torch.autocast`"), cast=False)
fp16_loop("loss_outside", wrong("train_fp16", "a loss in float16", "model and loss both"), loss_in=False)
fp16_loop("backward_inside", wrong("train_fp16", "backward under autocast", "indented too far"), inside=True)
fp16_loop("nothing_scaled", wrong("train_fp16", "backward from the loss itself", "scaler.scale(loss)"), scale=False)
fp16_loop("never_updated", wrong("train_fp16", "never updated", "`scaler.update()`"), after="no update")
fp16_loop(
    "keeps_old_gradients",
    wrong("train_fp16", "skipped more than the one batch", "gradients are not cleared"),
    clear=False,
)


@right("train_fp16")
def also_unscales(model, optimizer, scaler, batches):
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


@wrong("train_fp16", "off by up to", "`optimizer.step()` is called as well")
def trains_on_a_tenth(model, optimizer, scaler, batches):
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / 10
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@wrong("train_fp16", "0 of 4 steps go through the scaler", "`scaler.step(optimizer)`")
def steps_past_the_scaler(model, optimizer, scaler, batches):
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()


@right("update_bf16")
def rounds_the_exact_sum(weight, lost, update):
    exact = weight.float() + lost.float() + update.float()
    return exact.bfloat16(), exact - exact.bfloat16()


@right("update_bf16")
def kahan_in_one_name(weight, lost, update):
    meant = lost + update
    return weight + meant, meant - ((weight + meant) - weight)


@wrong("update_bf16", "stand still, although lost is not zero", "is not added to the update")
def never_pays_back(weight, lost, update):
    new = weight + update
    return new, update - (new - weight)


@wrong("update_bf16", "after 1000 updates", "lost is the intended change minus the actual one")
def keeps_all_that_was_meant(weight, lost, update):
    update = update + lost
    return weight + update, update


@wrong("update_bf16", "stand still, although lost is not zero", "or has the wrong sign")
def owes_the_wrong_way(weight, lost, update):
    update = update + lost
    new = weight + update
    return new, (new - weight) - update


@wrong("update_bf16", "a weight in float32", "round it with `.bfloat16()`")
def keeps_a_float32_weight(weight, lost, update):
    return weight.float() + update.float(), lost


@wrong("update_bf16", "the caller's update was changed", "`update += lost` writes into it")
def writes_into_the_update(weight, lost, update):
    update += lost
    new = weight + update
    return new, update - (new - weight)


@wrong("update_bf16", "two tensors: new, lost")
def returns_the_weight_alone(weight, lost, update):
    return weight + update


FORMATS = {
    "T4, 8 bits, activations up to 900": "fp16 with scaler",
    "H100, 8 bits, activations up to 80,000": "bf16",
    "A100, 10 bits, activations up to 200,000": "TF32",
    "T4, 8 bits, activations up to 80,000": "float32",
}


@right("format_for")
def formats_in_another_order():
    return dict(reversed(FORMATS.items()))


def formats(name, likely, **said):
    """A wrong answer: for the job that begins with T4, H100 or A100 another word; `T4s` is the second T4."""
    (gpu, word), jobs = next(iter(said.items())), list(FORMATS)
    job = jobs[3] if gpu == "T4s" else next(job for job in jobs if job.startswith(gpu))

    def answer():
        return FORMATS | {job: word}

    answer.__name__ = name
    wrong("format_for", f"{word!r} for {job}", likely)(answer)


formats("bf16_on_a_t4", "a T4 has no bf16 in hardware", T4="bf16")
formats("tf32_on_a_t4", "a T4 has no TF32 in hardware", T4s="TF32")
formats("fp16_beyond_its_range", "beyond 65504 become inf in fp16", H100="fp16 with scaler")
formats("fp16_without_bits_to_spare", "the scaler does not help", A100="fp16 with scaler")
formats("bf16_for_ten_bits", "bf16 keeps 8 significant bits", A100="bf16")
formats("float32_where_tf32_does", "does not use the tensor cores", A100="float32")
formats("tf32_where_16_bits_do", "stores 4 bytes for each number", H100="TF32")
formats("fp16_without_a_scaler", "the four words are", T4="fp16")


@wrong("format_for", "None", "the return is missing")
def returns_no_formats():
    FORMATS.copy()


# --- lesson 08 -------------------------------------------------------------------------------------------------------


def windows_loop(name, judged, *, clear="window", divisor=len, step="window"):
    def loop(model, optimizer, windows):
        for window in windows:
            if clear == "window":
                optimizer.zero_grad()
            for x, y in window:
                (F.cross_entropy(model(x), y) / divisor(window)).backward()
                if step == "micro-batch":
                    optimizer.step()
            if step == "window":
                optimizer.step()
            if clear == "after":
                model.zero_grad()

    loop.__name__ = name
    judged(loop)


windows_loop("clears_after", right("window_loop"), clear="after")
windows_loop("divides_by_four", wrong("window_loop", "the short last window", "divided by 4"), divisor=lambda w: 4)
windows_loop("never_clears", wrong("window_loop", "those of earlier windows", "once for each window"), clear="")
windows_loop("divides_by_none", wrong("window_loop", "is the sum of", "the division is missing"), divisor=lambda w: 1)
windows_loop(
    "steps_inside", wrong("window_loop", "after every micro-batch", "nothing is accumulated"), step="micro-batch"
)
windows_loop("never_steps", wrong("window_loop", "no weight has moved", "optimizer.step() is gone"), step="")
windows_loop("divides_by_samples", wrong("window_loop", "times as far", "micro-batches"), divisor=lambda w: 7 * len(w))


@wrong("window_loop", "by its last micro-batch alone", "deletes what the earlier")
def clears_inside(model, optimizer, windows):
    for window in windows:
        for x, y in window:
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) / len(window)).backward()
        optimizer.step()


def amp_update(name, judged, inside=(), after=("unscale", "clip", "step", "update"), whole=False):
    """One update; which calls stand in the inner loop, and which after it. `whole`: the window is one batch."""

    def update(model, optimizer, scaler, window, max_norm):
        calls = {
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), max_norm),
            "step": lambda: scaler.step(optimizer),
            "bare": optimizer.step,
            "update": scaler.update,
        }
        optimizer.zero_grad()
        if whole:
            window = [(torch.cat([x for x, _ in window]), torch.cat([y for _, y in window]))]
        for x, y in window:
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x), y) / len(window)
            scaler.scale(loss).backward()
            for called in inside:
                calls[called]()
        for called in after:
            calls[called]()

    update.__name__ = name
    judged(update)


def scaled_after_the_division(model, optimizer, scaler, window, max_norm):
    for x, y in window:
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(x)
        scaler.scale(F.cross_entropy(logits.float(), y)).div(len(window)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


right("window_amp")(scaled_after_the_division)
amp_update("as_one_batch", right("window_amp"), whole=True)
amp_update("all_inside", wrong("window_amp", "after every micro-batch"), ("unscale", "clip", "step", "update"), ())
amp_update(
    "clips_first", wrong("window_amp", "by 65536", "after clip_grad"), after=("clip", "unscale", "step", "update")
)
amp_update(
    "clips_each",
    wrong("window_amp", "every micro-batch clips", "after unscale_"),
    ("clip",),
    ("unscale", "step", "update"),
)
amp_update("clips_last", wrong("window_amp", "after step()"), after=("unscale", "step", "clip", "update"))
amp_update("never_clips", wrong("window_amp", "clip_grad_norm_() is missing"), after=("unscale", "step", "update"))
amp_update("never_unscales", wrong("window_amp", "unscale_() is missing"), after=("clip", "step", "update"))
amp_update("amp_never_steps", wrong("window_amp", "no weight has moved"), after=("unscale", "clip", "update"))
amp_update("never_updates", wrong("window_amp", "the scale is 65,536"), after=("unscale", "clip", "step"))
amp_update("bare_step", wrong("window_amp", "a window with an overflow"), after=("unscale", "clip", "bare", "update"))


@right("update_count")
def in_one_division(samples, micro_batch, steps, epochs):
    return math.ceil(samples / (micro_batch * steps)) * epochs


@wrong("update_count", "once for each window")
def counts_micro_batches(samples, micro_batch, steps, epochs):
    return math.ceil(samples / micro_batch) * epochs


@wrong("update_count", "drops the short last window")
def rounds_down(samples, micro_batch, steps, epochs):
    return samples // (micro_batch * steps) * epochs


@wrong("update_count", "no window continues into the next epoch")
def rounds_once(samples, micro_batch, steps, epochs):
    return math.ceil(math.ceil(samples / micro_batch) * epochs / steps)


@wrong("update_count", "here it is a window of its own")
def drops_the_short_batch(samples, micro_batch, steps, epochs):
    return math.ceil(samples // micro_batch / steps) * epochs


@wrong("update_count", "if all windows are full")
def adds_one(samples, micro_batch, steps, epochs):
    return (samples // (micro_batch * steps) + 1) * epochs


@wrong("update_count", "these are the updates of one epoch")
def of_one_epoch(samples, micro_batch, steps, epochs):
    return math.ceil(samples / (micro_batch * steps))


@wrong("update_count", "round up in each")
def in_parts(samples, micro_batch, steps, epochs):
    return samples / (micro_batch * steps) * epochs


@wrong("update_count", "None for ", "the return is missing")
def tells_nothing(samples, micro_batch, steps, epochs):
    in_one_division(samples, micro_batch, steps, epochs)


# --- lesson 09 -------------------------------------------------------------------------------------------------------


@right("change_first")
def by_three_numbers():
    return ["step", "loader", "overlap", "loader"]


@right("change_first")
def as_a_tuple():
    return tuple(by_three_numbers())


@wrong("change_first", "'loader' for A", "step: 51 ms together", "the wait for the step before")
def accuses_the_innocent():
    return ["loader", "loader", "overlap", "loader"]


@wrong("change_first", "'overlap' for A", "would be 70 ms")
def adds_them_up():
    return ["overlap", "loader", "overlap", "loader"]


@wrong("change_first", "'step' for B", "the loader costs 42", "the loader alone takes 90 ms")
def acquits_the_guilty():
    return ["step", "step", "overlap", "loader"]


@wrong("change_first", "'loader' for C", "40 + 50", "faster than the step")
def sees_a_wait_in_next():
    return ["step", "loader", "loader", "loader"]


@wrong("change_first", "'step' for D", "the loader costs 261")
def believes_the_clock():
    return ["step", "loader", "overlap", "step"]


@wrong("change_first", "'gpu' for A", "the three words are step, loader, overlap")
def has_a_word_of_its_own():
    return ["gpu", "loader", "overlap", "loader"]


@wrong("change_first", "None for D", "the three words are")
def leaves_one_open():
    return ["step", "loader", "overlap", None]


@wrong("change_first", "None", "a list of four words", "the return or one of the four")
def says_nothing():
    by_three_numbers()


@right("workers_for")
def smallest_of_all(cores, quota, ranks):
    return max(0, int(min(cores, quota or cores)) // (ranks or 1) - 1)


@right("workers_for")
def rank_by_rank(cores, quota, ranks):
    whole = cores if quota is None else min(cores, int(quota))
    return len(range(1, whole // max(ranks, 1)))


@wrong("workers_for", "a ZeroDivisionError for 0 ranks", "without a GPU ranks is 0")
def fails_without_a_gpu(cores, quota, ranks):
    return max(0, int(min(cores, quota or cores)) // ranks - 1)


@wrong("workers_for", "7 for cores=16, quota=6.0, ranks=2; expected: 2", "the quota is less")
def leaves_the_quota(cores, quota, ranks):
    return max(0, cores // max(1, ranks) - 1)


@wrong("workers_for", "15 for cores=8, quota=32.0, ranks=2; expected: 3", "the smaller of the two")
def takes_the_quota(cores, quota, ranks):
    return max(0, int(quota or cores) // max(1, ranks) - 1)


@wrong("workers_for", "-1 for cores=2, quota=None, ranks=8; expected: 0", "but not negative")
def fewer_than_none(cores, quota, ranks):
    return int(min(cores, quota or cores)) // max(1, ranks) - 1


@wrong("workers_for", "1 for cores=2, quota=None, ranks=8; expected: 0", "the number may be 0")
def one_in_any_case(cores, quota, ranks):
    return max(1, smallest_of_all(cores, quota, ranks))


@wrong("workers_for", "4 for cores=16, quota=None, ranks=4; expected: 3", "one of them is for the rank itself")
def leaves_the_rank_no_core(cores, quota, ranks):
    return int(min(cores, quota or cores)) // max(1, ranks)


@wrong("workers_for", "3.0 for cores=16", "a whole number")
def in_pieces(cores, quota, ranks):
    return max(0, min(cores, quota or cores) / max(1, ranks) - 1)


@wrong("workers_for", "for cores=64, quota=2.5, ranks=1; expected: 1", "round down")
def rounds_up(cores, quota, ranks):
    return max(0, math.ceil(min(cores, quota or cores)) // max(1, ranks) - 1)


@wrong("workers_for", "None for ", "the return is missing")
def tells_no_number(cores, quota, ranks):
    smallest_of_all(cores, quota, ranks)


def worker():
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


@right("my_part")
def by_the_remainder(lines):
    id, number = worker()
    return (line for i, line in enumerate(lines) if i % number == id)


@right("my_part")
def as_a_stretch(lines):
    id, number = worker()
    lines = list(lines)
    return lines[len(lines) * id // number : len(lines) * (id + 1) // number]


@wrong("my_part", "some of them twice", "a step is missing")
def from_its_number_on(lines):
    return list(lines)[worker()[0] :]


@wrong("my_part", "some are missing", "counts from 0")
def counts_from_one(lines):
    id, number = worker()
    return list(lines)[id + 1 :: number] if number > 1 else lines


@wrong("my_part", "no faster than with one worker")
def the_first_does_it(lines):
    return lines if worker()[0] == 0 else []


@wrong("my_part", "0 of ", "in the main process", "the main process reads all lines")
def nothing_without_workers(lines):
    return by_the_remainder(lines) if worker()[1] > 1 else []


@wrong("my_part", "None came back", "the return is missing")
def keeps_its_part(lines):
    by_the_remainder(lines)


@right("gpu_batches")
def by_sorting(images, labels, batch):
    order = torch.rand(len(images), device=images.device).argsort()
    return list(zip(images[order].split(batch), labels[order].split(batch), strict=True))


@wrong("gpu_batches", "cross the bus", "device=images.device")
def dealt_on_the_host(images, labels, batch):
    for rows in torch.randperm(len(images)).split(batch):
        yield images[rows], labels[rows]


@wrong("gpu_batches", "do not belong together", "the same indices")
def shuffled_apart(images, labels, batch):
    for start in range(0, len(images), batch):
        rows = torch.randperm(len(images), device=images.device)[: min(batch, len(images) - start)]
        yield images[rows], labels[rows.flip(0)]


@wrong("gpu_batches", "come twice", "torch.randperm")
def with_replacement(images, labels, batch):
    for _ in range(20):
        rows = torch.randint(len(images), (batch,), device=images.device)
        yield images[rows], labels[rows]


@wrong("gpu_batches", "samples come; expected: all", "shorter batch")
def drops_the_last(images, labels, batch):
    order = torch.randperm(len(images), device=images.device)
    for i in range(len(images) // batch):
        rows = order[i * batch : (i + 1) * batch]
        yield images[rows], labels[rows]


@wrong("gpu_batches", "are neighbours", "permute the samples")
def shuffles_batches(images, labels, batch):
    parts = list(zip(images.split(batch), labels.split(batch), strict=True))
    whole, short = parts[:-1], parts[-1:]
    return [whole[i] for i in [3, 1, 5, 0, 2, 4]] + short


@wrong("gpu_batches", "the order of the first", "seeded")
def seeds_each_time(images, labels, batch):
    dice = torch.Generator(images.device).manual_seed(0)
    order = torch.randperm(len(images), device=images.device, generator=dice)
    return [(images[rows], labels[rows]) for rows in order.split(batch)]


@wrong("gpu_batches", "batches of", "order.split(batch)")
def one_large_batch(images, labels, batch):
    yield next(dealt_alike(images, labels, len(images)))


def dealt_alike(images, labels, batch):
    for rows in torch.randperm(len(images), device=images.device).split(batch):
        yield images[rows], labels[rows]


@wrong("gpu_batches", "a batch on the CPU")
def moves_them_off(images, labels, batch):
    for x, y in dealt_alike(images, labels, batch):
        yield x.cpu(), y.cpu()


@wrong("gpu_batches", "for a batch", "as a pair")
def images_alone(images, labels, batch):
    for x, _ in dealt_alike(images, labels, batch):
        yield x


@wrong("gpu_batches", "None came back", "the return is missing")
def gives_nothing(images, labels, batch):
    list(dealt_alike(images, labels, batch))


# --- lesson 10 -------------------------------------------------------------------------------------------------------


@right("three_of_twenty")
def all_in_skip_first():
    return torch.profiler.schedule(skip_first=36, wait=16, warmup=1, active=3, repeat=3)


@wrong("three_of_twenty", "nothing before step 20", "skip_first")
def waits_alone():
    return torch.profiler.schedule(wait=16, warmup=1, active=3, repeat=3)


@wrong("three_of_twenty", "3 of every 20", "16 + 1 + 3")
def waits_twenty():
    return torch.profiler.schedule(skip_first=20, wait=20, warmup=1, active=3, repeat=3)


@wrong("three_of_twenty", "one step of warm-up before each", "warmup=1")
def not_warm():
    return torch.profiler.schedule(skip_first=20, wait=17, warmup=0, active=3, repeat=3)


@wrong("three_of_twenty", "there are 4 cycles", "repeat")
def to_the_end():
    return torch.profiler.schedule(skip_first=20, wait=16, warmup=1, active=3)


@wrong("three_of_twenty", "a schedule", "return is missing")
def makes_none():
    torch.profiler.schedule(wait=1, warmup=1, active=3)


@right("bottleneck")
def by_the_largest(busy, loading, compute, memory):
    if busy > 0.8:
        return max((compute, "compute"), (memory, "bandwidth"))[1] if compute + memory > 0.6 else "latency"
    return max((loading, "input"), (1 - busy - loading, "launches"))[1]


@wrong("bottleneck", '"input" for busy', "the loader does not matter")
def loader_first(busy, loading, flops, moved):
    return "input" if loading > 0.3 else by_the_largest(busy, loading, flops, moved)


@wrong("bottleneck", 'expected: "input"', "the host spends them in the loader")
def no_loader(busy, loading, flops, moved):
    return by_the_largest(busy, 0.0, flops, moved)


@wrong("bottleneck", 'expected: "launches"', "it is launching kernels")
def gaps_are_input(busy, loading, flops, moved):
    return by_the_largest(busy, 1.0, flops, moved)


@wrong("bottleneck", "another word")
def own_word(busy, loading, flops, moved):
    return "memory" if moved > flops else "compute"


@wrong("bottleneck", 'expected: "bandwidth"', "memory is the nearer roof")
def always_compute(busy, loading, flops, moved):
    found = by_the_largest(busy, loading, flops, moved)
    return "compute" if found == "bandwidth" else found


@wrong("bottleneck", '"latency" for busy', "the two add up")
def one_roof_alone(busy, loading, compute, memory):
    return "latency" if busy > 0.8 > 0.2 + max(compute, memory) else by_the_largest(busy, loading, compute, memory)


@wrong("bottleneck", 'expected: "latency"', "no roof is near")
def some_roof(busy, loading, flops, moved):
    if busy > 0.8:
        return "compute" if flops > moved else "bandwidth"
    return by_the_largest(busy, loading, flops, moved)


@right("late_rank")
def shortest(lasted):
    return sorted(lasted, key=lambda rank: lasted[rank])[0]


@right("late_rank")
def shortest_by_value(lasted):
    return next(rank for rank, ms in lasted.items() if ms == min(lasted.values()))


@wrong("late_rank", "expected: rank", "finds all others waiting")
def first_number(lasted):
    return min(lasted)


@wrong("late_rank", "a rank", "by its values")
def time_of_it(lasted):
    return min(lasted.values())


@wrong("late_rank", "a rank", "the return is missing")
def no_rank(lasted):
    min(lasted, key=lasted.get)


# --- lesson 11 -------------------------------------------------------------------------------------------------------


@right("replayed_batches")
def fills_by_index(graph, x, y, batches):
    def one(batch):
        x[:] = batch
        graph.replay()
        return y + 0

    return tuple(one(batch) for batch in batches)


@wrong("replayed_batches", "every result is that of the last batch", "keep a clone")
def fills_and_shares(graph, x, y, batches):
    results = []
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        results.append(y)
    return results


@wrong("replayed_batches", "every result is computed from x as it was at capture", "copy_ fills the memory")
def clones_alone(graph, x, y, batches):
    results = []
    for batch in batches:
        x = batch  # noqa: F841
        graph.replay()
        results.append(y.clone())
    return results


@wrong("replayed_batches", "other results", "x.copy_(batch), then replay")
def gives_x_other_memory(graph, x, y, batches):
    results = []
    for batch in batches:
        x.data = batch
        graph.replay()
        results.append(y.clone())
    return results


@wrong("replayed_batches", "that of the batch before", "fill x before the replay")
def replays_first(graph, x, y, batches):
    graph.replay()
    results = []
    for batch in batches:
        results.append(y.clone())
        x.copy_(batch)
        graph.replay()
    return results


@wrong("replayed_batches", "1 results for 3 batches", "including the last")
def keeps_the_last(graph, x, y, batches):
    for batch in batches:
        x.copy_(batch)
        graph.replay()
    return [y.clone()]


@wrong("replayed_batches", "the batches have changed", "not batch.copy_(x)")
def fills_the_batch(graph, x, y, batches):
    results = []
    for batch in batches:
        batch.add_(x)
        x.copy_(batch)
        graph.replay()
        results.append(y.clone())
    return results


@wrong("replayed_batches", "other results")
def adds_the_batch(graph, x, y, batches):
    results = []
    for batch in batches:
        x.add_(batch)
        graph.replay()
        results.append(y.clone())
    return results


@wrong("replayed_batches", "None came back", "the return is missing")
def replays_for_nobody(graph, x, y, batches):
    for batch in batches:
        x.copy_(batch)
        graph.replay()


@right("set_rate")
def copies_a_tensor(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"].copy_(torch.tensor(rate))


@right("set_rate")
def zeroes_and_adds(optimizer, rate):
    for tensor in [group["lr"] for group in optimizer.param_groups]:
        tensor.zero_().add_(rate)


@wrong("set_rate", "moves the groups by 1 and 1", "the graph still reads the first tensor")
def makes_another_tensor(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(rate, device="cuda")


@wrong("set_rate", "moves the groups by 0.25 and 1", "a learning rate of its own")
def fills_the_first_group(optimizer, rate):
    optimizer.param_groups[0]["lr"].fill_(rate)


@wrong("set_rate", "replays move by 0.25 and 0.125", "fill_, not mul_")
def multiplies_the_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"].mul_(rate)


@wrong("set_rate", "the tensors have not changed")
def fills_a_copy(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"].clone().fill_(rate)


@wrong("set_rate", "the tensors have not changed")
def sets_the_default(optimizer, rate):
    optimizer.defaults["lr"] = rate


@right("one_graph")
def where_it_is_longer(x, limit):
    norm = x.norm()
    return torch.where(norm > limit, x * (limit / norm), x)


@right("one_graph")
def minimum_of_norms(x, limit):
    norm = x.norm().clamp(min=1e-12)
    return x * torch.minimum(norm, torch.full_like(norm, limit)) / norm


@wrong("one_graph", "2 graphs", ".item() makes the host wait")
def if_on_item(x, limit):
    norm = x.norm().item()
    return x * (limit / norm) if norm > limit else x


@wrong("one_graph", "2 graphs", ".item() makes the host wait")
def min_of_item(x, limit):
    return x * min(1.0, limit / max(x.norm().item(), 1e-12))


@wrong("one_graph", "short vectors are made longer", "norm 2.0 came back")
def always_scales(x, limit):
    return x * (limit / x.norm())


@wrong("one_graph", "each element is clipped by itself")
def cuts_elements(x, limit):
    return x.clamp(-limit, limit)


@wrong("one_graph", "nothing is shortened")
def clamps_the_wrong_way(x, limit):
    return x * (limit / x.norm()).clamp(min=1)


@wrong("one_graph", "nothing is shortened")
def leaves_it(x, limit):
    return x


@wrong("one_graph", "0 / 0")
def divides_by_nothing(x, limit):
    norm = x.norm()
    return x / norm * torch.clamp(norm, max=limit)


@wrong("one_graph", "nothing is compiled", "torch.compiler.disable")
@torch.compiler.disable
def takes_it_out(x, limit):
    norm = x.norm()
    return x * (limit / norm) if norm > limit else x


@wrong("one_graph", "one graph and a graph break", "Dynamo says: ")
def logs(x, limit):
    logging.getLogger(__name__).debug("shortening")
    return x * (limit / x.norm()).clamp(max=1)


@wrong("one_graph", "None came back", "the return is missing")
def shortens_for_nobody(x, limit):
    x * (limit / x.norm()).clamp(max=1)


@right("break_even")
def whole_steps(compile_s, before_ms, after_ms):
    if before_ms <= after_ms:
        return float("inf")
    return math.ceil(compile_s * 1e3 / (before_ms - after_ms))


@wrong("break_even", "seconds over milliseconds: 1000 is missing")
def milliseconds_forgotten(compile_s, before_ms, after_ms):
    return compile_s / (before_ms - after_ms) if after_ms < before_ms else math.inf


@wrong("break_even", "use the time that a step saves")
def divides_by_the_step(compile_s, before_ms, after_ms):
    return 1000 * compile_s / after_ms if after_ms < before_ms else math.inf


@wrong("break_even", "expected: math.inf", "nothing is saved")
def negative_steps(compile_s, before_ms, after_ms):
    return 1000 * compile_s / (before_ms - after_ms) if after_ms != before_ms else math.inf


@wrong("break_even", "expected: math.inf", "the code divides by the time saved")
def zero_where_it_loses(compile_s, before_ms, after_ms):
    return max(0, 1000 * compile_s / (before_ms - after_ms))


@wrong("break_even", "ZeroDivisionError", "the two times are equal")
def equal_times(compile_s, before_ms, after_ms):
    return 1000 * compile_s / (before_ms - after_ms) if after_ms <= before_ms else math.inf


@wrong("break_even", "1000 · compile_s")
def adds_the_compilation(compile_s, before_ms, after_ms):
    return 1000 * compile_s * before_ms if after_ms < before_ms else math.inf


@wrong("break_even", "None for ", "the return is missing")
def break_even_for_nobody(compile_s, before_ms, after_ms):
    1000 * compile_s / (before_ms - after_ms)


# --- lesson 12 -------------------------------------------------------------------------------------------------------


@right("dealt_indices")
def by_counting(rank, ranks, length):
    return [(rank + ranks * i) % length for i in range(math.ceil(length / ranks))]


@right("dealt_indices")
def in_a_tensor(rank, ranks, length):
    padded = torch.arange(-(-length // ranks) * ranks) % length
    return padded[rank::ranks]


@wrong("dealt_indices", "unequal numbers", "nothing is padded")
def without_padding(rank, ranks, length):
    return range(rank, length, ranks)


@wrong("dealt_indices", "the last indices are left out", "drop_last=True")
def cuts_off(rank, ranks, length):
    return list(range(length - length % ranks))[rank::ranks]


@wrong("dealt_indices", "consecutive indices", "[rank::ranks]")
def padded_chunks(rank, ranks, length):
    each = -(-length // ranks)
    return (list(range(length)) * 2)[rank * each : (rank + 1) * each]


@wrong("dealt_indices", "the last index is repeated")
def pads_with_the_last(rank, ranks, length):
    return [min(i, length - 1) for i in range(rank, -(-length // ranks) * ranks, ranks)]


@wrong("dealt_indices", "padding although the length divides evenly", "-length % ranks")
def always_pads(rank, ranks, length):
    padded = [*range(length), *range(ranks - length % ranks)]
    return padded[rank::ranks]


@wrong("dealt_indices", "every rank has all indices")
def all_of_them(rank, ranks, length):
    return list(range(length))


@wrong("dealt_indices", "append the first ones as padding")
def backwards(rank, ranks, length):
    return by_counting(rank, ranks, length)[::-1]


@wrong("dealt_indices", "None for ", "the return is missing")
def deals_nothing(rank, ranks, length):
    by_counting(rank, ranks, length)


@wrong("dealt_indices", "return the indices themselves")
def how_many(rank, ranks, length):
    return -(-length // ranks)


@right("fair_loss")
def share_of_the_mean(losses, total, ranks):
    return losses.mean() * len(losses) * ranks / total


@right("fair_loss")
def each_weighed(losses, total, ranks):
    return (losses * (ranks / total)).sum()


@wrong("fair_loss", "too small, by a factor of the number of ranks", "multiply by it")
def forgets_that_ddp_divides(losses, total, ranks):
    return losses.sum() / total


@wrong("fair_loss", "that of a sum", "divide by total, and multiply by ranks")
def sums_up(losses, total, ranks):
    return losses.sum()


@wrong("fair_loss", "that of a sum", "divide by total")
def sums_up_for_all(losses, total, ranks):
    return losses.sum() * ranks


@wrong("fair_loss", "all ranks still count equally, and too much", "and not by this rank's")
def mean_times_ranks(losses, total, ranks):
    return losses.mean() * ranks


@wrong("fair_loss", "all ranks still count equally", "mean() has divided", "sum()")
def mean_for_the_sum(losses, total, ranks):
    return losses.mean() * ranks / total


@wrong("fair_loss", "all ranks still count equally", "DDP divides by ranks")
def mean_by_total(losses, total, ranks):
    return losses.mean() / total


@wrong("fair_loss", "the weights of the samples are", "because DDP divides by it")
def upside_down(losses, total, ranks):
    return losses.sum() * total / ranks


@wrong("fair_loss", "without a graph", "has cut the graph")
def cuts_the_graph(losses, total, ranks):
    return losses.detach().sum() * ranks / total


@wrong("fair_loss", "a tensor of shape ()", "sum() adds them to one number")
def one_for_each(losses, total, ranks):
    return losses * ranks / total


@wrong("fair_loss", "a tensor of shape ()", "the return is missing")
def weighs_and_returns_nothing(losses, total, ranks):
    losses.sum() * ranks / total


PARTED = {"a": (2, 7), "b": (1, 9), "c": (3, 4), "d": None, "e": (2, 3)}


@right("odd_ranks")
def parted_as_lists():
    return {job: parted and list(parted) for job, parted in reversed(PARTED.items())}


@wrong("odd_ranks", "(0, 7) for job a", "expected: (2, 7)", "the waiting ranks have called what they should")
def blames_one_that_waits():
    return PARTED | {"a": (0, 7)}


@wrong("odd_ranks", "(2, 6) for job a", "expected: (2, 7)", "the rank is right")
def the_last_number_that_it_called():
    return PARTED | {"a": (2, 6)}


@wrong("odd_ranks", "None for job b", "no other rank has called it")
def one_alone_that_waits_is_late():
    return PARTED | {"b": None}


@wrong("odd_ranks", "None for job c", "ended without an error")
def what_has_ended_is_right():
    return PARTED | {"c": None}


@wrong("odd_ranks", "(1, 6) for job d", "expected: None", "no rank waits in vain")
def who_is_behind_is_wrong():
    return PARTED | {"d": (1, 6)}


@wrong("odd_ranks", "None for job e", "a rank without a dump has died")
def the_dead_are_left_out():
    return PARTED | {"e": None}


@wrong("odd_ranks", "expected: a dict with the keys a, b, c, d and e", "the return is missing")
def returns_no_ranks():
    PARTED.copy()


def micro(model, x, y, share=0.25):
    (F.cross_entropy(model(x), y) * share).backward()


@right("one_exchange")
def the_last_apart(model, window):
    with model.no_sync():
        for x, y in window[:-1]:
            micro(model, x, y)
    micro(model, *window[-1])


@right("one_exchange")
def by_the_attribute(model, window):
    for i, (x, y) in enumerate(window):
        model.require_backward_grad_sync = i == len(window) - 1
        micro(model, x, y)


@wrong("one_exchange", "nothing is exchanged", "outside of no_sync()")
def all_within(model, window):
    with model.no_sync():
        for x, y in window:
            micro(model, x, y)


@wrong("one_exchange", "there are still 4 exchanges", "the forward pass belongs inside")
def forward_outside(model, window):
    for i, (x, y) in enumerate(window):
        loss = F.cross_entropy(model(x), y) / 4
        with model.no_sync() if i < 3 else nullcontext():
            loss.backward()


@wrong("one_exchange", "there are 2 exchanges", "all micro-batches but the last")
def every_second(model, window):
    for i, (x, y) in enumerate(window):
        with nullcontext() if i % 2 else model.no_sync():
            micro(model, x, y)


@wrong("one_exchange", "sum of the micro-batches'", "division")
def undivided(model, window):
    with model.no_sync():
        for x, y in window[:-1]:
            micro(model, x, y, 1)
    micro(model, *window[-1], 1)


@wrong("one_exchange", "but the wrong gradient", "nothing is cleared")
def exchanges_first(model, window):
    micro(model, *window[0])
    with model.no_sync():
        for x, y in window[1:]:
            micro(model, x, y, 0.5)


@wrong("one_exchange", "but the wrong gradient", "each micro-batch runs once")
def leaves_some_out(model, window):
    micro(model, *window[-1])


@wrong("one_exchange", "a single backward()", "graphs of all micro-batches")
def as_one_batch(model, window):
    x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
    F.cross_entropy(model(x), y).backward()


@wrong("one_exchange", "there is no gradient", "zero_grad() came after")
def clears_what_it_made(model, window):
    the_last_apart(model, window)
    model.zero_grad()


# --- lesson 13 -------------------------------------------------------------------------------------------------------


@right("a_unit_per_block")
def last_block_first(model):
    for i in reversed(range(len(model.blocks.layers))):
        fully_shard(model.blocks.layers[i], reshard_after_forward=True)
    return fully_shard(model)


@wrong("a_unit_per_block", "nothing is sharded")
def only_looks(model):
    list(model.blocks.layers)


@wrong("a_unit_per_block", "are whole on every rank", "embedding and head")
def no_root(model):
    for block in model.blocks.layers:
        fully_shard(block)


@wrong("a_unit_per_block", "blocks are not units", "all of model.blocks.layers")
def leaves_out_the_last(model):
    for block in model.blocks.layers[:-1]:
        fully_shard(block)
    fully_shard(model)


@wrong("a_unit_per_block", "units within the blocks", "shard block by block")
def each_layer(model):
    for block in model.blocks.layers:
        fully_shard(block[0])
        fully_shard(block)
    fully_shard(model)


def set_from_rank_0(model, weights):
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    return set_model_state_dict(model, weights, options=options)


@right("filled_from_rank_0")
def angles_first(model, weights):
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.angles[:] = model.compute_angles().cuda()
    set_from_rank_0(model, weights)


@right("filled_from_rank_0")
def row_by_row(model, weights):
    model.to_empty(device="cuda")
    for name, tensor in model.state_dict().items():
        whole = weights[name].cuda() if weights else torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
        if isinstance(tensor, DTensor):
            tensor.copy_(distribute_tensor(whole, tensor.device_mesh, tensor.placements))
        else:
            torch.distributed.broadcast(whole, 0)
            tensor.copy_(whole)
    model.angles = model.compute_angles().cuda()


@wrong("filled_from_rank_0", "model.angles holds whatever was in memory", "persistent=False")
def forgets_the_angles(model, weights):
    model.to_empty(device="cuda")
    model.angles.zero_()
    set_from_rank_0(model, weights)


@wrong("filled_from_rank_0", "rank 0 does not send by default", "broadcast_from_rank0=True")
def each_its_own(model, weights):
    model.to_empty(device="cuda")
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True))
    model.angles.copy_(model.compute_angles())


@wrong("filled_from_rank_0", "the model is on", "to_empty")
def stays_on_meta(model, weights):
    model.angles = model.compute_angles()


@wrong("filled_from_rank_0", "has other values", "set_model_state_dict")
def angles_alone(model, weights):
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        parameter.data.zero_()
    model.angles.copy_(model.compute_angles())


@wrong("filled_from_rank_0", "norm.running_var has other values", "saved buffers")
def parameters_alone(model, weights):
    model.to_empty(device="cuda")
    set_from_rank_0(model, weights)
    model.norm.running_var.zero_()


@wrong("filled_from_rank_0", "load_state_dict copies", "as in the code given")
def as_on_one_gpu(model, weights):
    model.to_empty(device="cuda")
    model.load_state_dict(weights)
    model.angles.copy_(model.compute_angles())


@right("summand_of_mlp")
def strided_in_both(x, up, down, rank, ranks):
    return torch.relu(x @ up[rank::ranks].T) @ down[:, rank::ranks].T


@right("summand_of_mlp")
def with_chunks(x, up, down, rank, ranks):
    return F.linear(F.relu(F.linear(x, up.chunk(ranks)[rank])), down.chunk(ranks, dim=1)[rank])


@wrong("summand_of_mlp", "came from rank 0", "a tensor of shape")
def columns_of_down_for_outputs(x, up, down, rank, ranks):
    return torch.relu(x @ up.T) @ down.chunk(ranks)[rank].T


@wrong("summand_of_mlp", "up is split along its inputs", "not a part of the ReLU")
def cuts_the_inputs(x, up, down, rank, ranks):
    mine = slice(rank * x.shape[1] // ranks, (rank + 1) * x.shape[1] // ranks)
    return torch.relu(x[:, mine] @ up[:, mine].T) @ down.T


@wrong("summand_of_mlp", "the columns of down are not those of the rows of up", "same slice")
def two_ways(x, up, down, rank, ranks):
    return torch.relu(x @ up.chunk(ranks)[rank].T) @ down[:, rank::ranks].T


@wrong("summand_of_mlp", "rank 0 computes everything")
def all_on_rank_0(x, up, down, rank, ranks):
    whole = torch.relu(x @ up.T) @ down.T
    return whole if rank == 0 else torch.zeros_like(whole)


@wrong("summand_of_mlp", "every rank computes the whole layer", "as in the code given")
def everything(x, up, down, rank, ranks):
    return F.linear(F.relu(F.linear(x, up)), down)


# --- lesson 14 -------------------------------------------------------------------------------------------------------


def order_of(data, epoch):
    return torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))


@right("rest_of_epoch")
def by_a_loader(data, epoch, size, done):
    sampler = order_of(data, epoch).tolist()[done * size :]
    return [data[sampler[i : i + size]] for i in range(0, len(sampler), size)]


@right("rest_of_epoch")
def by_numpy(data, epoch, size, done):
    order = np.random.default_rng((7, epoch)).permutation(len(data))
    for start in range(done * size, len(data), size):
        yield data[torch.from_numpy(order[start : start + size])]


@wrong("rest_of_epoch", "give different orders", "a separate generator")
def skips_in_another_order(data, epoch, size, done):
    for rows in torch.randperm(len(data)).split(size)[done:]:
        yield data[rows]


@wrong("rest_of_epoch", "PyTorch's global generator has been seeded", "torch.manual_seed() is global")
def seeds_for_all(data, epoch, size, done):
    torch.manual_seed(epoch)
    for rows in torch.randperm(len(data)).split(size)[done:]:
        yield data[rows]


@wrong("rest_of_epoch", "have the same order", "does not depend on epoch")
def one_seed(data, epoch, size, done):
    for rows in order_of(data, 0).split(size)[done:]:
        yield data[rows]


@wrong("rest_of_epoch", "have the same order", "nothing is shuffled")
def unshuffled(data, epoch, size, done):
    for rows in torch.arange(len(data)).split(size)[done:]:
        yield data[rows]


@wrong("rest_of_epoch", "batches for done=", "done counts batches, not samples")
def skips_samples(data, epoch, size, done):
    for rows in order_of(data, epoch)[done:].split(size):
        yield data[rows]


@wrong("rest_of_epoch", "7 batches for done=", "neither the order nor the number of the others")
def skips_nothing(data, epoch, size, done):
    for rows in order_of(data, epoch).split(size):
        yield data[rows]


@wrong("rest_of_epoch", "samples are read that are in no batch", "skip rows, before data[rows]")
def reads_and_throws_away(data, epoch, size, done):
    for i, rows in enumerate(order_of(data, epoch).split(size)):
        batch = data[rows]
        if i >= done:
            yield batch


@wrong("rest_of_epoch", "there are 6 batches", "the last, shorter batch")
def leaves_the_rest_out(data, epoch, size, done):
    for i in range(done, len(data) // size):
        yield data[order_of(data, epoch)[i * size : (i + 1) * size]]


@wrong("rest_of_epoch", "None came back", "there is neither yield nor return")
def forgets_to_yield(data, epoch, size, done):
    [data[rows] for rows in order_of(data, epoch).split(size)[done:]]


@right("damage")
def of_subclasses_alone():
    return zlib.error, EOFError, ValueError, RuntimeError, zipfile.BadZipFile


@right("damage")
def as_a_list():
    return [EOFError, RuntimeError, zipfile.BadZipFile, zlib.error]


@wrong("damage", "OSError sets a file aside", "the bytes may be all right")
def a_disk_too():
    return zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError


@wrong("damage", "UnpicklingError sets a file aside", "what was saved")
def a_refused_file_too():
    return zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, pickle.UnpicklingError


@wrong("damage", "PermissionError sets a file aside", "the bytes were never read")
def a_forbidden_file_too():
    return zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, PermissionError


@wrong("damage", "KeyboardInterrupt sets a file aside", "Ctrl-C")
def ctrl_c_too():
    return zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, KeyboardInterrupt


@wrong("damage", "BadZipFile is raised", "cut off")
def what_pytorch_raises_alone():
    return (RuntimeError,)


@wrong("damage", "EOFError is raised", "ends too early")
def not_the_end():
    return zipfile.BadZipFile, zlib.error, RuntimeError


@wrong("damage", "came back", "not strings")
def their_names():
    return "BadZipFile", "EOFError"


@right("dollars")
def by_hours(parameters, tokens, tflops, mfu, price):
    hours = 6 * parameters * tokens / 3.6e15 / tflops / mfu
    return price * hours


@right("dollars")
def forward_and_backward(parameters, tokens, tflops, mfu, price):
    work = (2 + 4) * parameters * tokens
    return float(work / (mfu * tflops * 10**12) * price / 60**2)


@wrong("dollars", "lower MFU takes longer")
def multiplies_by_the_share(parameters, tokens, tflops, mfu, price):
    return 6 * parameters * tokens / (tflops * 1e12) * mfu / 3600 * price


@wrong("dollars", "forward alone")
def forward_alone(parameters, tokens, tflops, mfu, price):
    return 2 * parameters * tokens / (tflops * 1e12 * mfu) / 3600 * price


@wrong("dollars", "an hour has 3,600")
def by_seconds(parameters, tokens, tflops, mfu, price):
    return 6 * parameters * tokens / (tflops * 1e12 * mfu) * price


@wrong("dollars", "multiply by the price")
def forgets_the_price(parameters, tokens, tflops, mfu, price):
    return 6 * parameters * tokens / (tflops * 1e12 * mfu) / 3600


@wrong("dollars", "10¹² operations")
def by_tflops_as_they_are(parameters, tokens, tflops, mfu, price):
    return 6 * parameters * tokens / (tflops * mfu) / 3600 * price


@wrong("dollars", "not a percentage")
def mfu_in_percent(parameters, tokens, tflops, mfu, price):
    return 6 * parameters * tokens / (tflops * 1e12 * mfu * 100) / 3600 * price


@right("illness")
def by_a_table(early, late):
    signs = {
        "overflow": late["scale"] * 100 < early["scale"],
        "diverged": late["loss"] > 1.2 * early["loss"] or math.isnan(late["loss"]),
        "leak": late["memory"] > 1.2 * early["memory"],
        "data": late["wait"] / late["step"] > 0.5,
        "throttled": late["step"] > 1.3 * early["step"],
    }
    return next((name for name, there in signs.items() if there), "healthy")


@wrong("illness", "one case has no return")
def knows_two(early, late):
    if late["loss"] > early["loss"]:
        return "diverged"
    return "data" if late["wait"] > late["step"] / 2 else None


@wrong("illness", "'slow' came back", "another word")
def in_own_words(early, late):
    said = by_a_table(early, late)
    return "slow" if said == "throttled" else said


@wrong("illness", 'expected: "overflow"', "check it first")
def the_scale_last(early, late):
    if late["loss"] > 0.8 * early["loss"]:
        return "diverged"
    return by_a_table(early, late)


@wrong("illness", 'expected: "data"', "whether it has become longer or not")
def a_wait_that_grows(early, late):
    said = by_a_table(early, late)
    return "throttled" if said == "data" and late["wait"] < 2 * early["wait"] else said


@wrong("illness", 'expected: "healthy"', "as fast as before")
def what_is_left_over_is_throttled(early, late):
    said = by_a_table(early, late)
    return "throttled" if said == "healthy" else said


@wrong("illness", 'expected: "diverged"', "which no `>` finds")
def forgets_nan(early, late):
    return "healthy" if math.isnan(late["loss"]) else by_a_table(early, late)


@wrong("illness", 'expected: "throttled"', "without a wait")
def slower_is_data(early, late):
    return "data" if late["step"] > 1.3 * early["step"] else by_a_table(early, late)


# --- lesson 15 -------------------------------------------------------------------------------------------------------


@right("grows")
def never_falls_and_ends_higher(after):
    for i in range(3, len(after)):
        if after[i] < after[i - 1]:
            return False
    return after[-1] > after[2]


@wrong("grows", "is called steady", "a leak of 512 bytes")
def by_a_tenth(after):
    return after[-1] > 1.1 * after[2]


@wrong("grows", "a steady job is said to grow", "begin with the third update")
def from_the_first(after):
    return after[-2] > after[0] and after[6] <= after[7]


@wrong("grows", "is freed again, is called growth", "compare the lowest values of the two halves")
def last_against_third(after):
    return after[-1] > after[2]


@wrong("grows", "at every second update is called steady", "grow after the next")
def more_with_each_update(after):
    return all(after[i] > after[i - 1] for i in range(3, len(after)))


@wrong("grows", "came back", "a comparison gives one")
def by_how_much(after):
    return after[-1] - after[2]


@right("possible")
def by_the_share_of_the_peak(words_per_second, parameters, peak_tflops):
    return words_per_second * parameters * 6 / 1e12 / peak_tflops <= 1


@right("possible")
def by_seconds_a_word(words_per_second, parameters, peak_tflops):
    forward = 2 * parameters / (peak_tflops * 1e12)
    return not 1 / words_per_second < 3 * forward


@wrong("possible", "came back", "a comparison gives one")
def as_a_share(words_per_second, parameters, peak_tflops):
    return 6 * parameters * words_per_second / (peak_tflops * 1e12)


@wrong("possible", "at 40 % of the peak is called impossible", "10¹² FLOPs a second")
def tera_forgotten(words_per_second, parameters, peak_tflops):
    return 6 * parameters * words_per_second <= peak_tflops


@wrong("possible", "at four times the peak is called possible", "10¹² FLOPs a second, and each parameter")
def tera_twice(words_per_second, parameters, peak_tflops):
    return 6 * parameters * words_per_second <= peak_tflops * 1e15


@wrong("possible", "at 1.3 times the peak is called possible", "backward 4")
def counts_forward_alone(words_per_second, parameters, peak_tflops):
    return 2 * parameters * words_per_second <= peak_tflops * 1e12


@wrong("possible", "at 90 % of the peak is called impossible", "may come close")
def with_recomputation(words_per_second, parameters, peak_tflops):
    return 8 * parameters * words_per_second <= peak_tflops * 1e12


@wrong("possible", "four times the peak possible", "the comparison is reversed")
def asks_whether_it_lies(words_per_second, parameters, peak_tflops):
    return 6 * parameters * words_per_second > peak_tflops * 1e12


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tell(capsys, monkeypatch, tmp_path):
    """Runs a turn, and returns what it says; it must leave random numbers, settings and the progress file alone."""
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))

    def run(name, answer, place):
        with gpulab.VirtualGPU("T4") if place == "virtual" else nullcontext():
            state, has_gpu = torch.get_rng_state(), torch.cuda.is_available()
            assert getattr(gpulab.turn, name)(answer) is None
            assert torch.equal(torch.get_rng_state(), state)
            assert (torch.cuda.is_available(), torch.is_grad_enabled()) == (has_gpu, True)
        assert not (tmp_path / "progress.json").exists()
        return capsys.readouterr().out

    return run


def run_cell(source):
    """The cell's code, in a process where the lecture's first cell has been run."""
    names = {"torch": torch, "nn": nn, "F": F, "gpulab": gpulab, "fully_shard": fully_shard, "checkpoint": checkpoint}
    names["time"] = time
    exec(source, names)
    return names


def test_lectures_have_one_turn_to_four_and_every_turn_stands_in_one_lecture():
    lessons = [path.stem for path, _, _ in TURNS.values()]
    assert all(lessons.count(lesson) <= 4 for lesson in lessons)
    assert set(lessons) == {lesson.name for lesson in course.LESSONS}
    assert set(TURNS) == set(dir(gpulab.turn))
    asked = [cell for notebook in NOTEBOOKS.values() for cell in notebook.cells if is_turn(cell)]
    assert len(asked) == len(TURNS)
    for name, (path, _, _) in TURNS.items():
        assert getattr(gpulab.turn, name).__module__ == f"gpulab.lessons.{path.stem}.turns"


def statements(lines):
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


@BY_NAME
def test_a_turn_is_short(name):
    _, cell, solved = TURNS[name]
    given, lines = cell.source.splitlines(), solved.splitlines()
    assert len([line for line in given if line.strip()]) <= 15
    assert statements(given) != statements(lines)
    assert len([line for line in lines if line not in given]) <= 8


@BY_NAME
@PLACES
def test_as_given_it_says_one_calm_line_and_that_is_saved(name, place, tell, capsys):
    _, cell, _ = TURNS[name]
    run_cell(cell.source)
    capsys.readouterr()
    said = tell(name, run_cell(cell.source)[CALL.search(cell.source)[2]], place).splitlines()[-1]
    assert said.startswith("○ your turn: ")
    assert said.endswith("; the lecture goes on without it")
    (output,) = cell.outputs
    assert output.data["text/plain"] == said


@BY_NAME
@PLACES
def test_solved_it_passes(name, place, tell, capsys):
    _, _, source = TURNS[name]
    answer = run_cell(source)[CALL.search(source)[2]]
    assert capsys.readouterr().out.startswith("✔ ")
    said = tell(name, answer, place)
    assert said == base.right_output(name)["text/plain"] + "\n"


@PLACES
@pytest.mark.parametrize(("name", "answer"), RIGHT, ids=[answer.__name__ for _, answer in RIGHT])
def test_a_right_answer_written_differently_passes(name, answer, place, tell):
    assert tell(name, answer, place).startswith("✔ ")


@PLACES
@pytest.mark.parametrize(("name", "answer", "told"), WRONG, ids=[answer.__name__ for _, answer, _ in WRONG])
def test_a_wrong_answer_is_told_what_is_wrong(name, answer, told, place, tell):
    said = tell(name, answer, place)
    lines = said.splitlines()
    assert [part for part in told if part not in said] == [], said
    assert len(lines) <= 2, said
    if "as in the code given" not in told:
        assert lines[0].startswith("✘ not yet: ")
        assert "; expected: " in lines[0]
        assert lines[1].startswith("  likely: ")


@BY_NAME
def test_each_turn_has_a_bank(name):
    """At least one right answer that is written differently, and three wrong ones with a message of their own."""
    told = [told for turn, _, told in WRONG if turn == name]
    assert len({*told}) >= 3
    assert name in [turn for turn, _ in RIGHT]


@pytest.mark.parametrize("answer", [None, 3, ...])
@BY_NAME
def test_what_cannot_be_called_is_named(name, answer, tell):
    said = tell(name, answer, "without")
    assert "expected: what the cell defines\n  likely: it was called" in said


def test_a_readers_own_exception_is_shown_as_it_is(capsys):
    def fails(model):
        return model.weight_of_all

    with pytest.raises(AttributeError, match="weight_of_all") as caught:
        gpulab.turn.held_bytes(fails)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][:3] == [caught.traceback[0].name, "run", "fails"]
    assert caught.traceback[1].frame.f_locals["__tracebackhide__"]
    assert capsys.readouterr().out == ""


def test_a_turn_that_is_not_there_is_named():
    with pytest.raises(
        AttributeError, match="there is no turn 'golf'; the turns are: a_unit_per_block, account, any_device,"
    ):
        _ = gpulab.turn.golf


def test_inputs_are_drawn_afresh(monkeypatch, tell):
    monkeypatch.delenv("GPULAB_CHECK_SEED", raising=False)
    assert len({tell("update_count", counts_micro_batches, "without") for _ in range(5)}) > 1


@functools.cache
def names_in(source):
    """The names of the notebook that the code of a cell reads, and those that it gives."""
    code = compile("" if source.startswith("%%") else source, "cell", "exec")
    inner, reads = [code], set()
    for one in inner:
        inner += [constant for constant in one.co_consts if hasattr(constant, "co_code")]
        reads |= {line.argval for line in dis.get_instructions(one) if line.opname in ("LOAD_NAME", "LOAD_GLOBAL")}
    given = {line.argval for line in dis.get_instructions(code) if line.opname == "STORE_NAME"}
    return reads - given, given


LECTURES = sorted({path for path, _, _ in TURNS.values()})


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_no_other_cell_reads_what_a_turn_defines(path):
    """So all else prints the same, solved or not; a turn leaves random numbers alone (above)."""
    cells = [cell for cell in NOTEBOOKS[path].cells if cell.cell_type == "code"]
    for turn in filter(is_turn, cells):
        _, mine = names_in(turn.source)
        imported = set().union(*(names_in(c.source)[1] for c in cells if not is_turn(c)))
        for cell in cells[cells.index(turn) + 1 :]:
            reads, _ = names_in(cell.source)
            assert not reads & mine - imported, f"{cell.id} reads {reads & mine - imported}"


def with_what_they_need(cells):
    """The turns among the code cells, and before each name that is read the cell that has defined it last."""
    kept, wanted = [], set()
    for cell in reversed(cells):
        reads, defined = names_in(cell.source)
        if is_turn(cell) or defined & wanted or cell is cells[0]:
            kept.insert(0, cell)
            wanted = wanted - defined | reads
    return kept


@pytest.mark.slow
def test_nbval_runs_the_turns_solved(tmp_path):
    for path in LECTURES:
        notebook = build.solved(NOTEBOOKS[path])
        for cell in notebook.cells:
            if is_turn(cell):
                name = CALL.search(cell.source)[1]
                cell.outputs = [nbformat.v4.new_output("display_data", base.right_output(name))]
        notebook.cells = with_what_they_need([cell for cell in notebook.cells if cell.cell_type == "code"])
        assert len(notebook.cells) > sum(map(is_turn, notebook.cells))
        nbformat.write(notebook, tmp_path / path.name)
    (lane,) = [lane for lane in lanes_for_tests(None) if lane.name == "notebooks"]
    # As `make test` runs it.
    arguments = [a for a in lane.arguments if a not in ("notebooks", "solutions")]
    environ = os.environ | lane.environ | {"GPULAB_GPU": "virtual:T4", "OMP_NUM_THREADS": "1"}
    environ["GPULAB_PROGRESS"] = str(tmp_path / "progress-{pid}.json")
    command = [*python_here(), *arguments, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
