"""Answers to "chance that can be repeated": whose generators, seeded from what, and where."""

from banks.bank import Bank
from banks.edits import add, change

BANK = Bank("seeded_workers")
RNG, SOURCE = "np.random.default_rng(info.seed)", "generator=torch.Generator().manual_seed(seed)"
SET, SAMPLER = f"info.dataset.rng = {RNG}", "sampler=torch.utils.data.RandomSampler(dataset"
CALL, LOADER = "worker_init_fn=seed_rng,", "return DataLoader("


def before(*lines):
    """These before the loader is made."""
    return add("\n    ".join(lines), before=LOADER)


def seeded(line):
    """This in the worker too."""
    return change(SET, f"{SET}\n        {line}")


def counting(numbers, *more):
    return (change(RNG, f"np.random.default_rng([seed, worker, {numbers}])"), *more)


BANK.right((change(SOURCE, "generator=torch.Generator().manual_seed(seed ^ 77)"),
            change("shuffle=True", f"{SAMPLER}, generator=torch.Generator().manual_seed(seed))"),
            change(SET, "dataset.rng = np.random.default_rng(torch.initial_seed())\n        np.random.seed(info.seed % 2**32)\n"
            "        __import__('random').seed(info.seed)")))  # fmt: skip
BANK.right((change(CALL, f"{CALL}\n        persistent_workers=True,"),
            change(SET, "rng = np.random.default_rng([seed, worker])\n        info.dataset.rng.bit_generator.state = "
            "rng.bit_generator.state")))  # fmt: skip
BANK.right((before("epochs = []", "class Loader(DataLoader):", "    def __iter__(self):", "        epochs.append(0)",
            "        yield from super().__iter__()"), change(LOADER, "return Loader("),
            change(RNG, "np.random.default_rng([seed, len(epochs), worker])")))  # fmt: skip

# --- the generators in the worker ------------------------------------------------------------------------
BANK.mistakes(
    ("dataset.rng is not seeded in the workers: all draw the same from it, and again in every epoch",
     "PyTorch seeds only the global generators: set get_worker_info().dataset.rng in worker_init_fn",
     change(CALL, ""), change("info.dataset.rng =", "info.dataset.generator =")),
    ("dataset.rng is seeded in the process, and every worker gets a copy of it",
     "the same numbers in each worker, and again in every epoch: seed it in worker_init_fn",
     (change(CALL, ""), before("dataset.rng = np.random.default_rng(seed)"))),
    # Before those that differ in nothing that is judged.
    ("epochs are counted, or numbers drawn, in the worker's own copy of memory",
     "each epoch has new workers, whose copy starts from the state of the process: count in the process, or use "
     "info.seed, which changes",
     counting("count.pop()", add("count = [3, 2, 1]", before="def seed_rng")),
     counting("next(numbers)", add("numbers = __import__('itertools').count()", before="def seed_rng")),
     counting("seed_rng.epoch", add("seed_rng.epoch += 1", before="info = "), before("seed_rng.epoch = 0")),
     counting("rng.integers(2**32)", change("seed_rng(worker)", "seed_rng(rng, worker)"),
              change(CALL, "worker_init_fn=__import__('functools').partial(seed_rng, np.random.default_rng(seed)),")),
     counting("EPOCH", add("EPOCH = globals().get('EPOCH', 0) + 1", before="info = "),
              add("global EPOCH", before="EPOCH = "))),
    ("dataset.rng is seeded from seed and the worker's number: the same in every epoch",
     "each epoch has new workers, with a copy of the process; info.seed changes with the epoch",
     change(RNG, "np.random.default_rng([seed, worker])")),
    ("dataset.rng is seeded with seed + worker: the same in every epoch, and worker 1 draws what worker 0 does with the "
     "next seed", "info.seed differs between epochs and between workers",
     change(RNG, "np.random.default_rng(seed + worker)")),
    ("dataset.rng has one seed in all workers", "each worker needs another: get_worker_info().seed",
     change(RNG, "np.random.default_rng(seed)")),
    ("dataset.rng has the same seed in all workers, epochs and runs",
     "get_worker_info().seed comes from the loader's generator", change(RNG, "np.random.default_rng(0)")),
    ("dataset.rng is seeded with the worker's number alone",
     "the same in every epoch and with every seed: get_worker_info().seed", change(RNG, "np.random.default_rng(worker)")),
    ("dataset.rng has one seed for all workers, a new one in each epoch",
     "info.seed - info.id is the same for all workers: use info.seed",
     change(RNG, "np.random.default_rng(info.seed - worker)")),
    ("dataset.rng is seeded by the operating system: no run can be repeated",
     "default_rng() without a seed takes one from the operating system", change(RNG, "np.random.default_rng()")),
    ("dataset.rng is spawned from the existing one: the same in every epoch, and not from seed",
     "each epoch starts from the state of the process: use get_worker_info().seed",
     change(RNG, "info.dataset.rng.spawn(worker + 1)[worker]")),
    ("NumPy's global generator has one seed in all workers",
     "PyTorch had given each its own seed; seeding again undid that", seeded("np.random.seed(seed % 2**32)")),
    ("NumPy's global generator is seeded from seed and the worker's number: the same in every epoch",
     "PyTorch had seeded it from info.seed, which changes: leave it alone",
     seeded("np.random.seed((1000 * seed + worker) % 2**32)")),
    ("random has one seed in all workers", "PyTorch had given each its own: leave it alone",
     seeded("__import__('random').seed(seed)")),
    ("torch's generator has one seed in all workers, and so does what is seeded from it",
     "PyTorch had given each its own: leave it alone", seeded("torch.manual_seed(seed)")),
    ("every generator has one seed in all workers", "a seed_everything(seed) in worker_init_fn undoes what PyTorch does",
     (change(RNG, "np.random.default_rng(seed)"), add("__import__('random').seed(seed)", after="info ="),
      add("torch.manual_seed(seed)", after="info ="), add("np.random.seed(seed % 2**32)", after="info ="))),
    ("every generator is seeded from seed and the worker's number: the same in every epoch",
     "each epoch has new workers, and seed + worker stays the same: use get_worker_info().seed",
     (change(RNG, "np.random.default_rng([seed, worker])"), add("own = 1000 * seed + worker", before="info ="),
      *(add(line, after="info =") for line in ("__import__('random').seed(own)", "np.random.seed(own % 2**32)",
                                               "torch.manual_seed(own % 2**62)")))),
    ("np.random.seed is given more than 32 bits",
     "torch.initial_seed() has 64 of them: % 2**32; or default_rng, which takes any number",
     seeded("np.random.seed(torch.initial_seed())")),
    ("a seed plus the worker's number has more than 32 bits, and np.random.seed refuses it",
     "% 2**32; or no seed at all, since PyTorch has given NumPy's global generator one",
     seeded("if seed > 2**20:\n            np.random.seed(2**32 + worker)")),
    ("dataset.rng is seeded in the first worker alone", "worker_init_fn runs in each: no if",
     change(SET, f"if worker == 0:\n            {SET}")),
    ("dataset.rng becomes a RandomState",
     "NumPy's legacy class lacks methods of Generator, such as integers: np.random.default_rng",
     change(RNG, "np.random.RandomState(info.seed % 2**32)")),
)  # fmt: skip

