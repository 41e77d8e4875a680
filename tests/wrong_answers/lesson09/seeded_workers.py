"""Answers to "chance that can be repeated": whose generators, seeded from what, and where."""

import functools

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info

from ..bank import Bank
from ..edits import add, change

BANK = Bank("seeded_workers")
RNG, SOURCE = "np.random.default_rng(info.seed)", "generator=torch.Generator().manual_seed(seed)"
SET = f"info.dataset.rng = {RNG}"
CALL = "worker_init_fn=seed_rng,"
BANK.right(change(RNG, "np.random.default_rng(torch.initial_seed())"))
BANK.right(
    change(
        SET,
        f"{SET}\n        np.random.seed(torch.initial_seed() % 2**32)\n        __import__('random').seed(torch.initial_seed())",
    )
)
BANK.right(change(RNG, "np.random.default_rng(torch.randint(2**62, ()).item())"))
BANK.right(change(SET, f"dataset.rng = {RNG}"))
BANK.right((change(CALL, f'{CALL}\n        persistent_workers=True,'),
           change(RNG, "np.random.default_rng([seed, worker])")))  # fmt: skip
BANK.right(change(SET, "info.dataset.rng.bit_generator.state = " + RNG + ".bit_generator.state"))


def give(dataset, worker):
    dataset.rng = np.random.default_rng([get_worker_info().seed, worker])


@BANK.right
def partial_and_sampler(dataset, batch_size, workers, seed):
    order = torch.Generator().manual_seed(seed)
    return DataLoader(
        dataset,
        batch_size,
        sampler=RandomSampler(dataset, generator=order),
        num_workers=workers,
        worker_init_fn=functools.partial(give, dataset),
        generator=torch.Generator().manual_seed(seed ^ 77),
        prefetch_factor=4,
    )


class Wrapped(Dataset):
    def __init__(self, dataset):
        self.dataset, self.seeded = dataset, False

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        if not self.seeded:
            self.dataset.rng, self.seeded = np.random.default_rng(get_worker_info().seed), True
        return self.dataset[index]


@BANK.right
def seeds_when_first_used(dataset, batch_size, workers, seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return DataLoader(Wrapped(dataset), batch_size, True, num_workers=workers, generator=generator)


def mistake(old, new, *more):
    return (change(old, new), *more)


# --- wrong: the generators in the worker ------------------------------------------------------------------

OF_ITS_OWN = "nobody seeds dataset.rng in the workers: all draw the same from it, and again in every epoch"
BANK.mistakes(
    (OF_ITS_OWN, "PyTorch seeds the global generators alone: worker_init_fn, and get_worker_info().dataset.rng",
     mistake(CALL, ""), mistake(SET, "np.random.seed(info.seed % 2**32)\n        __import__('random').seed(info.seed)"),
     mistake("info.dataset.rng =", "info.dataset.generator =")),
    ("dataset.rng is seeded in the process, and every worker gets a copy of it",
     "the same numbers in each worker, and again in every epoch: seed it in worker_init_fn",
     mistake(CALL, "", add("dataset.rng = np.random.default_rng(seed)", before="return DataLoader("))),
)  # fmt: skip
# Before those that differ in nothing that is judged.
COPY = "epochs are counted, or numbers are drawn, in memory of which each worker has its own copy"
BANK.mistakes(
    (COPY,
     "each epoch has new workers, and their copy begins with what the process has: count in the "
     "process, or take info.seed, which is another one then",
     mistake(RNG, "np.random.default_rng([seed, worker, count.pop()])",
     add("count = [3, 2, 1]", before="def seed_rng"))),
)  # fmt: skip


def counting(numbers, *more):
    return mistake(RNG, f"np.random.default_rng([seed, worker, {numbers}])", *more)


BANK.mistakes((
    COPY, "",
    counting("next(numbers)", add("numbers = __import__('itertools').count()", before="def seed_rng")),
    counting("next(numbers)", add("numbers = (3 * i for i in range(100))", before="def seed_rng")),
    counting("count.pop()", change("seed_rng(worker)", "seed_rng(worker, count=[3, 2, 1])")),
    counting("seed_rng.epoch", add("seed_rng.epoch += 1", before="info = "),
             add("seed_rng.epoch = 0", before="return DataLoader(")),
    counting("*helper()", add("rng = np.random.default_rng(seed)", before="def seed_rng"),
             add("helper = lambda: [int(rng.integers(2**32))]", before="def seed_rng")),
    counting("rng.integers(2**32)", change("seed_rng(worker)", "seed_rng(rng, worker)"),
             change(CALL, "worker_init_fn=__import__('functools').partial(seed_rng, np.random.default_rng(seed)),")),
    counting("EPOCH", add("global EPOCH", before="info = "),
             add("EPOCH = globals().get('EPOCH', 0) + 1", before="info = ")),
    counting("*sequence.spawn(worker + 1)[worker].generate_state(4)",
             add("sequence = np.random.SeedSequence(seed)", before="def seed_rng")),
))  # fmt: skip


class Seeds:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, worker):
        get_worker_info().dataset.rng = np.random.default_rng([int(self.rng.integers(2**32)), worker])


