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
    ("the clock starts when the batch is there: the waiting is over",
     "a for loop fetches before its first line: read the clock before next(iterator)",
     (drop("start = time"), change("fetched = time", "start = fetched = time"))),
    ("nothing waits for the GPU after step, so that its work is lost, or found in the next fetch",
     "step returns when its work is queued: torch.cuda.synchronize() before the clock is stopped",
     change(AFTER, "step(batch)")),
    ("the GPU's work is counted as waiting for data",
     "synchronize stands after the clock of the fetch has started: it belongs to the step before",
     (change(AFTER, "step(batch)"), change("        try:", "        torch.cuda.synchronize()\n        try:"))),
    ("the clock of the step is stopped before the GPU is done", "synchronize comes first, then the clock is read",
     (change(AFTER, "step(batch)\n        stepped = time.perf_counter()\n        torch.cuda.synchronize()"),
      change("time.perf_counter() - fetched", "stepped - fetched"))),
    ("only the current stream is waited for, also where step works in another",
     "torch.cuda.synchronize() waits for all streams of the current GPU",
     change(AFTER, "step(batch)\n        torch.cuda.current_stream().synchronize()")),
    ("cuda:0 is waited for, also where another GPU is current",
     "torch.cuda.synchronize() without an argument waits for the current one",
     change(AFTER, "step(batch)\n        torch.cuda.synchronize(0)")),
    ("the time in step is that of its last kernel, or less",
     "its own work on the host belongs to it: the clock is read before step is called",
     (change(AFTER, "step(batch)\n        came, fetched = fetched, time.perf_counter()\n        torch.cuda.synchronize()"),
      change("fetched - start,", "came - start,"))),
    ("work that was queued before the call is in the first step", "torch.cuda.synchronize() once before the loop",
     change(BEFORE, "    while")),
    ("the start of the loader is counted as waiting",
     "iter(loader) starts the workers, once in an epoch: call it before the clock is started",
     (drop("iterator = iter(loader)"),
      change("            batch =", "            iterator = iterator if times else iter(loader)\n            batch ="))),
    ("the end of the loader is counted as waiting",
     "the fetch that raises StopIteration brings no batch: workers are stopped in it",
     (change(END, "except StopIteration:\n            ended = time.perf_counter() - start\n            break"),
      add("ended = 0.0", before="iterator = iter(loader)"), change("for wait, _ in timed)", "for wait, _ in timed) + ended"))),
    ("time.time is read", "it is the date, and may be set back; time.perf_counter is for the time between two readings",
     timed_by("time.time")),
    ("a clock of the processor is read", "it stands still while the process waits, and waits are what is timed",
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
    ("where the loader ends it is started again", "a second start would be in the times: the steps are fewer then",
     change(END, "except StopIteration:\n            if not times:\n                break\n            iterator = "
     "iter(loader)\n            continue")),
    ("the batches are all fetched before the first step",
     "so nothing is left to be waited for: fetch a batch when the step before it is done",
     change("iter(loader)", "iter([batch for _, batch in zip(range(warm_up + batches), loader)])")),
    ("the next batch is fetched before the step is made",
     "what is fetched ahead is measured in the wrong place, and one batch too many is taken",
     (change("iterator = iter(loader)", "iterator = iter(loader)\n    ahead = next(iterator, None)"),
      change("batch = next(iterator)", "batch, ahead = ahead, next(iterator)"))),
    ("the loader is asked for its length, and need not have one", "take batches until there are no more: StopIteration",
     change("warm_up + batches:", "min(warm_up + batches, len(loader)):")),
    ("the end of the loader is not expected",
     "next() raises StopIteration there: the steps that there were are the answer",
     change(NEXT, "        batch = next(iterator)\n")),
    ("a batch that is None is taken for the loader's end",
     "next(iterator, None) cannot tell the two apart: StopIteration, or an object of your own",
     change(NEXT, "        batch = next(iterator, None)\n        if batch is None:\n            break\n")),
    ("an empty batch is taken for the loader's end", "what is empty is false, and no end: StopIteration is",
     change(NEXT, f"{NEXT}        if batch == ():\n            break\n")),
    ("a batch is taken apart", "it may be a tensor, a pair or a dictionary: step knows, the measurement need not",
     change("step(batch)", "step(batch[0])"), change("step(batch)", "step(*batch)")),
    ("a batch that is a list goes into step as another thing", "step(batch), with what the loader gave, whatever it is",
     change("step(batch)", "step(tuple(batch) if isinstance(batch, list) else batch)")),
    ("step runs without gradients", "it is a training step: torch.no_grad() is for an evaluation",
     change("step(batch)", "torch.no_grad()(step)(batch)")),
    ("step is never called",
     "with nothing to do between the fetches it is the loader alone that is measured, not how long a step waits for it",
     drop("step(batch)")),
    ("the iterator outlives the function",
     "a global or an attribute holds it, and with it its workers and the batches that they have fetched ahead",
     change("iterator = iter(loader)", "iterator = time.started = iter(loader)")),
    ("an exception of the loader is taken for its end",
     "except StopIteration: another one is an error in the data, and its reader must see it",
     change("except StopIteration", "except Exception")),
    ("an exception of step is swallowed", "next(iterator) alone stands in the try: what step raises goes to the caller",
     change(f"{NEXT}        fetched = time.perf_counter()\n        step(batch)\n", NEXT.replace("        except",
     "            fetched = time.perf_counter()\n            step(batch)\n        except"))),
)  # fmt: skip

