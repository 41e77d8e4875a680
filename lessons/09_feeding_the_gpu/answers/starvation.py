"""Answers to "how long a step waits": where the clock starts and stops, and what is divided by what."""

from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("starvation")
BEFORE, AFTER = "    torch.cuda.synchronize()\n    while", "step(batch)\n        torch.cuda.synchronize()"
NEXT = "        try:\n            batch = next(iterator)\n        except StopIteration:\n            break\n"
MEANS, OF_ALL = "waiting / len(timed), stepping / len(timed)", "waiting / (waiting + stepping)"
RETURN, END = f"return {MEANS}, {OF_ALL}", "except StopIteration:\n            break"
CHECK = """        there = f"warm_up is {warm_up}, and there were {len(times)} batches"
        raise ValueError(f"no step can be timed: {there}")"""
LEFT_OUT = (change("times) < warm_up + batches", "times) < batches"), change("times[warm_up:]", "times"))


def timed_by(clock):
    """The solution with this clock."""
    return (change("start = time.perf_counter", f"start = {clock}"), change("d = time.perf_counter", f"d = {clock}"),
            change("time.perf_counter() - f", f"{clock}() - f"))  # fmt: skip


BANK.right((change(BEFORE, f"    for _, batch in zip(range(warm_up), iterator):\n        step(batch)\n{BEFORE}"), *LEFT_OUT,
            change(NEXT, "        batch = next(iterator, times)\n        if batch is times:\n            break\n"),
            change(RETURN, f"return tuple(np.array(({RETURN[7:]})))")))  # fmt: skip
BANK.right((change("        start = time.perf_counter()", "        start = done"),  # one clock that goes on
            change(BEFORE, "    torch.accelerator.synchronize()\n    done = time.perf_counter()\n    while"),
            change("times.append((fetched - start, time.perf_counter() - fetched))",
            "done = time.perf_counter()\n        times.append([fetched - start, done - fetched])")))  # fmt: skip
BANK.right((*timed_by("now"), add("now = lambda: first.elapsed_time(event()) / 1e3", before="iterator = iter(loader)"),
            add("event = lambda: (e := torch.cuda.Event(enable_timing=True), e.record(), e.synchronize())[0]",
            before="now = lambda"), add("first = event()", before="iterator = iter(loader)")))  # fmt: skip

# --- where the clock starts and stops --------------------------------------------------------------------
BANK.mistakes(
    ("the clock starts when the batch has arrived: the waiting is over",
     "a for loop fetches before its first line: read the clock before next(iterator)",
     (drop("start = time"), change("fetched = time", "start = fetched = time"))),
    ("nothing waits for the GPU after step, so its work is not timed, or counted in the next fetch",
     "step returns when its work is queued: torch.cuda.synchronize() before the clock is stopped",
     change(AFTER, "step(batch)")),
    ("the GPU's work is counted as waiting for data",
     "synchronize comes after the fetch's clock has started: it belongs to the step before",
     (change(AFTER, "step(batch)"), change("        try:", "        torch.cuda.synchronize()\n        try:"))),
    ("the step's clock is stopped before the GPU has finished", "synchronize comes first, then the clock is read",
     (change(AFTER, "step(batch)\n        stepped = time.perf_counter()\n        torch.cuda.synchronize()"),
      change("time.perf_counter() - fetched", "stepped - fetched"))),
    ("only the current stream is waited for, even if step works in another",
     "torch.cuda.synchronize() waits for all streams of the current GPU",
     change(AFTER, "step(batch)\n        torch.cuda.current_stream().synchronize()")),
    ("cuda:0 is waited for, even if another GPU is current",
     "torch.cuda.synchronize() without an argument waits for the current one",
     change(AFTER, "step(batch)\n        torch.cuda.synchronize(0)")),
    ("the time in step is that of its last kernel, or less",
     "the step's work on the host counts too: read the clock before you call step",
     (change(AFTER, "step(batch)\n        came, fetched = fetched, time.perf_counter()\n        torch.cuda.synchronize()"),
      change("fetched - start,", "came - start,"))),
    ("work that was queued before the call is in the first step", "torch.cuda.synchronize() once before the loop",
     change(BEFORE, "    while")),
    ("the start of the loader is counted as waiting",
     "iter(loader) starts the workers, once in an epoch: call it before the clock is started",
     (drop("iterator = iter(loader)"),
      change("            batch =", "            iterator = iterator if times else iter(loader)\n            batch ="))),
    ("the end of the loader is counted as waiting",
     "the fetch that raises StopIteration yields no batch: it stops the workers",
     (change(END, "except StopIteration:\n            ended = time.perf_counter() - start\n            break"),
      add("ended = 0.0", before="iterator = iter(loader)"), change("for wait, _ in timed)", "for wait, _ in timed) + ended"))),
    ("time.time is read", "time.time is the date, and may be set back; time.perf_counter is for intervals",
     timed_by("time.time")),
    ("a clock of the processor is read", "it stands still while the process waits, but the waits are to be timed",
     timed_by("time.process_time")),
)  # fmt: skip

