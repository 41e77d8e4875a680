"""Answers to "a prefetcher with a side stream": what waits for what, what arrives, and whose memory it is."""

import torch

from gpulab.check.lesson03.common import SECTIONS

from ..bank import Bank

BANK = Bank("prefetcher", SECTIONS)


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


@BANK.right
def keeps_the_exception(batches, device):
    side, source, error = torch.cuda.Stream(device), iter(batches), None

    def ahead():
        nonlocal error
        try:
            return load(source, side, device)
        except Exception as e:
            error = e

    coming = ahead()
    while coming is not None:
        main, batch = torch.cuda.current_stream(device), coming
        main.wait_stream(side)
        for t in batch:
            t.record_stream(main)
        coming = ahead()
        yield batch
    if error is not None:
        raise error


@BANK.right
def with_events(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)

    def ahead():
        try:
            batch = load(source, side, device)
        except Exception as e:
            return None, None, e
        return batch, side.record_event(), None

    batch, there, error = ahead()
    while batch is not None:
        following = ahead()
        main = torch.cuda.current_stream(device)
        main.wait_event(there)
        for t in batch:
            t.record_stream(main)
        yield batch
        batch, there, error = following
    if error is not None:
        raise error


@BANK.right
def orders_the_copies_instead_of_recording(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)

    def ahead():
        side.wait_stream(torch.cuda.current_stream(device))
        try:
            return load(source, side, device), None
        except Exception as e:
            return None, e

    batch, error = ahead()
    while batch is not None:
        torch.cuda.current_stream(device).wait_stream(side)
        following, error = ahead()
        yield batch
        batch = following
    if error is not None:
        raise error


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


