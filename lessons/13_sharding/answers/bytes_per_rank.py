"""Answers to "bytes on each rank"."""

import math

from banks.bank import Bank
from banks.edits import change

BANK = Bank("bytes_per_rank")
KINDS, MINE = "((weights, 3), (gradients, 2), (state, 1))", "max(0, min(part, rows - rank * part))"
CUT = "mine if stage >= first else rows"


@BANK.right
def chunks_of_torch(shapes, ranks, stage, weights, gradients, state):
    import torch

    whole, own = sum(math.prod(shape) for shape in shapes), [0] * ranks
    for shape in shapes:
        for rank, part in enumerate(torch.empty(shape, device="meta").chunk(ranks)):
            own[rank] += part.numel()
    kinds = list(zip((weights, gradients, state), (3, 2, 1), strict=True))
    return [sum(n * (mine if stage >= first else whole) for n, first in kinds) for mine in own]


BANK.right(change("-(-rows // ranks)", "math.ceil(rows / ranks)"))
BANK.right(change(MINE, "len(range(rows)[rank * part : (rank + 1) * part])"))
BANK.mistakes(
    ("the stages cut the weights first, and the optimizer state last",
     "stage 1 cuts the optimizer state, which is largest and never gathered; stage 3 the weights, which must be "
     "gathered",
     change(KINDS, "((weights, 1), (gradients, 2), (state, 3))")),
    ("stage 2 cuts the weights, and the gradients only 3",
     "stage 2 cuts the gradients: each is needed where its state is; stage 3 cuts the weights",
     change(KINDS, "((weights, 2), (gradients, 3), (state, 1))")),
    ("each stage cuts what the one before it should", "stage 1 itself cuts the optimizer state: >=, not >",
     change(CUT, "mine if stage > first else rows")),
    ("a stage cuts only its own kind, not what earlier stages cut",
     "the stages add up: 2 cuts gradients and optimizer state", change(CUT, "mine if stage == first else rows")),
    ("every stage from 1 on cuts all three kinds", "16/N is stage 3; 1 and 2 leave the weights whole",
     change(CUT, "mine if stage else rows")),
    ("stage 3 leaves the weights whole, as 2 does",
     "stage 3 cuts the weights too, as fully_shard does",
     change(KINDS, "((weights, 9), (gradients, 2), (state, 1))")),
    ("stage 0 cuts the optimizer state", "stage 0 is DDP: each rank has everything",
     change(CUT, "mine if stage >= first or (first == 1) else rows")),
    ("stage 1 cuts the gradients too", "in stage 1 each rank keeps all gradients; stage 2 cuts them",
     change(KINDS, "((weights, 3), (gradients, 1), (state, 1))")),
    ("the optimizer state is counted twice",
     "state already includes both of Adam's moments: 8 bytes per element, not 4",
     change("(state, 1)", "(2 * state, 1)")),
    ("the bytes are 4 + 4 + 8, whatever the arguments",
     "weights, gradients and state are arguments: in the paper they are 2, 2 and 12",
     change(KINDS, "((4, 3), (4, 2), (8, 1))")),
    ("the rows that are left over are on no rank", "rows // ranks rounds down: 10 rows on 4 ranks would be 8",
     change("-(-rows // ranks)", "rows // ranks")),
    ("rows that are left over go to the first ranks, one each",
     "fully_shard splits like torch.chunk: parts of ceil(rows / ranks), the last one smaller; not like array_split",
     change(MINE, "rows // ranks + (rank < rows % ranks)")),
    ("the last rank has its part and all that is left over",
     "the parts are rounded up, so that the last is the smallest, not the largest",
     change(MINE, "rows // ranks if rank < ranks - 1 else rows - (ranks - 1) * (rows // ranks)")),
    ("tensors are cut by elements, not by rows",
     "FSDP1 cut a flat tensor; fully_shard cuts the first dimension, and a row stays whole",
     change("row = math.prod(rest)", "rows, row = rows * math.prod(rest), 1")),
    ("all tensors are cut together, as one long one",
     "fully_shard cuts each parameter by itself, so the rounding happens for each",
     change("for rows, *rest in shapes:", "for rows, *rest in [(sum(map(math.prod, shapes)),)]:")),
    ("all ranks have as much as rank 0", "the last rank may have fewer rows, or none: padding does not count",
     change("return held", "return [held[0]] * ranks")),
    ("a rank for which no row is left has a negative number of rows",
     "rows - rank * part is negative there: max(0, ...)",
     change(MINE, "min(part, rows - rank * part)")),
    ("a rank for which no row is left has one", "three rows on eight ranks: five ranks hold nothing of this tensor",
     change(MINE, "max(1, min(part, rows - rank * part))")),
    ("the rows are divided by the ranks, fractions and all", "/ makes floats, and no rank has two thirds of a row",
     change(MINE, "rows / ranks")),
    ("what is returned is a tuple", "return a list", change("return held", "return tuple(held)")),
    ("what is returned is one number, that of rank 0", "return one for each rank: they need not be equal",
     change("return held", "return held[0]")),
)  # fmt: skip
