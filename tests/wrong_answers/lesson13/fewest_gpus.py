"""Answers to "as few GPUs as do"."""

from ..bank import Bank
from ..edits import add, change

BANK = Bank("fewest_gpus")
FSDP, ZERO1 = "shard + 4 * 4 * unit + own", "8 * parameters + 8 * parameters / ranks + own"


@BANK.right
def all_that_fit(parameters, unit, activations, batch, memory, machine, most):
    state = {"ddp": (16, 0, 0), "zero1": (8, 8, 0), "fsdp": (0, 16, 16), "tensor": (0, 16, 0)}
    fit = [
        (ranks, way)
        for ranks in range(1, most + 1)
        for way, (kept, cut, units) in state.items()
        if (ranks <= machine if way == "tensor" else not batch % ranks)
        if (kept * ranks + cut) * parameters + (units * unit) * ranks + activations * batch <= memory * ranks
    ]
    return min(fit, key=lambda one: one[0], default=None)


BANK.mistakes(
    ("one GPU more than `most` is tried", "range(1, most + 1) ends with most",
     change("range(1, most + 1)", "range(1, most + 2)")),
    ("zero1 counts 4 bytes kept and 12 cut",
     "stage 1 cuts the optimizer state alone; weights and gradients, 8 bytes, stay whole",
     change(ZERO1, "4 * parameters + 12 * parameters / ranks + own"),
     change(ZERO1, "(2 + 2) * parameters + shard * 12 / 16 + own")),
    ("zero1 needs as much as ddp", "its 8 bytes of optimizer state are divided by the ranks",
     change(ZERO1, "16 * parameters + own")),
    ("ddp counts 12 bytes for each parameter", "the gradient has 4 bytes as well: 4 + 4 + 8",
     change('("ddp", equal, 16 * parameters + own)', '("ddp", equal, 12 * parameters + own)')),
    ("ddp divides its 16 bytes by the ranks", "DDP shares the work: each GPU has a whole copy",
     change('("ddp", equal, 16 * parameters + own)', '("ddp", equal, shard + own)')),
    ("fsdp has nothing whole", "it gathers a unit to compute with it: four times one unit, 4 bytes each",
     change(FSDP, "shard + own")),
    ("fsdp has fewer units whole than it needs",
     "the next one's weights come while this one computes, and a gradient and its copy wait to be sent: " "four times",
     change(FSDP, "shard + 4 * unit + own"), change(FSDP, "shard + 4 * 2 * unit + own"),
     change(FSDP, "shard + 4 * 3 * unit + own"), change(FSDP, "shard + 4 * 4 * unit / ranks + own")),
    ("fsdp has more units whole than it needs",
     "weights of two, the gradient of one and its copy: four times 4 bytes, and no more",
     change(FSDP, "shard + 5 * 4 * unit + own")),
    ("fsdp keeps all weights whole", "they are cut too, and whole unit by unit: that is in the four units",
     change(FSDP, "shard + 4 * parameters + 4 * 4 * unit + own")),
    ("tensor has units whole", "nothing is gathered: each rank computes with its part of the matrices",
     change('("tensor", ranks <= machine, shard + own)', '("tensor", ranks <= machine, shard + 4 * 4 * unit + own)')),
    ("tensor has the activations of the batch whole on each GPU", "they are cut by the ranks as well",
     change("ranks <= machine, shard + own", "ranks <= machine, shard + activations * batch")),
    ("the samples of a rank are rounded up, also under tensor",
     "tensor cuts each sample, so that nothing is left over: activations * batch / ranks",
     change("activations * batch / ranks", "activations * -(-batch // ranks)")),
    ("tensor is left out where its ranks do not divide a machine's GPUs",
     "three of eight are within one machine, too: ranks <= machine",
     change("ranks <= machine", "ranks <= machine and machine % ranks == 0")),
    ("activations are those of one sample, whatever its part of the batch", "a rank has batch / ranks samples",
     change("own = 16 * parameters / ranks, activations * batch / ranks",
     "own = 16 * parameters / ranks, activations")),
    ("each rank has the whole batch's activations",
     "batch samples are those of all ranks together: a rank has batch / ranks",
     change("activations * batch / ranks", "activations * batch")),
    ("the batch is cut where it does not divide", "three ways give each rank an equal part: batch % ranks == 0",
     change("equal = batch % ranks == 0", "equal = True"),
     change("equal = batch % ranks == 0", "equal = ranks <= batch")),
    ("tensor is left out where the batch does not divide", "every rank of tensor works on the whole batch",
     change('("tensor", ranks <= machine,', '("tensor", equal and ranks <= machine,')),
    ("tensor goes beyond one machine", "its exchanges stand in the way of the next kernel: ranks <= machine",
     change("ranks <= machine", "True")),
    ("tensor is used on a whole machine only", "it may use fewer of its GPUs: ranks <= machine",
     change("ranks <= machine", "ranks == machine")),
    ("a GPU that is just full is refused", "full to the last byte is allowed: <=",
     change("needed <= memory", "needed < memory")),
    ("a tenth of the memory is left free", "a good habit, and not what is asked: memory is what the ways may fill",
     change("needed <= memory", "needed <= 0.9 * memory")),
    ("an earlier way is taken on more GPUs", "the number of GPUs comes first: the outer loop goes over ranks",
     (change("return ranks, way\n    return None",
     "fits.append((ways.index((way, possible, needed)), ranks, way))\n    return min(fits)[1:] if fits " "else None"),
     add("fits = []", before="for ranks in range(1, most + 1):"))),
    ("of the ways that fit on as few GPUs the one with fewest bytes is taken",
     "the first that fits sends least: memory that is left is not worth an exchange",
     change("for way, possible, needed in ways:",
     "for way, possible, needed in sorted(ways, key=lambda one: one[2]):")),
    ("of the ways that fit on as few GPUs the last is taken", "the first that fits sends least",
     change("in ways:", "in reversed(ways):")),
    ("the largest number of GPUs is not tried", "range ends before its end: most + 1",
     change("range(1, most + 1)", "range(1, most)")),
    ("one GPU is not tried", "range(1, …): where the model fits on one, nothing is sent at all",
     change("range(1, most + 1)", "range(2, most + 1)")),
    ("only powers of two are tried", "any number of ranks may be rented that divides the batch",
     change("for ranks in range(1, most + 1):", "for ranks in [n for n in (1, 2, 4, 8, 16) if n <= most]:")),
    ("the tuple is the other way round", "(ranks, way), the number first",
     change("return ranks, way", "return way, ranks")),
    ("only the number of ranks is returned", "(ranks, way): which way is the other half of the decision",
     change("return ranks, way", "return ranks")),
    ("where nothing fits a pair is returned", "None itself: if the_answer is None",
     change("    return None", "    return None, None")),
    ("where nothing fits the largest number is returned",
     "None: who rents most GPUs for it gets an out-of-memory error on all of them",
     change("    return None", '    return most, "fsdp"')),
    ("fsdp and tensor count 12 bytes cut", "the gradient's 4 bytes are in the 16",
     change("shard, own = 16 * parameters / ranks", "shard, own = 12 * parameters / ranks")),
    ("tensor is left out where it takes all GPUs of a machine", "within one machine: <=, not <",
     change("ranks <= machine", "ranks < machine")),
)  # fmt: skip