@BANK.right
def into_tensors_made_before(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    coming, error = None, None

    def ahead():
        try:
            batch = next(source)
        except StopIteration:
            return None, None
        except Exception as e:
            return None, e
        with torch.cuda.stream(side):
            out = [torch.empty_like(t, device=device) for t in batch]
            for to, t in zip(out, batch, strict=True):
                to.copy_(t, non_blocking=True)
        return out, None

    coming, error = ahead()
    while coming is not None:
        torch.cuda.current_stream().wait_stream(side)
        batch = coming
        [t.record_stream(torch.cuda.current_stream()) for t in batch]
        coming, error = ahead()
        yield tuple(batch)
        del batch
    if error:
        raise error


# --- wrong: streams ------------------------------------------------------------------------------------


def loop(batches, device, *, side=None, before=None, between=None, record=None, ahead=None, inside=False):
    """The right loop, with one part of it replaced."""
    side, source, errors = side or torch.cuda.Stream(device), iter(batches), []

    def take():
        try:
            return (ahead or load)(source, side, device)
        except Exception as e:
            errors.append(e)
            return None

    def mark(batch, main):
        for t in batch:
            t.record_stream(main)

    coming = take()
    while coming is not None:
        main, batch = torch.cuda.current_stream(device), coming
        (before or (lambda main, side: main.wait_stream(side)))(main, side)
        (record or mark)(batch, main)
        coming = take()
        (between or (lambda main, side: None))(main, side)
        if inside:
            with torch.cuda.stream(side):
                yield batch
        else:
            yield batch
    if errors:
        raise errors[0]


def nothing(*args):
    pass


@BANK.wrong("nothing overlaps: the copies stand in the caller's own stream", "a stream works in order")
def the_same_stream(batches, device):
    return loop(
        batches,
        device,
        side=torch.cuda.current_stream(device),
        ahead=lambda source, side, device: plain(source, device),
    )


def plain(source, device):
    batch = next(source, None)
    return None if batch is None else moved(batch, device)


@BANK.wrong("a computation may start before its batch has arrived", "main.wait_stream(side) before the yield")
def waits_for_nothing(batches, device):
    return loop(batches, device, before=nothing)


@BANK.wrong(
    "a computation may start before its batch has arrived",
    "main.wait_stream(side) before the yield",
    same_as="waits_for_nothing",
)
def the_side_waits_for_the_main(batches, device):
    return loop(batches, device, before=lambda main, side: side.wait_stream(main))


@BANK.wrong("a computation waits for the batch after its own", "before the next copy is queued there")
def waits_for_too_much(batches, device):
    return loop(batches, device, before=nothing, between=lambda main, side: main.wait_stream(side))


@BANK.wrong("the host is told to wait", "lets the GPU's stream wait")
def synchronizes_the_host(batches, device):
    return loop(batches, device, before=lambda main, side: side.synchronize())


@BANK.wrong("the host waits for a copy", "a default .to(device) waits")
def default_copies(batches, device):
    def ahead(source, side, device):
        batch = next(source, None)
        with torch.cuda.stream(side):
            return None if batch is None else tuple(t.to(device) for t in batch)

    return loop(batches, device, ahead=ahead)


@BANK.wrong("the host waits for a copy", "from ordinary memory")
def clones(batches, device):
    def ahead(source, side, device):
        batch = next(source, None)
        with torch.cuda.stream(side):
            return None if batch is None else moved([t.clone() for t in batch], device)

    return loop(batches, device, ahead=ahead)


@BANK.wrong("the caller computes in the side stream", "only the copies belong there")
def yields_inside(batches, device):
    return loop(batches, device, inside=True)


@BANK.wrong("the caller computes in the side stream", "only the copies belong there", same_as="yields_inside")
def sets_the_stream(batches, device):
    def ahead(source, side, device):
        batch = next(source, None)
        torch.cuda.set_stream(side)
        return None if batch is None else moved(batch, device)

    return loop(batches, device, ahead=ahead)


@BANK.wrong("the next copy is queued only when the next batch is asked for", "queue its copy first")
def copies_on_demand(batches, device):
    side = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(side):
            there = moved(batch, device)
        main = torch.cuda.current_stream(device)
        main.wait_stream(side)
        for t in there:
            t.record_stream(main)
        yield there


@BANK.wrong("nothing overlaps: the next copy starts when the computation has ended", "for the one before at most")
def the_side_waits_for_the_batch_in_use(batches, device):
    side = torch.cuda.Stream(device)
    for batch in batches:
        main = torch.cuda.current_stream(device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            there = moved(batch, device)
        main.wait_stream(side)
        yield there


@BANK.wrong("nothing overlaps: the copies stand in the caller's own stream", "a stream works in order",
            same_as="the_same_stream")  # fmt: skip
def no_stream_at_all(batches, device):
    for batch in batches:
        yield moved(batch, device)


@BANK.wrong("batches are taken further ahead than one", "before the first is yielded")
def copies_all_first(batches, device):
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        there = [moved(batch, device) for batch in batches]
    torch.cuda.current_stream(device).wait_stream(side)
    yield from there


@BANK.wrong("batches are taken further ahead than one", "one is enough")
def two_ahead(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    coming = [load(source, side, device), load(source, side, device)]
    while coming[0] is not None:
        torch.cuda.current_stream(device).wait_stream(side)
        batch = coming.pop(0)
        for t in batch:
            t.record_stream(torch.cuda.current_stream(device))
        coming.append(load(source, side, device))
        yield batch


@BANK.wrong("a computation may start before its batch has arrived", also="", same_as="waits_for_nothing",
            likely="main.wait_stream(side) before the yield")  # fmt: skip
def waits_in_the_first_stream(batches, device):
    main = torch.cuda.default_stream(device)
    return loop(batches, device, before=lambda _, side: main.wait_stream(side), record=lambda batch, _: [
        t.record_stream(torch.cuda.current_stream(device)) for t in batch])  # fmt: skip


@BANK.wrong("a caller that changes its stream may compute before its batch has arrived", "ask anew for each batch")
def asks_for_the_stream_once(batches, device):
    main = torch.cuda.current_stream(device)
    return loop(batches, device, before=lambda _, side: main.wait_stream(side), record=lambda batch, _: [
        t.record_stream(main) for t in batch])  # fmt: skip


@BANK.wrong("the caller is put back into its earlier stream", "around the copies only")
def sets_the_first_stream_again(batches, device):
    main = torch.cuda.current_stream(device)

    def ahead(source, side, device):
        batch = next(source, None)
        torch.cuda.set_stream(side)
        try:
            return None if batch is None else moved(batch, device)
        finally:
            torch.cuda.set_stream(main)

    return loop(batches, device, ahead=ahead)


# --- wrong: memory -------------------------------------------------------------------------------------


@BANK.wrong("the memory of a batch may be overwritten while it is still read", "tells it")
def records_nothing(batches, device):
    return loop(batches, device, record=nothing)


@BANK.wrong("the memory of a batch may be overwritten while it is still read", "the targets are a tensor as well")
def records_the_inputs(batches, device):
    return loop(batches, device, record=lambda batch, main: batch[0].record_stream(main))


@BANK.wrong("the memory of a batch may be overwritten while it is still read", "tells it", same_as="records_nothing")
def records_the_side_stream(batches, device):
    side = torch.cuda.Stream(device)
    return loop(batches, device, side=side, record=lambda batch, main: [t.record_stream(side) for t in batch])


@BANK.wrong("batches stay on the GPU long after they were used", "the whole data set")
def keeps_all_of_them(batches, device):
    kept = []
    return loop(batches, device, record=lambda batch, main: kept.append(batch))


# --- wrong: what arrives -------------------------------------------------------------------------------


@BANK.wrong("the last batch never arrives", "yielded after the loop")
def loses_the_last(batches, device):
    side, coming = torch.cuda.Stream(device), None
    for batch in batches:
        with torch.cuda.stream(side):
            following = moved(batch, device)
        if coming is not None:
            yield coming
        torch.cuda.current_stream(device).wait_stream(side)
        coming = following


@BANK.wrong("a batch arrives twice", "before it holds the next batch")
def yields_the_first_twice(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    coming = load(source, side, device)
    if coming is not None:
        yield coming
    while coming is not None:
        torch.cuda.current_stream(device).wait_stream(side)
        batch, coming = coming, load(source, side, device)
        yield batch


@BANK.wrong("the batches arrive in another order, or one is left out", "have changed places")
def yields_the_next(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    coming = load(source, side, device)
    while coming is not None:
        torch.cuda.current_stream(device).wait_stream(side)
        coming = load(source, side, device)
        if coming is not None:
            yield coming


@BANK.wrong("what is yielded is not a batch on the GPU", "every tensor of the batch is copied")
def moves_the_inputs(batches, device):
    def ahead(source, side, device):
        batch = next(source, None)
        with torch.cuda.stream(side):
            return None if batch is None else (batch[0].to(device, non_blocking=True), batch[1])

    return loop(batches, device, ahead=ahead, record=lambda batch, main: batch[0].record_stream(main))


@BANK.wrong("what is yielded is not a batch on the GPU")
def yields_the_inputs(batches, device):
    for batch in loop(batches, device):
        yield batch[0]


@BANK.wrong("a batch arrives with other contents")
def converts(batches, device):
    for x, y in loop(batches, device):
        yield x.half(), y


# --- wrong: ends ---------------------------------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "has to be caught")
def next_without_an_end(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    while True:
        batch = next(source)
        with torch.cuda.stream(side):
            there = moved(batch, device)
        torch.cuda.current_stream(device).wait_stream(side)
        yield there


@BANK.wrong("an exception of the source is swallowed", "only StopIteration is that")
def swallows(batches, device):
    def ahead(source, side, device):
        try:
            return load(source, side, device)
        except Exception:
            return None

    return loop(batches, device, ahead=ahead)


@BANK.wrong("an exception comes too early: a good batch before it is lost", "keep the exception")
def raises_early(batches, device):
    side, source = torch.cuda.Stream(device), iter(batches)
    coming = load(source, side, device)
    while coming is not None:
        main, batch = torch.cuda.current_stream(device), coming
        main.wait_stream(side)
        for t in batch:
            t.record_stream(main)
        coming = load(source, side, device)
        yield batch


@BANK.wrong("your function raised TypeError", "iter() and next()")
def indexes(batches, device):
    return (moved(batches[i], device) for i in range(len(batches)))


@BANK.wrong("your function raised TypeError", "a generator has a yield in it")
def forgets_to_yield(batches, device):
    for _ in loop(batches, device):
        pass
