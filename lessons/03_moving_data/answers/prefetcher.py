"""Answers to "a prefetcher with a side stream": what waits for what, what arrives, and whose memory it is."""

from banks.bank import Bank
from banks.edits import add, change, drop, move

BANK = Bank("prefetcher", "prefetch")
WAIT, RECORD, COPY = "main.wait_stream(side)", "t.record_stream(main)", "t.to(device, non_blocking=True)"
SIDE, MAIN, SWITCH = "torch.cuda.Stream(device)", "torch.cuda.current_stream(device)", "with torch.cuda.stream(side):"
ALL, LOOP, YIELD = f"tuple({COPY} for t in batch)", "while coming is not None", "yield batch"
NEXT = f"coming, error = ahead()\n        {YIELD}"
UNMARKED = change("        for t in batch:\n            t.record_stream(main)\n", "")
FIRST = change("    coming, error = ahead()\n    while", f"    first = {MAIN}\n    coming, error = ahead()\n    while")
TURNS = (
    change(f"side, source = {SIDE}, iter(batches)", f"sides, source = [{SIDE}, {SIDE}], iter(batches)"),
    change(SWITCH, "sides.reverse()\n        with torch.cuda.stream(sides[0]):"),
    change(WAIT, "main.wait_stream(sides[0])"),
)
PAIR = "kept.append([torch.empty_like(torch.cat([t, t]), device=device) for t in batch])"
BUFFERS = (  # two pairs of them in turn
    add("kept = []", before="def ahead"),
    change(SWITCH, f"{SWITCH}\n            _ = len(kept) < 2 and {PAIR}, kept.reverse()"),
    change(ALL, "[to[: len(t)].copy_(t, non_blocking=True) for to, t in zip(kept[0], batch, strict=True)]"),
)
BANK.right(
    (change(f"return {ALL}, None", f"return [*{ALL}, side.record_event()], None"),
     change("batch = torch.cuda.current_stream(device), coming", f"(*batch, there) = {MAIN}, coming"),
     change(WAIT, "main.wait_event(there)")),
    TURNS, (*BUFFERS, add(f"side.wait_stream({MAIN})", before=SWITCH)))  # fmt: skip
