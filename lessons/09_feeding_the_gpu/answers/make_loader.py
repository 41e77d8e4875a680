"""Answers to "a loader for this machine": arguments that exclude one another, and what is right for training alone."""

from banks.bank import Bank
from banks.edits import add, change

BANK = Bank("make_loader")
SAMPLER, MINE = "DistributedSampler(dataset, num_replicas=ranks, rank=rank)", "range(rank, len(dataset), ranks)"
DROPS, LIVE, PINS = "train and part >= batch_size", "persistent_workers=workers > 0", "torch.accelerator.is_available()"
SHARE, WORKERS, SIZE = "cores // ranks - 1", "max(cores // ranks - 1, 0)", "        dataset,\n        batch_size,\n"
EVALUATES, SHUFFLES = f"elif not train:\n        dataset = Subset(dataset, {MINE})", "shuffle=train and sampler is None"
PADS = "elif ranks > 1:\n        sampler = DistributedSampler(dataset, num_replicas=ranks, rank=rank, shuffle=False"
BLOCK, FLOOR = "-(-len(dataset) // ranks)", "len(dataset) // ranks"


def sampled(option):
    """A DistributedSampler with this option too."""
    return change(SAMPLER, f"{SAMPLER[:-1]}, {option})")


def before_part(lines):
    return change("    part =", f"    {lines}\n    part =")


BANK.right((change(PINS, "torch.cuda.is_available()"), change(DROPS, "train and len(dataset) // ranks >= batch_size"),
            change(MINE, f"range({BLOCK} * rank, min(len(dataset), {BLOCK} * (rank + 1)))")))  # fmt: skip
BANK.right((change("train and ranks > 1", "train"), sampled("seed=3"), change(f"drop_last={DROPS}", "drop_last=train"),
            change("len(dataset) if sampler is None else len(sampler)", "len(sampler or dataset)"),
            change(SIZE, "        dataset,\n        min(batch_size, part) if train else batch_size,\n")))  # fmt: skip
BANK.right((change(EVALUATES, f"elif not train:\n        class Mine(torch.utils.data.Sampler):\n            def __iter__(self):\n"
            f"                return iter({MINE})\n            def __len__(self):\n                return len({MINE})\n"
            "        sampler = Mine()"), change(LIVE, "prefetch_factor=4 if workers else None,\n        "
            "persistent_workers=bool(workers)")))  # fmt: skip

# --- workers and pinned memory ---------------------------------------------------------------------------
BANK.mistakes(
    ("every rank uses all cores",
     "eight ranks with 16 workers each are 128 processes for 16 cores: cores // ranks", change(SHARE, "cores - 1")),
    ("no core is left for the rank's own process", "it loads nothing, but launches every kernel: use one core less",
     change(SHARE, "cores // ranks")),
    ("one core is kept for all ranks together, or a rank's share is rounded up",
     "each rank has a process of its own: cores // ranks - 1", change(SHARE, "(cores - 1) // ranks")),
    ("there is a worker though no core is left for it", "0 workers is allowed: the rank loads its batches itself",
     change(WORKERS, f"max({SHARE}, 1)")),
    ("there are fewer than no workers", "with fewer than two cores a rank has none: max(…, 0)", change(WORKERS, SHARE)),
    ("the number of workers does not come from the cores", "4 was right for somebody else's machine",
     change(WORKERS, "4")),
    ("there are at most a few workers, however many cores there are",
     "only a measurement shows whether more help; here each core is used", change(WORKERS, f"min({WORKERS}, 4)"),
     change(WORKERS, f"min({WORKERS}, 64)")),
    ("the cores of this machine are counted", "the machine may give this job a part of them: cores is an argument",
     change(WORKERS, "max((__import__('os').cpu_count() or 1) // ranks - 1, 0)")),
    ("persistent_workers is asked for without workers", "PyTorch refuses it: persistent_workers=workers > 0",
     change(LIVE, "persistent_workers=True")),
    ("prefetch_factor is given without workers", "PyTorch refuses it: pass None without workers",
     change(LIVE, f"{LIVE}, prefetch_factor=2")),
    ("the workers end with every epoch",
     "starting them takes seconds where the dataset's modules are large: persistent_workers=True",
     change(f"{LIVE},\n", "\n")),
    ("one worker alone ends with every epoch", "it is a worker like others: workers > 0", change(LIVE, f"{LIVE[:-1]}1")),
    ("memory is pinned where no accelerator is", "PyTorch warns, and pins nothing: test whether there is one",
     change(PINS, "True")),
    ("memory is not pinned though there is an accelerator",
     "without it a copy to the GPU is staged, and the host waits",
     change(PINS, "False")),
    ("memory is pinned where there are workers",
     "a loader without workers pins too; only the accelerator matters", change(PINS, "workers > 0")),
)  # fmt: skip

