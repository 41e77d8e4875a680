"""Answers to "a prefetcher with a side stream": what waits for what, what arrives, and whose memory it is."""

import torch

from ..bank import Bank
from ..edits import add, change, drop, move, solution

BANK = Bank("prefetcher", "prefetch")
SOLUTION = BANK.solution
WAIT, RECORD, COPY = "main.wait_stream(side)", "t.record_stream(main)", "t.to(device, non_blocking=True)"
SIDE, MAIN = "torch.cuda.Stream(device)", "torch.cuda.current_stream(device)"
MARKS = "        for t in batch:\n            t.record_stream(main)\n"
AHEAD = "        coming, error = ahead()\n        yield batch"


def moved(batch, device):
    return tuple(t.to(device, non_blocking=True) for t in batch)


def load(source, side, device):
    """The next batch with its copy queued, or None at the end."""
    batch = next(source, None)
    if batch is None:
        return None
    with torch.cuda.stream(side):
        return moved(batch, device)


# --- right ---------------------------------------------------------------------------------------------
BANK.right(
    (
        change("return tuple(", "return (*("),
        change("for t in batch), None\n", "for t in batch), side.record_event()), None\n"),
        change(
            "main, batch = torch.cuda.current_stream(device), coming", "main, (*batch, there) = " + MAIN + ", coming"
        ),
        change("main.wait_stream(side)", "main.wait_event(there)"),
    )
)
BANK.right((change(MARKS, ""), change("        with torch.cuda.stream(side):",
           f'        side.wait_stream({MAIN})\n        with torch.cuda.stream(side):')))  # fmt: skip
BANK.right((change(f'side, source = {SIDE}, iter(batches)', f'sides, source = [{SIDE}, {SIDE}], iter(batches)'),
           change("with torch.cuda.stream(side):", "sides.reverse()\n        with torch.cuda.stream(sides[0]):"),
           change(WAIT, "main.wait_stream(sides[0])")))  # fmt: skip
BANK.right(change(SIDE, "torch.cuda.Stream(device, priority=-1)"))
BANK.right(change("return tuple(t.to(device, non_blocking=True) for t in batch)",
           "return [t.cuda(device, non_blocking=True) for t in batch]"))  # fmt: skip
BANK.right(
    (
        change(MARKS, ""),
        change(
            AHEAD,
            "        coming, error = ahead()\n        [t.record_stream(main) for t in batch]\n        yield batch",
        ),
    )
)
BANK.right(add("del batch, main", after="yield batch"))


class Prefetcher:
    """The same as an iterator."""

    def __init__(self, batches, device):
        self.source, self.device, self.side, self.error = iter(batches), device, torch.cuda.Stream(device), None
        self.ahead()

    def ahead(self):
        try:
            self.coming = load(self.source, self.side, self.device)
        except Exception as error:
            self.coming, self.error = None, error

    def __iter__(self):
        return self

    def __next__(self):
        batch = self.coming
        if batch is None:
            error, self.error = self.error, None
            raise error or StopIteration
        main = torch.cuda.current_stream(self.device)
        main.wait_stream(self.side)
        for t in batch:
            t.record_stream(main)
        self.ahead()
        return batch


@BANK.right
def an_iterator(batches, device):
    return Prefetcher(batches, device)


BANK.right(change("return tuple(t.to(device, non_blocking=True) for t in batch)",
           "out = tuple(torch.empty_like(t, device=device) for t in batch)\n            [to.copy_(t, "
           "non_blocking=True) for to, t in zip(out, batch, strict=True)]\n            return out"))  # fmt: skip


def buffers(batches, device, *, count, waits):
    """Each batch is copied into one of `count` pairs of buffers, in turn."""
    side, source, kept, turn = torch.cuda.Stream(device), iter(batches), [], 0

    def ahead():
        nonlocal turn
        try:
            batch = next(source)
        except StopIteration:
            return None, None
        except Exception as error:
            return None, error
        if waits:
            side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            if len(kept) < count:
                kept.append([torch.empty(2 * len(t), *t.shape[1:], dtype=t.dtype, device=device) for t in batch])
            out = [to[: len(t)] for to, t in zip(kept[turn % count], batch, strict=True)]
            for to, t in zip(out, batch, strict=True):
                to.copy_(t, non_blocking=True)
        turn += 1
        return out, None

    coming, error = ahead()
    while coming is not None:
        main, batch = torch.cuda.current_stream(device), coming
        main.wait_stream(side)
        for t in batch:
            t.record_stream(main)
        coming, error = ahead()
        yield batch
    if error is not None:
        raise error


