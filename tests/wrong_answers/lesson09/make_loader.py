"""Answers to "a loader for this machine": arguments that exclude one another, and what is right for training alone."""

import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ..bank import Bank
from ..edits import add, change

BANK = Bank("make_loader")
SAMPLER = "DistributedSampler(dataset, num_replicas=ranks, rank=rank)"
DROPS, LIVE, PINS = (
    "drop_last=train and part >= batch_size",
    "persistent_workers=workers > 0",
    "torch.accelerator.is_available()",
)
OWN, MINE = "cores // ranks - 1", "range(rank, len(dataset), ranks)"
ELIF = f"    elif not train:\n        dataset = Subset(dataset, {MINE})\n"
BANK.right(change(PINS, "torch.cuda.is_available()"))
BANK.right(
    change(MINE, "range(-(-len(dataset) // ranks) * rank, min(len(dataset), -(-len(dataset) // ranks) * (rank + 1)))")
)
BANK.right((change("train and ranks > 1", "train"),
           change("len(dataset) if sampler is None else len(sampler)", "len(sampler or dataset)")))  # fmt: skip


LEFT, EQUAL = (
    "in evaluation samples that are left over go to no rank",
    "parts need not be equal: range(rank, len(dataset), ranks)",
)
BANK.right(change(DROPS, "drop_last=train and len(dataset) // ranks >= batch_size"))


class EveryNth(Sampler):
    def __init__(self, size, ranks, rank):
        self.indices = range(size)[rank::ranks]

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