# --- whose samples, in which order -----------------------------------------------------------------------
BANK.mistakes(
    ("shuffle=True stands beside a sampler", "the sampler determines the order: PyTorch refuses shuffle beside it",
     change(SHUFFLES, "shuffle=train")),
    ("the sampler looks for a process group, but there is none yet",
     "num_replicas and rank are arguments of DistributedSampler", change(SAMPLER, "DistributedSampler(dataset)")),
    ("every rank trains on all samples",
     "each rank shuffles all samples by itself: use a DistributedSampler to share them",
     change("train and ranks > 1", "False")),
    ("the ranks shuffle with different seeds",
     "each takes its part of a different order, so the parts overlap: use one seed for all", sampled("seed=rank")),
    ("the ranks shuffle with the seed of their own process",
     "torch.initial_seed() differs between processes, and parts of different orders overlap: use one seed for all",
     sampled("seed=torch.initial_seed() % 2**31")),
    ("a rank has the same part of the samples in each epoch, shuffled within it",
     "each epoch redistributes all samples: a DistributedSampler shuffles before it splits",
     change(f"sampler = {SAMPLER}", f"dataset = Subset(dataset, [i % len(dataset) for i in range({BLOCK} * ranks)][rank::ranks])")),
    ("some epochs have the same order",
     "pass the number of the epoch to set_epoch: each number gives a different order",
     before_part("if sampler is not None:\n        own = sampler.set_epoch\n        sampler.set_epoch = lambda epoch: own(epoch // 2)")),
    ("a rank always trains on the same samples",
     "a fixed part of the data is not shuffled across ranks, and the parts are not equal",
     change(f"if train and ranks > 1:\n        sampler = {SAMPLER}\n    elif not train:", "if True:")),
    ("all ranks have the samples of rank 0", "rank=rank", change("rank=rank)", "rank=0)")),
    ("in training the order is always that of the dataset",
     "shuffle=True of the loader, or of the sampler, whose default it is",
     (sampled("shuffle=False"), change(SHUFFLES, "shuffle=False"))),
    ("with one rank the order is that of the dataset", "without a sampler the loader shuffles: shuffle=True",
     change(SHUFFLES, "shuffle=False")),
    ("the order is drawn once, and is the same in each epoch",
     "a list of indices fixes the order: leave it to the sampler",
     before_part("if train and sampler is None:\n        sampler = torch.randperm(len(dataset)).tolist()")),
    ("samples at the end of the dataset are never drawn",
     "different samples should be left over in every epoch: drop_last cuts after the shuffle",
     (add("whole = batch_size * ranks", before="sampler = None"), add("if train:\n        dataset = Subset(dataset, "
      "range(max(len(dataset) // whole * whole, min(len(dataset), batch_size))))", before="sampler = None"))),
    ("the sampler drops samples so that the parts are equal",
     "parts are rounded up, and a few samples come twice; the loader's drop_last is something else",
     sampled("drop_last=True")),
    ("in training the loader gives indices, not samples",
     "make the loader from dataset: it gets indices from the sampler by itself",
     change(SIZE, "        range(len(dataset)) if train else dataset,\n        batch_size,\n")),
    ("a batch is a pair, or something else than the samples in one tensor",
     "the default collate_fn stacks the samples",
     change(SIZE, f"{SIZE}        collate_fn=lambda samples: (torch.stack(samples), len(samples)),\n")),
)  # fmt: skip