# --- the warm-up, what is divided by what, and what comes back -------------------------------------------
BANK.mistakes(
    ("the warm-up is left out", "warm_up steps come before those that are timed", LEFT_OUT),
    ("the warm-up is counted", "the first fetches wait for workers that start: times[warm_up:]",
     change("times[warm_up:]", "times")),
    ("the warm-up is taken from the steps that are to be timed", "it comes on top of them: warm_up + batches",
     change("times) < warm_up + batches", "times) < max(batches, warm_up + 1)")),
    ("in the warm-up batches are fetched, and no steps made",
     "a step's own first time is slow as well, and a batch that is fetched goes into step",
     (change(BEFORE, f"    for _ in range(warm_up):\n        next(iterator, None)\n{BEFORE}"), *LEFT_OUT)),
    ("the sums are divided by batches, also where there were fewer", "divide by the number of steps that were timed",
     change(MEANS, "waiting / batches, stepping / batches")),
    ("the sums are divided by all steps, those of the warm-up too", "divide by the number of steps that were timed",
     change(MEANS, "waiting / len(times), stepping / len(times)")),
    ("the share is the mean of the steps' shares",
     "a short step counts as much as a long one in it: the sum of the waits over the sum of all",
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
     "where every tenth batch is late, the median does not know of it, and the GPU waits: the mean",
     change(MEANS, "*(sorted(column)[len(timed) // 2] for column in zip(*timed))")),
    ("the times are those of all steps together", "the mean: divided by the number of timed steps",
     change(MEANS, "waiting, stepping")),
    ("stepping stands where waiting should", "(waiting, stepping, share), in this order",
     change(MEANS, "stepping / len(timed), waiting / len(timed)")),
    ("stepping has the waiting in it", "from the call of step on: the clock is read between fetch and step",
     change("time.perf_counter() - fetched", "time.perf_counter() - start")),
    ("one number came back", "three: waiting, stepping, share", change(RETURN, f"return {OF_ALL}")),
    ("nothing came back", "return them; print where it is called", change(RETURN, f"print({MEANS}, {OF_ALL})")),
    ("a dictionary came back", "a tuple: waiting, stepping, share = starvation(…)",
     change(RETURN, 'return {"waiting": waiting / len(timed), "stepping": stepping / len(timed)}')),
    ("where no step is timed the division fails",
     "that error says nothing of loader or warm_up: raise a ValueError that names warm_up",
     (drop("if not timed:"), change(CHECK, ""))),
    ("where no step is timed a share comes back all the same",
     "0 would say that nobody waits: raise a ValueError that names warm_up", change(CHECK, "        return 0.0, 0.0, 0.0")),
    ("the ValueError does not name warm_up", "the caller must know what to make smaller",
     change(CHECK, '        raise ValueError("no data")')),
)  # fmt: skip