def with_init(dataset, batch_size, workers, seed, init):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, generator=generator, worker_init_fn=init)


@BANK.wrong(COPY)
def an_object(dataset, batch_size, workers, seed):
    return with_init(dataset, batch_size, workers, seed, Seeds(seed))


@BANK.wrong(COPY)
def a_method(dataset, batch_size, workers, seed):
    return with_init(dataset, batch_size, workers, seed, Seeds(seed).__call__)


BY_WORKER = "dataset.rng is seeded from seed and the worker's number: the same in every epoch"
BANK.mistakes(
    (BY_WORKER, "each epoch has new workers, with a copy of what the process has; info.seed is another one then",
     mistake(RNG, "np.random.default_rng([seed, worker])")),
    ("dataset.rng is seeded with seed + worker: the same in every epoch, and worker 1 draws what worker "
     "0 does with the next seed", "info.seed is another number in each epoch and of each worker",
     mistake(RNG, "np.random.default_rng(seed + worker)")),
    ("dataset.rng has one seed in all workers", "each worker needs another: get_worker_info().seed",
     mistake(RNG, "np.random.default_rng(seed)")),
    ("dataset.rng has the same seed in all workers, epochs and runs",
     "get_worker_info().seed comes from the loader's generator", mistake(RNG, "np.random.default_rng(0)")),
    ("dataset.rng is seeded with the worker's number alone",
     "the same in every epoch and with every seed: get_worker_info().seed",
     mistake(RNG, "np.random.default_rng(worker)")),
    ("dataset.rng has one seed in all workers, another one in each epoch",
     "info.seed - info.id is what all workers have in common: info.seed",
     mistake(RNG, "np.random.default_rng(info.seed - worker)")),
    ("dataset.rng is seeded by the operating system: no run can be repeated",
     "default_rng() without a seed takes one that nobody knows", mistake(RNG, "np.random.default_rng()"),
     mistake(RNG, "np.random.default_rng(time.perf_counter_ns())")),
    ("dataset.rng is made by spawn from the one that there was: the same in every epoch, and not from seed",
     "what the process has is what each epoch begins with: get_worker_info().seed",
     mistake(RNG, "info.dataset.rng.spawn(worker + 1)[worker]")),
)  # fmt: skip


@BANK.right
def counts_epochs_in_the_process(dataset, batch_size, workers, seed):
    epoch = 0

    class Loader(DataLoader):
        def __iter__(self):
            nonlocal epoch
            epoch += 1
            yield from super().__iter__()

    def init(worker):
        get_worker_info().dataset.rng = np.random.default_rng([seed, epoch, worker])

    return Loader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=init,
        generator=torch.Generator().manual_seed(seed),
    )


@BANK.right
def init_and_dataset_share_a_box(dataset, batch_size, workers, seed):
    box = {}

    class Seeded(Dataset):
        def __len__(self):
            return len(dataset)

        def __getitem__(self, index):
            dataset.rng = box["rng"]
            return dataset[index]

    def init(worker):
        box["rng"] = np.random.default_rng(get_worker_info().seed)

    return with_init(Seeded(), batch_size, workers, seed, init)


BANK.mistakes(
    ("NumPy's global generator has one seed in all workers",
     "PyTorch had given each its own; seeding it once more took that away",
     mistake(SET, f'{SET}\n        np.random.seed(seed % 2**32)')),
    ("NumPy's global generator is seeded from seed and the worker's number: the same in every epoch",
     "PyTorch had seeded it from info.seed, which changes: leave it alone",
     mistake(SET, f'{SET}\n        np.random.seed((1000 * seed + worker) % 2**32)')),
    ("random has one seed in all workers", "PyTorch had given each its own: leave it alone",
     mistake(SET, f"{SET}\n        __import__('random').seed(seed)")),
    ("torch's generator has one seed in all workers, and so does what is seeded from it",
     "PyTorch had given each its own: leave it alone", mistake(SET, f'{SET}\n        torch.manual_seed(seed)')),
    ("every generator has one seed in all workers",
     "a seed_everything(seed) in worker_init_fn undoes what PyTorch does",
     mistake(SET, "info.dataset.rng = np.random.default_rng(seed)\n        np.random.seed(seed % 2**32)\n        "
     "__import__('random').seed(seed)\n        torch.manual_seed(seed)")),
    ("every generator is seeded from seed and the worker's number: the same in every epoch",
     "workers are made anew for each epoch, and seed + worker is what it was: get_worker_info().seed",
     mistake(SET, "info.dataset.rng = np.random.default_rng([seed, worker])\n        np.random.seed((1000 * seed + "
     "worker) % 2**32)\n        __import__('random').seed(1000 * seed + worker)\n        "
     "torch.manual_seed((1000 * seed + worker) % 2**62)")),
    ("np.random.seed is given more than 32 bits",
     "torch.initial_seed() has 64 of them: % 2**32; or default_rng, which takes any number",
     mistake(SET, f'{SET}\n        np.random.seed(torch.initial_seed())')),
    ("a seed plus the worker's number has more than 32 bits, and np.random.seed refuses it",
     "% 2**32; or no seed at all, since PyTorch has given NumPy's global generator one",
     mistake(SET, f'{SET}\n        if seed > 2**20:\n            np.random.seed(2**32 + worker)')),
    ("dataset.rng is seeded in the first worker alone", "worker_init_fn runs in each: no if",
     mistake(SET, f'if worker == 0:\n            {SET}')),
)  # fmt: skip