@BANK.right
def two_buffers_in_turn_and_a_wait(batches, device):
    return buffers(batches, device, count=2, waits=True)


# --- wrong: streams ------------------------------------------------------------------------------------

NOTHING = "nothing overlaps: the copies stand in the caller's own stream"
BANK.mistakes(
    (NOTHING,
     "non_blocking frees the host only; a stream works in order: put the copies under with " "torch.cuda.stream(side)",
     change("with torch.cuda.stream(side):", "if True:")),
)  # fmt: skip
EARLY = "a computation may start before its batch has arrived"
BANK.mistakes(
    (EARLY, "two streams do not wait for each other by themselves: main.wait_stream(side) before the yield", drop(WAIT),
     change(WAIT, "side.wait_stream(main)")),
    ("a computation waits for the batch after its own",
     "wait_stream waits for all that the side stream has been given by then: call it before the next " "copy is queued",
     move(WAIT, before="yield batch")),
    ("the host is told to wait",
     "synchronize holds the host; main.wait_stream(side) lets the GPU's stream wait, and the host goes on",
     change(WAIT, "side.synchronize()"), change(WAIT, "torch.cuda.synchronize(device)")),
    ("the host waits for an event",
     "event.synchronize() holds the host; main.wait_event(event) lets the GPU's stream wait",
     change(WAIT, "side.record_event().synchronize()")),
    ("the host asks until the copy is done", "that is a wait, too: main.wait_stream(side) leaves it to the GPU",
     change(WAIT, "while not side.query():\n            pass")),
    ("the host waits for a copy: it is not asked for without blocking",
     "a default .to(device) waits, in any stream: non_blocking=True", change(COPY, "t.to(device)")),
    ("the host waits for a copy from ordinary memory", "a clone or a contiguous copy of a pinned tensor is not pinned",
     change(COPY, "t.clone().to(device, non_blocking=True)")),
)  # fmt: skip
INSIDE = "the caller computes in the side stream"
BANK.mistakes(
    (INSIDE, "the yield stands inside `with torch.cuda.stream(side)`: only the copies belong there",
     change("yield batch", "with torch.cuda.stream(side):\n            yield batch")),
    ("the side stream stays the current one",
     "torch.cuda.set_stream is not undone by itself: use the stream as a context manager",
     change("with torch.cuda.stream(side):", "torch.cuda.set_stream(side)\n        if True:")),
    ("the next copy is queued only when the next batch is asked for",
     "take the next batch and queue its copy first, then yield the present one",
     change(AHEAD, "        yield batch\n        del batch\n        coming, error = ahead()")),
    ("nothing overlaps: the next copy starts when the computation has ended",
     "the side stream waits for the batch in use; it may wait for the one before at most",
     change(AHEAD, f'        yield batch\n        side.wait_stream({MAIN})\n        coming, error = ahead()')),
)  # fmt: skip


@BANK.wrong(NOTHING)
def no_stream_at_all(batches, device):
    for batch in batches:
        yield moved(batch, device)


@BANK.wrong(
    "all batches are taken before the first is yielded", "list(batches) takes all of them, and data sets do not fit"
)
def copies_all_first(batches, device):
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        there = [moved(batch, device) for batch in batches]
    torch.cuda.current_stream(device).wait_stream(side)
    yield from there


BANK.mistakes(
    ("all batches are taken before the first is yielded", "", change("iter(batches)", "iter(list(batches))")),
    ("all batches are taken before the first is yielded", "", change("iter(batches)", "iter([*batches])")),
)  # fmt: skip