# --- what is taken from the loader, and goes into step ---------------------------------------------------
BANK.mistakes(
    ("a batch is fetched and not used",
     "a for loop that ends with break has fetched once more: itertools.islice, or next()",
     change("    timed =", "    next(iterator, None)\n    timed =")),
    ("the loader is started anew for every batch",
     "iter(loader) starts new workers, and its first batch is always the first: call it once",
     change("next(iterator)", "next(iter(loader))")),
    ("the loader is started again when it ends", "the times would include a second start: just time fewer steps",
     change(END, "except StopIteration:\n            if not times:\n                break\n            iterator = "
     "iter(loader)\n            continue")),
    ("the batches are all fetched before the first step",
     "so there is nothing left to wait for: fetch a batch when the step before it has finished",
     change("iter(loader)", "iter([batch for _, batch in zip(range(warm_up + batches), loader)])")),
    ("the next batch is fetched before the step is made",
     "a batch fetched ahead is timed in the wrong place, and one batch too many is taken",
     (change("iterator = iter(loader)", "iterator = iter(loader)\n    ahead = next(iterator, None)"),
      change("batch = next(iterator)", "batch, ahead = ahead, next(iterator)"))),
    ("len() is called on the loader, which need not have a length",
     "take batches until there are no more: StopIteration",
     change("warm_up + batches:", "min(warm_up + batches, len(loader)):")),
    ("the end of the loader is not handled",
     "next() raises StopIteration at the end: return the means of the steps made",
     change(NEXT, "        batch = next(iterator)\n")),
    ("a batch that is None is treated as the loader's end",
     "next(iterator, None) cannot distinguish the two: catch StopIteration, or use a sentinel object of your own",
     change(NEXT, "        batch = next(iterator, None)\n        if batch is None:\n            break\n")),
    ("an empty batch is treated as the loader's end", "an empty batch is false, but only StopIteration is the end",
     change(NEXT, f"{NEXT}        if batch == ():\n            break\n")),
    ("a batch is taken apart", "it may be a tensor, a pair or a dictionary: only step needs to know",
     change("step(batch)", "step(batch[0])"), change("step(batch)", "step(*batch)")),
    ("a batch that is a list reaches step as something else", "call step(batch) with whatever the loader yields",
     change("step(batch)", "step(tuple(batch) if isinstance(batch, list) else batch)")),
    ("step runs without gradients", "it is a training step: torch.no_grad() is for an evaluation",
     change("step(batch)", "torch.no_grad()(step)(batch)")),
    ("step is never called",
     "with nothing to do between the fetches you measure the loader alone, not how long a step waits for it",
     drop("step(batch)")),
    ("the iterator outlives the function",
     "a global or an attribute keeps it, its workers and the batches that they have fetched ahead",
     change("iterator = iter(loader)", "iterator = time.started = iter(loader)")),
    ("an exception of the loader is treated as its end",
     "catch only StopIteration: any other exception is an error that the caller must see",
     change("except StopIteration", "except Exception")),
    ("an exception of step is swallowed", "put only next(iterator) in the try: what step raises goes to the caller",
     change(f"{NEXT}        fetched = time.perf_counter()\n        step(batch)\n", NEXT.replace("        except",
     "            fetched = time.perf_counter()\n            step(batch)\n        except"))),
)  # fmt: skip