# --- wrong: the generator of the loader -------------------------------------------------------------------

FROM_GLOBAL = "the loader takes order and seeds from torch's global generator"
BANK.mistakes(
    (FROM_GLOBAL,
     "what else draws from it decides then, and is disturbed: generator=torch.Generator().manual_seed(seed)",
     mistake(SOURCE, "generator=None"), mistake(SOURCE, "generator=torch.default_generator"),
     mistake(SOURCE, "generator=torch.Generator().manual_seed(seed + torch.randint(2**31, ()).item())")),
    ("the loader's generator is not seeded with seed",
     "torch.Generator() has the same seed each time, whatever seed is: manual_seed(seed)",
     mistake(SOURCE, "generator=torch.Generator()")),
    ("the loader's generator has a seed that nobody knows",
     "torch.Generator().seed() draws one, and returns it: manual_seed(seed)",
     mistake(SOURCE, "generator=generator", add("generator = torch.Generator()", before="return DataLoader("),
     add("generator.seed()", before="return DataLoader("))),
    ("seeds that differ in their upper bits alone give the same run", "manual_seed takes 32 bits: all of seed",
     mistake(SOURCE, "generator=torch.Generator().manual_seed(seed % 2**16)")),
    ("the order comes from torch's global generator",
     "RandomSampler without a generator takes its seed there: the loader's shuffle=True hands it on",
     mistake("shuffle=True", "sampler=torch.utils.data.RandomSampler(dataset)")),
    ("your function seeds a global random generator", "with a seed inside, every call draws the same numbers",
     (change(SOURCE, "generator=None"), add("torch.manual_seed(seed)", before="return DataLoader(")),
     add("__import__('random').seed(seed)", before="return DataLoader(")),
    ("a sample is drawn in the process",
     "dataset[0] draws from every generator, and whoever comes next draws other numbers",
     add("shape = dataset[0].shape", before="return DataLoader(")),
)  # fmt: skip

# --- wrong: the loader ------------------------------------------------------------------------------------
BANK.mistakes(
    ("the order is that of the dataset", "shuffle=True", mistake("shuffle=True", "shuffle=False")),
    ("the order is drawn once, and is that of every epoch",
     "a list of indices is one order for ever: shuffle=True draws anew",
     mistake("shuffle=True",
     "sampler=torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()")),
    ("an epoch draws some samples twice, and others not at all", "shuffle=True, or a RandomSampler without replacement",
     mistake("shuffle=True", "sampler=torch.utils.data.RandomSampler(dataset, replacement=True, "
     "generator=torch.Generator().manual_seed(seed))")),
    ("the last batch is dropped", "every sample once: nothing is left out",
     mistake("shuffle=True", "shuffle=True, drop_last=True")),
    ("there are no workers", "num_workers=workers: without, the augmentations draw in the process itself",
     mistake("num_workers=workers", "num_workers=0")),
    ("there is one worker, however many are asked for", "num_workers=workers",
     mistake("num_workers=workers", "num_workers=1")),
    ("a batch has one sample", "batch_size", mistake("        batch_size,\n", "")),
    ("worker_init_fn is called at once, in the process",
     "hand over the function, without brackets; get_worker_info() is None outside a worker",
     mistake("worker_init_fn=seed_rng", "worker_init_fn=seed_rng(0)")),
    ("worker_init_fn takes no argument", "it is called with the worker's number",
     mistake("def seed_rng(worker)", "def seed_rng()")),
    ("dataset.rng becomes a RandomState",
     "NumPy's old kind has other methods than a Generator, such as integers: np.random.default_rng",
     mistake(RNG, "np.random.RandomState(info.seed % 2**32)")),
    ("a list came back", "the loader: its caller goes over it, epoch by epoch",
     mistake("return DataLoader(", "return list(DataLoader(", change("num_workers=workers", "num_workers=0"),
     change("manual_seed(seed),\n    )", "manual_seed(seed),\n    ))"))),
)  # fmt: skip