# --- the last batch, the evaluation, and what comes back -------------------------------------------------
BANK.mistakes(
    ("in training a last batch that is not full is kept",
     "a batch of three has a noisy gradient, and its own shape triggers a recompilation: drop_last",
     change(DROPS, "False")),
    ("where there are fewer samples than a batch, an epoch has no batch",
     "drop_last drops it silently: use it only if the part holds a batch", change(DROPS, "train")),
    ("where a rank's part is smaller than a batch, an epoch has no batch",
     "the dataset is larger than a batch, this rank's part is not: len(sampler)",
     change(DROPS, "train and (len(dataset) if train else part) >= batch_size")),
    ("in training a last batch that is not full is kept after a single full one",
     "one full batch is enough for an epoch: part >= batch_size", change(DROPS, "train and part >= 2 * batch_size")),
    ("in evaluation the last batch is dropped",
     "the mean is then not over the whole test set: drop_last in training only",
     change(DROPS, "part >= batch_size")),
    ("in evaluation samples are shuffled", "outputs can no longer be matched with the dataset",
     change(SHUFFLES, "shuffle=sampler is None")),
    ("in evaluation the sampler pads: samples come twice",
     "DistributedSampler makes parts equal, so the mean counts some samples twice: a Subset for each rank",
     change(EVALUATES, f"{PADS})")),
    ("in evaluation the sampler shuffles, and pads", "a test set needs neither: a Subset for each rank",
     change("train and ranks > 1", "ranks > 1")),
    ("in evaluation samples that are left over go to no rank", "parts need not be equal: range(rank, len(dataset), ranks)",
     change(EVALUATES, f"{PADS}, drop_last=True)"), change(MINE, f"range({FLOOR} * rank, {FLOOR} * (rank + 1))")),
    ("in evaluation every rank has all samples",
     "N ranks that do the same work are no faster than one, and sums over ranks count every sample N times",
     change(EVALUATES, "elif not train:\n        pass")),
    ("in evaluation rank 0 has all samples", "the others would wait for it: a part for each",
     change(MINE, "range(len(dataset) if rank == 0 else 0)")),
    ("in evaluation one rank takes its part and all leftover samples",
     "range(rank, len(dataset), ranks) has at most one more than others",
     change(MINE, f"range({FLOOR} * rank, {FLOOR} * (rank + 1) if rank < ranks - 1 else len(dataset))")),
    ("batch_size is divided by the ranks", "it is that of one rank",
     change(SIZE, "        dataset,\n        max(1, batch_size // ranks),\n")),
    ("in evaluation the batches are larger",
     "without gradients larger ones fit, but the caller sets the batch size",
     change(SIZE, "        dataset,\n        batch_size if train else 2 * batch_size,\n")),
    ("in evaluation the samples come in the wrong order", "use the dataset's order: start at rank, in steps of ranks",
     change(MINE, "range(len(dataset) - 1 - rank, -1, -ranks)")),
    ("in evaluation batches come as workers are ready",
     "in_order=False gives the batch that is ready first: outputs can no longer be matched with the dataset",
     change(DROPS, f"{DROPS}, in_order=train")),
    ("in evaluation the loader gives indices, not samples",
     "range(rank, len(dataset), ranks) has only indices: Subset(dataset, …) yields the samples",
     change(f"Subset(dataset, {MINE})", MINE)),
    ("an iterator was returned", "return the loader itself: the caller iterates over it in every epoch",
     (change("return DataLoader(", "return iter(DataLoader("), change("batch_size,\n    )", "batch_size,\n    ))"))),
    ("a tuple was returned", "return the loader alone: its sampler is loader.sampler",
     change("return DataLoader(", "return sampler, DataLoader(")),
    ("train is False unless it is given", "the signature says train=True", change("train=True)", "train=False)")),
)  # fmt: skip