@BANK.wrong("batches are taken two ahead", "each batch ahead costs its memory on the GPU; one is enough to hide a copy")
def two_ahead(batches, device):
    side, source, errors = torch.cuda.Stream(device), iter(batches), []

    def take():
        try:
            return load(source, side, device)
        except Exception as error:
            errors.append(error)
            return None

    coming = [take(), take()]
    while coming[0] is not None:
        torch.cuda.current_stream(device).wait_stream(side)
        batch = coming.pop(0)
        for t in batch:
            t.record_stream(torch.cuda.current_stream(device))
        coming.append(None if errors else take())
        yield batch
    if errors:
        raise errors[0]


BANK.mistakes(
    ("the default stream waits for the copies, also where the caller's is another",
     "torch.cuda.current_stream(device) is the caller's",
     change(WAIT, "torch.cuda.default_stream(device).wait_stream(side)")),
    ("the stream of the current GPU waits for the copies, also where `device` is another",
     "torch.cuda.current_stream() without an argument is that of the current GPU: pass device",
     change(MAIN, "torch.cuda.current_stream()")),
    ("a caller that changes its stream may compute before its batch has arrived",
     "torch.cuda.current_stream(device) is read once, before the loop: ask anew for each batch",
     (change(f'main, batch = {MAIN}, coming', "batch = coming"), add(f'main = {MAIN}', before="while coming"))),
    ("the caller is put back into its earlier stream",
     "the stream that was current at the beginning is made current again: use `with` around the copies only",
     (add(f'first = {MAIN}', before="while coming"), add("torch.cuda.set_stream(first)", before="yield batch"))),
    ("another GPU is current for the caller",
     "torch.cuda.set_device is not undone by itself: torch.cuda.Stream(device) and .to(device) need no " "current GPU",
     add("torch.cuda.set_device(device if device.index is not None else torch.cuda.current_device())",
     before="while coming")),
)  # fmt: skip

# --- wrong: memory -------------------------------------------------------------------------------------
BANK.mistakes(
    ("the memory of a batch is given to the next copy while it is still read",
     "the allocator knows the side stream only: it gives the block to the next copy as soon as Python "
     "drops the batch. tensor.record_stream(torch.cuda.current_stream()) tells it", change(MARKS, ""),
     change(RECORD, "t.record_stream(side)"),
     (change(MARKS, ""),
     change("        yield batch", "        yield batch\n        [t.record_stream(side) for t in batch]")),
     (change(f'side, source = {SIDE}, iter(batches)', f'sides, source = [{SIDE}, {SIDE}], iter(batches)'),
     change("with torch.cuda.stream(side):", "sides.reverse()\n        with torch.cuda.stream(sides[0]):"),
     change(WAIT, "main.wait_stream(sides[0])"), change(MARKS, ""))),
    ("the memory of a batch is given to the next copy while it is still read",
     "the targets are a tensor as well: t.record_stream(main) for each",
     change(MARKS, "        batch[0].record_stream(main)\n")),
    ("the memory of a batch is given to the next copy while it is still read",
     "the inputs are a tensor as well: t.record_stream(main) for each",
     change(MARKS, "        batch[1].record_stream(main)\n")),
    ("the allocator is told of the default stream, also where the caller's is another",
     "t.record_stream(main), with the stream that is current for the caller",
     change(RECORD, "t.record_stream(torch.cuda.default_stream(device))")),
)  # fmt: skip
FIRST = change("    coming, error = ahead()\n    while", f"    first = {MAIN}\n    coming, error = ahead()\n    while")
BANK.mistakes(
    ("the allocator is told of the stream that was current at the beginning, also where the caller has " "changed it",
     "t.record_stream(main), with the stream that is current when the batch is yielded: ask for it anew "
     "for each batch", (FIRST, change(RECORD, "t.record_stream(first)"))),
    ("the side stream waits for the stream that was current at the beginning, also where the caller has " "changed it",
     "a copy into memory that was a batch's waits for the stream in which that batch is read: ask for "
     "it anew for each batch, or leave it to the allocator with record_stream",
     (FIRST, change(MARKS, ""), change("        with torch.cuda.stream(side):",
     "        side.wait_stream(first)\n        with torch.cuda.stream(side):"))),
)  # fmt: skip