@BANK.right
def options_in_a_dict(dataset, batch_size, cores, ranks=1, rank=0, train=True):
    options = {"pin_memory": bool(torch.accelerator.current_accelerator(check_available=True))}
    if (workers := cores // ranks - 1) > 0:
        options |= {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 4}
    if not train:
        return DataLoader(dataset, batch_size, sampler=EveryNth(len(dataset), ranks, rank), **options)
    sampler = DistributedSampler(dataset, ranks, rank, seed=3)
    return DataLoader(dataset, batch_size, sampler=sampler, drop_last=len(sampler) >= batch_size, **options)


@BANK.right
def whole_batches_of_indices(dataset, batch_size, cores, ranks=1, rank=0, train=True):
    sampler = DistributedSampler(dataset, ranks, rank) if train else EveryNth(len(dataset), ranks, rank)
    workers = max(0, cores // ranks - 1)
    return DataLoader(
        dataset,
        batch_size if len(sampler) >= batch_size or not train else len(sampler),
        sampler=sampler,
        drop_last=train,
        num_workers=workers,
        persistent_workers=bool(workers),
        pin_memory=torch.cuda.is_available(),
    )


# --- wrong: workers and pinned memory ---------------------------------------------------------------------


def mistake(old, new, *more):
    return (change(old, new), *more)


BANK.mistakes(
    ("every rank takes all cores for itself",
     "eight ranks with 16 workers each are 128 processes for 16 cores: cores // ranks", mistake(OWN, "cores - 1")),
    ("no core is left for the rank's own process", "it collates nothing, but it launches every kernel: one core less",
     mistake(OWN, "cores // ranks")),
    ("one core is kept for all ranks together, or a rank's share is rounded up",
     "each rank has a process of its own: cores // ranks - 1", mistake(OWN, "(cores - 1) // ranks")),
    ("there is a worker where no core is left for it", "0 workers is a right number: the rank loads its batches itself",
     mistake(f'max({OWN}, 0)', f'max({OWN}, 1)')),
    ("there are fewer than no workers", "with fewer than two cores a rank has none: max(…, 0)",
     mistake(f'max({OWN}, 0)', OWN)),
    ("the number of workers does not come from the cores", "4 is what somebody else's machine had",
     mistake(f'max({OWN}, 0)', "4")),
    ("there are at most a few workers, however many cores there are",
     "whether more help is measured; here each core is used", mistake(f'max({OWN}, 0)', f'min(max({OWN}, 0), 4)'),
     mistake(f'max({OWN}, 0)', f'min(max({OWN}, 0), 64)')),
    ("the cores of this machine are counted", "the machine may give this job a part of them: cores is an argument",
     mistake(f'max({OWN}, 0)', "max((__import__('os').cpu_count() or 1) // ranks - 1, 0)")),
    ("persistent_workers is asked for without workers", "PyTorch refuses it: persistent_workers=workers > 0",
     mistake(LIVE, "persistent_workers=True")),
    ("prefetch_factor is given without workers", "PyTorch refuses it: None, where nobody fetches ahead",
     mistake(LIVE, f'{LIVE}, prefetch_factor=2')),
    ("the workers end with every epoch",
     "starting them takes seconds where the dataset's modules are large: persistent_workers=True",
     mistake(f'{LIVE},\n', "\n")),
    ("one worker alone ends with every epoch", "it is a worker like others: workers > 0",
     mistake(LIVE, "persistent_workers=workers > 1")),
    ("memory is pinned where no accelerator is", "PyTorch warns, and pins nothing: ask whether there is one",
     mistake(PINS, "True")),
    ("memory is not pinned, and there is an accelerator", "without it a copy to the GPU is staged, and the host waits",
     mistake(f'pin_memory={PINS},\n', "\n")),
    ("memory is pinned where there are workers",
     "a loader without workers pins as well; what counts is the accelerator", mistake(PINS, "workers > 0")),
)  # fmt: skip

# --- wrong: the sampler -----------------------------------------------------------------------------------
BANK.mistakes(
    ("shuffle=True stands beside a sampler", "a sampler is what gives the order: PyTorch refuses both",
     mistake("shuffle=train and sampler is None", "shuffle=train")),
    ("the sampler asks a process group, and there is none yet",
     "num_replicas and rank are arguments of DistributedSampler", mistake(SAMPLER, "DistributedSampler(dataset)")),
    ("every rank trains on all samples",
     "ranks that shuffle for themselves draw the same samples: a DistributedSampler deals them out",
     mistake("train and ranks > 1", "False")),
    ("the ranks shuffle with different seeds",
     "each takes its part of another order, so that parts overlap: one seed for all",
     mistake(SAMPLER, SAMPLER[:-1] + ', seed=rank)')),
    ("the ranks shuffle with the seed of their own process",
     "torch.initial_seed() is another number in each process, and parts of different orders overlap: "
     "one seed for all", mistake(SAMPLER, SAMPLER[:-1] + ', seed=torch.initial_seed() % 2**31)')),
    ("a rank has the same part of the samples in each epoch, shuffled within it",
     "each epoch deals out all samples anew: a DistributedSampler shuffles before it deals",
     mistake(f'sampler = {SAMPLER}',
     "dataset = Subset(dataset, [i % len(dataset) for i in range(-(-len(dataset) // ranks) * "
     "ranks)][rank::ranks])")),
    ("some epochs have the same order",
     "set_epoch is told the number of the epoch: each number gives an order of its own",
     mistake("    part =",
     "    if sampler is not None:\n        own = sampler.set_epoch\n        sampler.set_epoch = lambda "
     "epoch: own(epoch // 2)\n    part =")),
    ("a rank always trains on the same samples",
     "a fixed part of the data is not shuffled over the ranks; and parts are not equal",
     mistake(f'if train and ranks > 1:\n        sampler = {SAMPLER}\n    elif not train:', "if True:")),
    ("all ranks have the samples of rank 0", "rank=rank", mistake("rank=rank)", "rank=0)")),
    ("in training the order is always that of the dataset",
     "shuffle=True of the loader, or of the sampler, whose default it is",
     mistake(SAMPLER, SAMPLER[:-1] + ', shuffle=False)', change("train and sampler is None", "False"))),
    ("with one rank the order is that of the dataset", "without a sampler the loader shuffles: shuffle=True",
     mistake("train and sampler is None", "False")),
    ("the order is drawn once, and is the same in each epoch",
     "a list of indices is an order for ever: leave it to the sampler",
     mistake("    part =",
     "    if train and sampler is None:\n        sampler = torch.randperm(len(dataset)).tolist()\n    part =")),
    ("samples at the end of the dataset are never drawn",
     "what fills no batch is another few in every epoch: drop_last cuts after the shuffle",
     mistake("    sampler = None\n",
     "    sampler = None\n    if train:\n        dataset = Subset(dataset, range(max(len(dataset) // "
     "(batch_size * ranks) * batch_size * ranks, min(len(dataset), batch_size))))\n")),
    ("the sampler drops samples so that the parts are equal",
     "parts are rounded up, and a few samples come twice; drop_last of the loader is another thing",
     mistake(SAMPLER, SAMPLER[:-1] + ', drop_last=True)')),
)  # fmt: skip

# --- wrong: the last batch, and the evaluation ------------------------------------------------------------
BANK.mistakes(
    ("in training a last batch that is not full is kept",
     "a batch of three has a gradient that is mostly noise, and a shape of its own, for which is "
     "compiled again: drop_last", mistake(DROPS, "drop_last=False")),
    ("where there are fewer samples than a batch, an epoch has no batch",
     "drop_last drops it, and nobody is told: only where the part holds a batch", mistake(DROPS, "drop_last=train")),
    ("where a rank's part is smaller than a batch, an epoch has no batch",
     "the dataset is larger than a batch, this rank's part is not: len(sampler)",
     mistake(DROPS, "drop_last=train and all_of_them >= batch_size",
     add("all_of_them = len(dataset)", before="sampler = None"))),
    ("in training a last batch that is not full is kept after a single full one",
     "one full batch is enough for an epoch: part >= batch_size",
     mistake(DROPS, "drop_last=train and part >= 2 * batch_size")),
    ("in evaluation the last batch is dropped",
     "the mean is then over other samples than the test set's: drop_last in training only",
     mistake(DROPS, "drop_last=part >= batch_size")),
    ("in evaluation samples are shuffled", "outputs can no longer be laid beside the dataset",
     mistake("shuffle=train and", "shuffle=")),
    ("in evaluation the sampler pads: samples come twice",
     "DistributedSampler makes parts equal, and the mean counts some samples twice: a Subset of each rank",
     mistake('elif not train:\n        dataset = Subset(dataset, ' + MINE + ')',
     'elif ranks > 1:\n        sampler = ' + SAMPLER[:-1] + ', shuffle=False)')),
    ("in evaluation the sampler shuffles, and pads", "for a test set neither is wanted: a Subset of each rank",
     mistake("train and ranks > 1", "ranks > 1")),
    (LEFT, EQUAL,
     mistake('elif not train:\n        dataset = Subset(dataset, ' + MINE + ')',
     'elif ranks > 1:\n        sampler = ' + SAMPLER[:-1] + ', shuffle=False, drop_last=True)'),
     mistake(MINE, "range(len(dataset) // ranks * rank, len(dataset) // ranks * (rank + 1))")),
    ("in evaluation every rank has all samples",
     "N ranks that do the same are no faster than one, and sums over them count all N times",
     mistake(f'dataset = Subset(dataset, {MINE})', "pass")),
    ("in evaluation rank 0 has all samples", "the others would wait for it: a part for each",
     mistake(MINE, "range(len(dataset) if rank == 0 else 0)")),
    ("in evaluation one rank takes its part and all that is left over",
     "range(rank, len(dataset), ranks) has at most one more than others",
     mistake(MINE, "range(len(dataset) // ranks * rank, len(dataset) // ranks * (rank + 1) if rank < ranks - 1 else "
     "len(dataset))")),
    ("batch_size is divided by the ranks", "it is that of one rank",
     mistake("        dataset,\n        batch_size,", "        dataset,\n        max(1, batch_size // ranks),")),
    ("in evaluation the batches are larger",
     "without gradients there is room, but the caller has said how large a batch is",
     mistake("        dataset,\n        batch_size,",
     "        dataset,\n        batch_size if train else 2 * batch_size,")),
    ("in evaluation the samples come in another order", "that of the dataset: from rank on, every ranks-th",
     mistake(MINE, "range(len(dataset) - 1 - rank, -1, -ranks)")),
    ("in evaluation batches come as workers are ready",
     "in_order=False gives the batch that is ready first: outputs can no longer be laid beside the dataset",
     mistake(DROPS, f'{DROPS}, in_order=train')),
    ("in evaluation the loader gives indices, not samples",
     "range(rank, len(dataset), ranks) is which samples: Subset(dataset, …) gives them",
     mistake(f'Subset(dataset, {MINE})', MINE)),
    ("in training the loader gives indices, not samples",
     "the loader is one of dataset, and asks the sampler for indices by itself",
     mistake("        dataset,\n        batch_size,",
     "        range(len(dataset)) if train else dataset,\n        batch_size,")),
    ("a batch is a pair, or another thing than the samples in one tensor",
     "the collate_fn that a loader has by itself stacks the samples",
     mistake("        batch_size,\n",
     "        batch_size,\n        collate_fn=lambda samples: (torch.stack(samples), len(samples)),\n")),
)  # fmt: skip

# --- wrong: what comes back -------------------------------------------------------------------------------
BANK.mistakes(
    ("an iterator came back", "the loader itself: the caller goes over it in every epoch",
     mistake("return DataLoader(", "return iter(DataLoader(", change("batch_size,\n    )", "batch_size,\n    ))"))),
    ("a tuple came back", "the loader alone: its sampler is loader.sampler",
     mistake("return DataLoader(", "return sampler, DataLoader(")),
    ("train is False unless it is given", "the signature says train=True", mistake("train=True)", "train=False)")),
)  # fmt: skip