# --- the warm-up, what is divided by what, and what comes back -------------------------------------------
BANK.mistakes(
    ("the warm-up is left out", "warm_up steps come before those that are timed", LEFT_OUT),
    ("the warm-up is counted", "the first fetches wait for workers that start: times[warm_up:]",
     change("times[warm_up:]", "times")),
    ("the warm-up is taken from the steps that should be timed", "it comes on top of them: warm_up + batches",
     change("times) < warm_up + batches", "times) < max(batches, warm_up + 1)")),
    ("in the warm-up batches are fetched, but no steps are made",
     "a step's own first time is slow as well, and a batch that is fetched goes into step",
     (change(BEFORE, f"    for _ in range(warm_up):\n        next(iterator, None)\n{BEFORE}"), *LEFT_OUT)),
    ("the sums are divided by batches, even if there were fewer", "divide by the number of steps that were timed",
     change(MEANS, "waiting / batches, stepping / batches")),
    ("the sums are divided by all steps, those of the warm-up too", "divide by the number of steps that were timed",
     change(MEANS, "waiting / len(times), stepping / len(times)")),
    ("the share is the mean of the steps' shares",
     "that gives a short step as much weight as a long one: divide the sum of waits by the sum of all",
     change(OF_ALL, "sum(w / (w + s) for w, s in timed) / len(timed)")),
    ("the warm-up is counted in the share", "the sums of the timed steps alone, for all three",
     change(OF_ALL, "sum(w for w, _ in times) / sum(w + s for w, s in times)")),
    ("the share is waiting over stepping", "of the whole: waiting / (waiting + stepping)",
     change(OF_ALL, "waiting / stepping")),
    ("the share is that of the steps", "waiting / (waiting + stepping)", change(OF_ALL, "stepping / (waiting + stepping)")),
    ("the share is in percent", "from 0 to 1; f'{share:.0%}' where it is printed", change(OF_ALL, f"100 * {OF_ALL}")),
    ("the times are in milliseconds", "time.perf_counter counts seconds, and seconds are asked for",
     change(MEANS, "1e3 * waiting / len(timed), 1e3 * stepping / len(timed)")),
    ("the times are medians",
     "if every tenth batch is late, the median does not show it, though the GPU waits: use the mean",
     change(MEANS, "*(sorted(column)[len(timed) // 2] for column in zip(*timed))")),
    ("the times are those of all steps together", "the mean: divided by the number of timed steps",
     change(MEANS, "waiting, stepping")),
    ("stepping and waiting are swapped", "(waiting, stepping, share), in this order",
     change(MEANS, "stepping / len(timed), waiting / len(timed)")),
    ("stepping includes the waiting", "from the call of step on: the clock is read between fetch and step",
     change("time.perf_counter() - fetched", "time.perf_counter() - start")),
    ("one number was returned", "three: waiting, stepping, share", change(RETURN, f"return {OF_ALL}")),
    ("nothing came back", "return them; print where it is called", change(RETURN, f"print({MEANS}, {OF_ALL})")),
    ("a dictionary was returned", "a tuple: waiting, stepping, share = starvation(…)",
     change(RETURN, 'return {"waiting": waiting / len(timed), "stepping": stepping / len(timed)}')),
    ("if no step is timed the division fails",
     "that error does not mention loader or warm_up: raise a ValueError that names warm_up",
     (drop("if not timed:"), change(CHECK, ""))),
    ("if no step is timed a share is still returned",
     "0 would mean that nothing waits: raise a ValueError that names warm_up", change(CHECK,
     "        return 0.0, 0.0, 0.0")),
    ("the ValueError does not name warm_up", "the caller must know what to reduce",
     change(CHECK, '        raise ValueError("no data")')),
)  # fmt: skip
