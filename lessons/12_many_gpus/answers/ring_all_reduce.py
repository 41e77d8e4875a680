"""Answers to "a ring of your own": an all-reduce out of sends and receives, on real ranks."""

import torch
import torch.distributed as dist
from banks.bank import Bank
from banks.edits import change, drop, swap

BANK = Bank("ring_all_reduce")
ENDS = "ends = [flat.numel() * i // ranks for i in range(ranks + 1)]"
ISEND = "sent = dist.isend(going, (rank + 1) % ranks)"


@BANK.right
def in_batches(x):
    """Two phases, pairs of operations, pieces of which the first are longer, the other way round."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = x.view(-1).tensor_split(ranks)
    for bring in (torch.Tensor.add_, torch.Tensor.copy_):
        for hop in range(ranks - 1):
            going, coming = (pieces[(rank + hop + i - (bring is torch.Tensor.copy_)) % ranks] for i in (0, 1))
            inbox = torch.zeros_like(coming)
            both = [
                dist.P2POp(dist.isend, going, (rank - 1) % ranks),
                dist.P2POp(dist.irecv, inbox, (rank + 1) % ranks),
            ]
            for request in dist.batch_isend_irecv(both):
                request.wait()
            bring(coming, inbox)


def whole_tensors(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    going, inbox = x.clone(), torch.empty_like(x)
    for _ in range(ranks - 1):
        sent = dist.isend(going, (rank + 1) % ranks)
        dist.recv(inbox, (rank - 1) % ranks)
        sent.wait()
        x += inbox
        going.copy_(inbox)


def over_rank_0(x):
    rank, others = dist.get_rank(), range(1, dist.get_world_size())
    if rank:
        dist.send(x, 0)
        dist.recv(x, 0)
        return
    for other in others:
        inbox = torch.empty_like(x)
        dist.recv(inbox, other)
        x += inbox
    for other in others:
        dist.send(x, other)


def pieces_to_each_other(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own, inbox = x.clone(), torch.empty_like(x)
    for hop in range(1, ranks):
        for going, coming in zip(*(t.view(-1).tensor_split(ranks) for t in (own, inbox)), strict=True):
            sent = dist.isend(going, (rank + hop) % ranks)
            dist.recv(coming, (rank - hop) % ranks)
            sent.wait()
        x += inbox


BANK.right(change("coming += inbox", "torch.add(coming, inbox, out=coming)"))
BANK.mistakes(
    ("the sums are not brought to all ranks",
     "after N − 1 hops each rank has one complete piece; N − 1 more hops pass the pieces on",
     change("range(2 * (ranks - 1))", "range(ranks - 1)")),
    ("a hop is missing at the end", "N − 1 hops add up, and N − 1 pass the sums on: 2(N − 1) in all",
     change("range(2 * (ranks - 1))", "range(2 * (ranks - 1) - 1)")),
    ("the second round adds, too", "from hop N − 1 on the received piece is complete: copy it over your own",
     change("if hop < ranks - 1:", "if hop < ranks:")),
    ("each rank sends its own piece in every hop",
     "send on in the next hop what you received in the last: piece (rank − hop) % N",
     change("pieces[(rank - hop) % ranks]", "pieces[rank]")),
    ("the received piece is added to the piece that was sent",
     "the received piece is the one before the piece that is sent: (rank − hop − 1) % N",
     change("pieces[(rank - hop - 1) % ranks]", "pieces[(rank - hop) % ranks]")),
    ("the elements that are left when all pieces are equal are not summed",
     "numel // N rounds down; the ends numel * i // N do not",
     change(ENDS, "ends = [flat.numel() // ranks * i for i in range(ranks + 1)]")),
    ("if there are fewer elements than ranks, they are not summed",
     "send an empty piece too, or skip it on both sides",
     change("flat = x.view(-1)", "flat = x.view(-1)\n    if flat.numel() < ranks:\n        return")),
    ("pieces of numel / N, rounded up, are fewer than N",
     "chunk() may give fewer pieces than ranks; tensor_split gives N",
     change("pieces = [flat[ends[i] : ends[i + 1]] for i in range(ranks)]", "pieces = flat.chunk(ranks)")),
    ("received pieces are stored in float32", "torch.empty(n) has the default dtype: use torch.empty_like",
     (change("torch.empty_like(coming)", "torch.empty(coming.shape)"),
     change("dist.isend(going,", "dist.isend(going.float(),"),
     change("coming += inbox", "coming += inbox.to(coming.dtype)"))),
    ("received pieces are stored in float64",
     "float64 keeps 53 bits, int64 has 63: use torch.empty_like, which keeps x's dtype",
     (change("torch.empty_like(coming)", "torch.empty_like(coming, dtype=torch.float64)"),
     change("dist.isend(going,", "dist.isend(going.double(),"),
     change("coming += inbox", "coming += inbox.to(coming.dtype)"))),
    ("received pieces are stored in int64 or float32, whatever x is",
     "there are others, such as float64: torch.empty_like keeps the dtype",
     change("torch.empty_like(coming)",
     "torch.empty(coming.shape, dtype=torch.float32 if x.is_floating_point() else torch.int64)")),
    ("a tensor of shape () is sliced", "it has no dimension; view(-1) flattens any tensor",
     change("flat = x.view(-1)", "flat = x[:].view(-1)")),
    ("the code needs at least one element", "then all pieces are empty, and can still be sent",
     change("flat = x.view(-1)", "flat = x.view(-1)\n    flat[0]")),
    ("a barrier is called", "use only sends and receives; they wait for each other anyway",
     change("flat = x.view(-1)", "flat = x.view(-1)\n    dist.monitored_barrier()")),
    ("the sum is in another tensor, and x is unchanged",
     "flatten() and reshape() may share memory or not, clone() never does: view(-1) shares it",
     change("flat = x.view(-1)", "flat = x.clone().view(-1)")),
    ("all ranks wait in send",
     "send returns only when the other rank receives, but that is also in send: isend, recv, then wait()",
     (change(ISEND, "dist.send(going, (rank + 1) % ranks)"), drop("sent.wait()"))),
    ("all ranks wait in recv", "no rank has sent yet: isend before recv", swap("sent = dist.isend", "dist.recv(inbox")),
    ("the collective that you are to build is called", "use only sends and receives: dist.isend and dist.recv",
     change("flat = x.view(-1)", "return dist.all_reduce(x)\n    flat = x.view(-1)")),
    ("one rank adds all up, and sends the sum to all others", "its link carries N − 1 times as much as the others'",
     over_rank_0),
    ("the whole tensor goes around", "in each hop a ring sends an Nth of it, and adds each piece up once",
     whole_tensors),
    ("each rank sends all its pieces to each other", "add a piece up along the ring, and pass the sum on",
     pieces_to_each_other),
)  # fmt: skip
