"""Answers to "as few GPUs as do" that are no formula for it."""

from banks.bank import Bank
from banks.edits import change

BANK = Bank("fewest_gpus")


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


BANK.right(change("return ranks, way", "return [__import__('numpy').int64(ranks), way]"))
NO_PAIR = "what is returned is neither (ranks, way) nor None"
BANK.mistakes(
    (NO_PAIR, "the number first", change("return ranks, way", "return way, ranks")),
    (NO_PAIR, "the other half of the decision", change("return ranks, way", "return ranks")),
    (NO_PAIR, "if nothing fits, return None itself", change("    return None", "    return None, None")),
    ("the choice is wrong", "", change("* unit + own", "* unit + 2 * own")),
    ("a way is returned though none fits", "", change("    return None", '    return most + 1, "fsdp"')),
)  # fmt: skip