@BANK.wrong(
    "a buffer is written again while it is still read",
    "record_stream speaks to the allocator, and a buffer of one's own is never freed: side.wait_stream(main) before "
    "the copy that goes into it",
)
def two_buffers_in_turn(batches, device):
    return buffers(batches, device, count=2, waits=False)


BANK.mistakes(
    ("all batches are kept on the GPU", "they are in a list: safe, and at the end the whole data set is on the GPU",
     (add("kept = []", before="while coming"), add("kept.append(batch)", before="yield batch"))),
    ("a batch stays on the GPU when all is done",
     "something that lives longer than the loop refers to it: a global, an attribute, a default argument",
     add("prefetch.last = batch", before="yield batch")),
)  # fmt: skip

# --- wrong: what arrives -------------------------------------------------------------------------------
BANK.mistakes(
    ("the last batch never arrives",
     "when the source ends, one batch is still on its way: it has to be yielded after the loop",
     change(AHEAD, "        coming, error = ahead()\n        if coming is not None or error is not None:\n            "
     "yield batch")),
    ("a batch arrives twice", "the same variable is yielded before it holds the next batch",
     add("if coming is not None: yield coming", before="while coming")),
    ("the first batch is left out", "the batch that is yielded and the one that is copied next have changed places",
     change("        yield batch", "        if coming is not None:\n            yield coming")),
    ("the targets stay on the CPU", "every tensor of the batch is copied",
     (change("tuple(t.to(device, non_blocking=True) for t in batch)",
     "(batch[0].to(device, non_blocking=True), batch[1])"), change(MARKS, "        batch[0].record_stream(main)\n"))),
    ("the inputs are yielded without the targets", "yield (inputs, targets)", change("yield batch", "yield batch[0]")),
    ("the batch is on the current GPU, also where `device` is another",
     ".cuda() without an argument means the current GPU: .to(device)",
     change(COPY, "t.to('cuda:0', non_blocking=True)")),
    ("a batch arrives with other contents", "the batch is the caller's: neither dtype nor values are changed",
     change("yield batch", "yield batch[0].half(), batch[1]")),
    ("a short batch is left out", "the last batch may have fewer rows: it is a batch like all others",
     add("if batch[0].shape[0] < 10000: continue", before="yield batch")),
    ("an empty source gives a batch", "where there is no first batch nothing is yielded",
     add("if coming is None and error is None: yield ()", before="while coming")),
)  # fmt: skip

# --- wrong: ends ---------------------------------------------------------------------------------------


@BANK.wrong("the end of the source is not caught", "in a generator StopIteration has to be caught, and means the end")
def next_without_an_end(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    while True:
        batch = next(source)
        with torch.cuda.stream(side):
            there = moved(batch, device)
        torch.cuda.current_stream(device).wait_stream(side)
        yield there


BANK.mistakes(
    ("an exception of the source is swallowed",
     "except Exception takes a fault for the end of the data: only StopIteration is that",
     change("except StopIteration:", "except Exception:"), change("raise error", "pass")),
    ("an exception without a text is swallowed",
     "ask whether there is one, error is not None: what it says does not matter",
     change("if error is not None:", "if error is not None and str(error):")),
    ("an exception comes too early: a good batch before it is lost",
     "the source fails while the batch ahead is taken: keep the exception, yield what is there, then raise",
     change("return None, error", "raise")),
    ("another exception than the source's reaches the caller", "raise the exception that was kept, itself",
     change("raise error", "raise type(error)(*error.args)")),
)  # fmt: skip


@BANK.wrong("batches are taken by their numbers", "batches is any iterable: take its elements with iter() and next()")
def indexes(batches, device):
    return (moved(batches[i], device) for i in range(len(batches)))


@BANK.wrong("batches is taken for an iterator", "next() wants an iterator: iter(batches) makes one of any iterable")
def next_without_iter(batches, device):
    return solution(3, "prefetch", change("iter(batches)", "batches"))(batches, device)


@BANK.wrong("there is nothing to iterate over", "the function has to give something to iterate over: a generator has a "
            "yield in it")  # fmt: skip
def forgets_to_yield(batches, device):
    for _ in SOLUTION(batches, device):
        pass