BANK.mistakes(
    ("nothing overlaps: the copies stand in the caller's own stream",
     "non_blocking only frees the host, and a stream runs its work in order: put the copies under with "
     "torch.cuda.stream(side)", change(SWITCH, "if True:")),
    ("nothing overlaps: the next copy starts when the computation has ended",
     "the side stream waits for the batch in use; it may wait at most for the one before",
     change(NEXT, f"{YIELD}\n        side.wait_stream({MAIN})\n        {NEXT[:23]}")),
    ("the next copy is queued only when the next batch is asked for",
     "take the next batch and queue its copy first, then yield the current one",
     change(NEXT, f"{YIELD}\n        del batch\n        {NEXT[:23]}")),
    ("a computation may start before its batch has arrived", "two streams do not wait for each other by themselves: "
     "main.wait_stream(side) before the yield", drop(WAIT), change(WAIT, "side.wait_stream(main)")),
    ("a computation waits for the batch after its own",
     "wait_stream waits for everything queued in the side stream so far: call it before the next copy is queued",
     move(WAIT, before=YIELD)),
    ("the host is told to wait", "synchronize holds the host; main.wait_stream(side), or wait_event, does not",
     *(change(WAIT, f"{what}.synchronize()") for what in ("side", "torch.cuda", "side.record_event()"))),
    ("the host polls until the copy is done", "that is a wait, too: main.wait_stream(side) leaves it to the "
     "GPU", change(WAIT, "while not side.query(): pass")),
    ("the host waits for a copy: non_blocking=True is missing", "a default .to(device) waits, in any stream: "
     "non_blocking=True", change(COPY, "t.to(device)")),
    ("the host waits for a copy from ordinary memory", "a clone or a contiguous copy of a pinned tensor is not pinned",
     change(COPY, "t.clone().to(device, non_blocking=True)")),
    ("the caller computes in the side stream",
     "the yield is inside `with torch.cuda.stream(side)`: only the copies belong there",
     change(YIELD, f"{SWITCH}\n            {YIELD}")),
    ("the side stream stays the current one", "torch.cuda.set_stream is not undone by itself: use the stream as a "
     "context manager", change(SWITCH, "torch.cuda.set_stream(side)\n        if True:")),
    ("the caller is put back into its earlier stream", "the stream of the beginning is made current again: use "
     "`with` around the copies only", (FIRST, add("torch.cuda.set_stream(first)", before=YIELD))),
    ("another GPU is current for the caller", "torch.cuda.set_device is not undone by itself: "
     "torch.cuda.Stream(device) and .to(device) need no current GPU",
     add("torch.cuda.set_device(device.index or torch.cuda.current_device())", before=LOOP)),
    ("the default stream waits for the copies, even if the caller's is another", "torch.cuda.current_stream(device) "
     "is the caller's", change(WAIT, "torch.cuda.default_stream(device).wait_stream(side)")),
    ("the stream of the current GPU waits for the copies, also where `device` is another",
     "torch.cuda.current_stream() without an argument is that of the current GPU: pass device",
     change(MAIN, "torch.cuda.current_stream()")),
    ("a caller that changes its stream may compute before its batch has arrived",
     "torch.cuda.current_stream(device) is read once, before the loop: read it again for each batch",
     (change(f"main, batch = {MAIN}, coming", "batch = coming"), add(f"main = {MAIN}", before=LOOP))),
    ("all batches are taken before the first is yielded",
     "list(batches) takes all of them, and a data set does not fit",
     change("iter(batches)", "iter(list(batches))")),
    ("batches are taken two ahead", "each batch ahead costs its memory on the GPU; one is enough to hide a copy",
     (add("after = ahead() if coming is not None else (None, None)", before=LOOP),
      change(NEXT, f"(coming, error), after = after, ahead()\n        {YIELD}"))),
    ("the memory of a batch is given to the next copy while it is still read", "the allocator knows the side stream "
     "only: the block is free as soon as Python drops the batch. record_stream(main) tells it", UNMARKED,
     change(RECORD, "t.record_stream(side)"), (*TURNS, UNMARKED)),
    ("the memory of the inputs, or of the targets, is given to the next copy while they are still read",
     "both are tensors: t.record_stream(main) for each", change("for t in batch:", "for t in batch[1:]:"),
     change("for t in batch:", "for t in batch[:1]:")),
    ("the allocator is told of the default stream, even if the caller's is another", "t.record_stream(main), "
     "with the stream that is current for the caller",
     change(RECORD, "t.record_stream(torch.cuda.default_stream(device))")),
    ("the allocator is told of the stream that was current at the beginning, also where the caller has changed it",
     "t.record_stream(main), with the stream that is current when the batch is yielded: read it again for each batch",
     (FIRST, change(RECORD, "t.record_stream(first)"))),
    ("the side stream waits for the stream that was current at the beginning, also where the caller has changed it",
     "a copy into a batch's old memory waits for the stream in which that batch is read: read that stream again for "
     "each batch", (FIRST, UNMARKED, add("side.wait_stream(first)", before=SWITCH))),
    ("a buffer is written again while it is still read",
     "record_stream tells the allocator, but a buffer of yours is never freed: side.wait_stream(main) before the copy "
     "into it", BUFFERS),
    ("all batches are kept on the GPU", "they are in a list: at the end the whole data set is on the GPU",
     (add("kept = []", before=LOOP), add("kept.append(batch)", before=YIELD))),
    ("a batch stays on the GPU when all is done", "something that outlives the loop refers to it",
     add("prefetch.last = batch", before=YIELD)),
    ("the last batch never arrives", "when the source ends, one batch is still on its way: yield it after the loop",
     change(YIELD, f"if coming is not None or error is not None:\n            {YIELD}")),
    ("a batch arrives twice", "the variable is yielded before it holds the next batch",
     add("if coming is not None: yield coming", before=LOOP)),
    ("the first batch is left out", "the batch that is yielded and the one that is copied next are swapped",
     change(YIELD, "if coming is not None:\n            yield coming")),
    ("the targets stay on the CPU", "every tensor of the batch is copied",
     (change(ALL, "(batch[0].to(device, non_blocking=True), batch[1])"), change("in batch:", "in batch[:1]:"))),
    ("the inputs are yielded without the targets", "yield (inputs, targets)", change(YIELD, "yield batch[0]")),
    ("the batch is on the current GPU, also where `device` is another", ".cuda() without an argument means the current "
     "GPU: .to(device)", change(COPY, "t.to('cuda:0', non_blocking=True)")),
    ("a batch arrives with other contents", "the batch is the caller's: neither dtype nor values change",
     change(YIELD, "yield batch[0].half(), batch[1]")),
    ("a short batch is left out", "the last batch may have fewer rows: it is a batch like all others",
     add("if batch[0].shape[0] < 10000: continue", before=YIELD)),
    ("an empty source gives a batch", "if there is no first batch, yield nothing",
     add("if coming is None and error is None: yield ()", before=LOOP)),
    ("the end of the source is not caught", "catch StopIteration in a generator: it means the end",
     (change("except StopIteration:", "except EOFError:"), change("except Exception", "except EOFError"))),
    ("an exception from the source is swallowed",
     "except Exception treats an error as the end of the data: only StopIteration means that", change("raise error",
     "pass")),
    ("an exception without a message is swallowed", "test for one with: error is not None",
     change("if error is not None:", "if error is not None and str(error):")),
    ("an exception comes too early: a good batch before it is lost", "the source fails while the batch ahead is taken: "
     "keep the exception, yield the batch that has arrived, then raise", change("return None, error", "raise")),
    ("another exception than the source's reaches the caller", "raise the exception that was kept, itself",
     change("raise error", "raise type(error)(*error.args)")),
    ("batches are taken by index", "batches is any iterable: take its elements with iter() and next()",
     change("iter(batches)", "(batches[i] for i in range(len(batches)))")),
    ("batches is treated as an iterator", "next() needs one: iter(batches)", change("iter(batches)", "batches")),
    ("there is nothing to iterate over", "a generator has a yield in it", change(YIELD, "pass")),
)  # fmt: skip