# --- the generator of the loader -------------------------------------------------------------------------
BANK.mistakes(
    ("the loader takes order and seeds from torch's global generator",
     "what else draws from it decides then, and is disturbed: generator=torch.Generator().manual_seed(seed)",
     change(SOURCE, "generator=None"),
     change(SOURCE, "generator=torch.Generator().manual_seed(seed + torch.randint(2**31, ()).item())")),
    ("all loaders have one generator", "a second loader reseeds it while the first still uses it: one for each loader",
     (change("def seeded_workers(", "SHARED = torch.Generator()\ndef seeded_workers("),
      change(SOURCE, "generator=SHARED.manual_seed(seed)"))),
    ("the loader's generator is not seeded with seed",
     "torch.Generator() has the same seed each time, whatever seed is: manual_seed(seed)",
     change(SOURCE, "generator=torch.Generator()")),
    ("the loader's generator has a random seed",
     "torch.Generator().seed() draws one, and returns it: manual_seed(seed)",
     (change(SOURCE, "generator=generator"), before("generator = torch.Generator()", "generator.seed()"))),
    ("seeds that differ in their upper bits alone give the same run", "pass all bits of seed to manual_seed",
     change(SOURCE, "generator=torch.Generator().manual_seed(seed % 2**16)")),
    ("the order comes from torch's global generator",
     "RandomSampler without a generator takes its seed there: the loader's shuffle=True hands it on",
     change("shuffle=True", f"{SAMPLER})")),
    ("your function seeds a global random generator", "with a seed inside, every call draws the same numbers",
     (change(SOURCE, "generator=None"), before("torch.manual_seed(seed)"))),
    ("a sample is drawn in the process",
     "dataset[0] draws from every generator, so the numbers drawn next are different", before("dataset[0]")),
)  # fmt: skip

# --- the loader ------------------------------------------------------------------------------------------
BANK.mistakes(
    ("the order is that of the dataset", "shuffle=True", change("shuffle=True", "shuffle=False")),
    ("the order is drawn once, and is that of every epoch",
     "a list of indices is one order for ever: shuffle=True draws anew",
     change("shuffle=True",
            "sampler=torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()")),
    ("an epoch draws some samples twice, and others not at all", "shuffle=True, or a RandomSampler without replacement",
     change("shuffle=True", f"{SAMPLER}, replacement=True, generator=torch.Generator().manual_seed(seed))")),
    ("the last batch is dropped", "every sample once: nothing is left out",
     change("shuffle=True", "shuffle=True, drop_last=True")),
    ("there are no workers", "num_workers=workers: without, the augmentations draw in the process itself",
     change("num_workers=workers", "num_workers=0")),
    ("there is one worker, however many are asked for", "num_workers=workers",
     change("num_workers=workers", "num_workers=1")),
    ("a batch has one sample", "batch_size", change("        batch_size,\n", "")),
    ("worker_init_fn is called at once, in the process",
     "pass the function, without calling it; get_worker_info() is None outside a worker",
     change("worker_init_fn=seed_rng", "worker_init_fn=seed_rng(0)")),
    ("worker_init_fn takes no argument", "it is called with the worker's number",
     change("def seed_rng(worker)", "def seed_rng()")),
    ("a list was returned", "return the loader: the caller iterates over it, epoch by epoch",
     (change(LOADER, "return list(DataLoader("), change("num_workers=workers", "num_workers=0"),
      change("manual_seed(seed),\n    )", "manual_seed(seed),\n    ))"))),
)  # fmt: skip
