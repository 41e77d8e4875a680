"""Probes the rest of the script: the evaluation, the data, saving, the batch search and the clock."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from .bench import Finding, Toy, batches_of, busy, clock, found, held, mib, shapes_only, waits


def graph(script: ModuleType) -> Finding:
    at: list[int] = []
    graphs: list[bool] = []

    def look(toy: Toy) -> None:
        at.append(held())
        graphs.append(torch.is_grad_enabled() and any(p.requires_grad for p in toy.parameters()))

    toy = Toy(look, width=64, layers=4)
    script.evaluate(toy, iter(batches_of(*[8] * 6, length=32)))
    growth = (at[5] - at[1]) / 4
    return found(
        f"{mib(growth)} more on the GPU with each batch",
        (growth > 2**17, "the graph of every batch of the evaluation stays alive",
         "without backward nothing frees it: use no_grad or inference_mode"),
        (growth > 1024, "something of every batch of the evaluation stays on the GPU", "scores in a list"),
        (any(graphs), "a graph is built for each batch of the evaluation",
         "detach comes too late: no_grad or inference_mode records no graph"),
        (not all(p.requires_grad for p in toy.parameters()),
         "after the evaluation parameters no longer require gradients",
         "switch on again what you switched off"),
    )  # fmt: skip


def mean(script: ModuleType) -> Finding:
    toy, ((first, _), (second, _)) = Toy(sharp=4.0), batches_of(7, 1)
    with torch.no_grad():
        batches = [(first, toy(first).argmax(2)), (second, toy(second).argmin(2))]  # a good one and a bad one
        scores = [(toy(tokens).flatten(0, 1), targets.flatten()) for tokens, targets in batches]
    losses = [F.cross_entropy(row, targets, reduction="none") for row, targets in scores]
    hits = [(row.argmax(1) == targets).float() for row, targets in scores]
    wanted, right = torch.cat(losses).mean().item(), torch.cat(hits).mean().item()
    means = sum(part.mean().item() for part in losses) / 2
    got = script.evaluate(toy, iter(batches))
    if not isinstance(got, tuple | list) or len(got) != 2:
        return found(
            "evaluate returned no pair",
            (True, "evaluate does not return a pair", "the mean loss, and the share of words guessed"),
        )
    loss, share = (float(value) for value in got)

    def near(value: float, other: float) -> bool:  # 16 bits move a loss by some per cent, and a word or two
        return abs(value - other) <= 0.15 * abs(other)

    return found(
        f"7 rows and 1 row: loss {loss:.2f}, {wanted:.2f} over all words at once",
        (near(loss, means), "the evaluation gives the mean of the batches' means",
         "a batch of one row counts as much as one of seven"),
        (not near(loss, wanted), "the evaluation gives another loss than the mean over all words",
         "divide the sum of losses by the number of words"),
        (not near(share, right), "the share of guessed words is not that over all words",
         "divide the sum of hits by the number of words"),
    )  # fmt: skip


def copies(script: ModuleType) -> Finding:
    text = script.Text(torch.arange(4 * 64 + 1), 64)
    loader = script.make_loader(text, 2, False)
    pinned = all(part.is_pinned() for batch in loader for part in batch)
    given = [tuple(part.pin_memory() for part in batch) for batch in loader]
    counts = []
    for batches in (given, loader):
        busy()
        with waits() as seen:
            moved = list(script.on_gpu(batches))
        counts.append(len(seen))
        for pair, own in zip(moved, given, strict=True):
            if any(not a.is_cuda or not torch.equal(a.cpu(), b) for a, b in zip(pair, own, strict=True)):
                return found(
                    "other batches", (True, "on_gpu does not give the loader's batches on the GPU", "both parts")
                )
    return found(
        f"batches {'pinned' if pinned else 'pageable'}; waits for each copy: {counts[1] / len(given):.0f}",
        (counts[0] > 0, "the host waits until a batch is copied", "non_blocking=True for both tensors"),
        (not pinned and counts[1] <= 0, "each batch is pinned just before its copy",
         "pinning there takes longer than it saves: the loader has a thread for it"),
        (not pinned, "batches are in pageable memory",
         "the driver copies them twice, and the host waits even with non_blocking=True"),
    )  # fmt: skip


def dealing(script: ModuleType) -> Finding:
    text = script.Text(torch.arange(50 * 4 + 1), 4)

    def epoch(loader: Any) -> list[list[int]]:
        return [(tokens[:, 0] // 4).tolist() for tokens, _ in loader]

    held_out = epoch(script.make_loader(text, 8, False))
    loader = script.make_loader(text, 8, True)
    first, second = epoch(loader), epoch(loader)
    count = sum(map(len, held_out))
    tokens, targets = text[3]
    flat = [index for batch in first for index in batch]
    return found(
        f"evaluation: {count} of 50 samples; training: {'shuffled' if flat != sorted(flat) else 'in the text’s order'}",
        (count < 50, "the evaluation leaves out the last samples",
         "a short batch is dropped, which is right for training only"),
        (sorted(index for batch in held_out for index in batch) != list(range(50)), "the evaluation has samples twice",
         "each once"),
        (flat == sorted(flat) or first == second, "training has the same order in every epoch",
         "shuffle=True, for training"),
        (any(len(batch) != 8 for batch in first), "training has a batch that is not full", "drop_last for training"),
        (len(set(flat)) != len(flat), "training has samples twice in an epoch", "each at most once"),
        (tokens.tolist() != [12, 13, 14, 15] or targets.tolist() != [13, 14, 15, 16],
         "a sample is not a piece of the text with the next words as targets",
         "the targets are the same row, shifted by one word"),
    )  # fmt: skip


def resuming(script: ModuleType) -> Finding:
    def parts(seed: int) -> tuple[nn.Module, Any, Any, Any]:
        torch.manual_seed(seed)
        model = nn.Linear(256, 256).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (update + 1))
        return model, optimizer, torch.amp.GradScaler("cuda", init_scale=4096.0, growth_interval=3), schedule

    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    old, new = parts(1), parts(2)
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state(states[1])
    model, optimizer, scaler, schedule = old
    for _ in range(4):
        scaler.scale(model(torch.ones(2, 256).cuda()).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "kept.pt")
        script.save(path, *old)
        torch.cuda.reset_peak_memory_stats()
        script.load(path, *new)
        over = torch.cuda.max_memory_allocated() - held()
    kept: list[Any] = []
    instead: dict[str, Any] = {"save": lambda *of_run: kept.append(of_run), "print": lambda *words, **options: None}
    with mock.patch.dict(vars(script), instead):
        script.main(64, 1, 16, 2, 1, 4, words=128)  # the least that leaves a batch to be held out
    names = ("model", "optimizer", "scaler", "schedule")
    lost = [name for name, a, b in zip(names, old, new, strict=True) if not _same(a.state_dict(), b.state_dict())]
    weights = sum(p.nbytes for p in model.parameters())
    return found(
        f"not as it was saved: {', '.join(lost) or 'nothing'}; {mib(over)} on the GPU during loading",
        (lost, f"not restored by load(): {', '.join(lost)}", "their state is part of the training"),
        (over > weights / 2, "loading puts a second copy on the GPU",
         "tensors saved from the GPU are loaded there: map_location=\"cpu\""),
        (not kept, "main() ends without save()", "a run must save what it has trained"),
    )  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)


def search(script: ModuleType) -> Finding:
    at: list[tuple[int, int]] = []
    tried: list[int] = []

    def attempt(batch: int) -> None:
        at.append((batch, held() - before))
        kept = []  # by name, in a frame that a traceback holds
        for _ in range(batch):
            kept.append(torch.empty(2**28, device="cuda"))  # 1 GiB

    def broken(batch: int) -> None:
        tried.append(batch)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    def passes_on() -> bool:
        try:
            script.largest_batch(broken, 4)
        except RuntimeError as error:
            return "mat1" in str(error) and tried == [4]
        return False

    def lacking(batch: int) -> None:
        tried.append(batch)
        if batch < 1:
            raise ValueError("there is no such batch")
        raise torch.OutOfMemoryError("it never fits")

    def gives_up() -> bool:
        tried.clear()
        try:
            script.largest_batch(lacking, 4)
        except torch.OutOfMemoryError:
            return tried == [4, 2, 1]
        except ValueError:
            pass
        return False

    with shapes_only():
        before = held()
        try:
            batch: Any = script.largest_batch(attempt, 32)
        except torch.OutOfMemoryError:
            batch = "none"
        most = max(nbytes for _, nbytes in at)
        through, ends = passes_on(), gives_up()
    return found(
        f"32, 16, … GiB tried on a T4: {batch} fits; an attempt began with {mib(most)} taken",
        (most > 0, "an attempt begins while the previous one still holds its memory",
         "inside the except block the exception is alive, and so is all that its traceback holds"),
        (batch != 8, "the search does not end with the first batch that fits", "halve it until it fits"),
        (not through, "errors other than out of memory are swallowed", "catch torch.OutOfMemoryError alone"),
        (not ends, "if no batch fits, the search does not end at 1",
         "try 4, 2, 1, then raise the error: a batch of 0 always fits"),
    )  # fmt: skip


def speed(script: ModuleType) -> Finding:
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        busy(1.0 if calls == 1 else 0.1)

    clock().ignores_own = True
    got = float(script.words_per_second(step, 1000))
    wrong = got / 10_000
    return found(
        f"{got:,.0f} words a second for a step that does 10,000",
        (wrong > 1.5, "the clock stops before the GPU is done",
         "a launch returns at once: synchronize before each reading"),
        (wrong < 0.97 and calls <= 10, "the first step counts too",
         "the first calls load and choose kernels: run a few before the timing"),
        (abs(wrong - 1) > 0.03, "the speed is wrong",
         "divide the words trained between two readings by the time between them"),
    )  # fmt: skip
