"""Answers to "how long a step waits": where the clock starts and stops, and what is divided by what."""

import itertools
from collections import namedtuple
from time import perf_counter

import torch

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("starvation")

BEFORE, AFTER = "    torch.cuda.synchronize()\n    while", "step(batch)\n        torch.cuda.synchronize()"
CATCH = "try:\n            batch = next(iterator)\n        except StopIteration:\n            break"
RETURN = "return waiting / len(timed), stepping / len(timed), waiting / (waiting + stepping)"
CHECK = '        raise ValueError(f"no step can be timed: warm_up is {warm_up}, and there were {len(times)} batches")'
BANK.right(change(BEFORE, BEFORE.replace("cuda", "accelerator")))
BANK.right(change(RETURN, "return tuple(__import__('numpy').array((" + RETURN[7:] + ")))"))
BANK.right(change(CATCH, "batch = next(iterator, times)\n        if batch is times:\n            break"))
BANK.right((change(BEFORE, '    for _, batch in zip(range(warm_up), iterator):\n        step(batch)\n' + BEFORE),
           change("while len(times) < warm_up + batches", "while len(times) < batches"),
           change("times[warm_up:]", "times")))  # fmt: skip
Waited = namedtuple("Waited", "waiting stepping share")


@BANK.right
def one_clock_goes_on(loader, step, batches, warm_up):
    batches_of = iter(loader)
    waiting = stepping = 0.0
    count = -warm_up
    torch.cuda.synchronize()
    done = perf_counter()
    for batch in itertools.islice(batches_of, warm_up + batches):
        fetched = perf_counter()
        step(batch)
        torch.accelerator.synchronize()
        last, done = done, perf_counter()
        count += 1
        if count > 0:
            waiting += fetched - last
            stepping += done - fetched
    if count <= 0:
        raise ValueError(f"warm_up = {warm_up} leaves no batch")
    return Waited(waiting / count, stepping / count, waiting / (waiting + stepping))


@BANK.right
def with_events(loader, step, batches, warm_up):
    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    marks, iterator = [], iter(loader)
    torch.cuda.synchronize()
    for _ in range(warm_up + batches):
        start = mark()
        for batch in iterator:
            fetched = mark()
            step(batch)
            torch.cuda.synchronize()
            marks.append((start, fetched, mark()))
            break
        else:
            break
    torch.cuda.synchronize()
    if len(marks) <= warm_up:
        raise ValueError("warm_up takes all batches")
    waits = [a.elapsed_time(b) / 1e3 for a, b, _ in marks[warm_up:]]
    steps = [b.elapsed_time(c) / 1e3 for _, b, c in marks[warm_up:]]
    total = sum(waits) + sum(steps)
    return [sum(waits) / len(waits), sum(steps) / len(steps), sum(waits) / total]


# --- wrong: where the clock starts and stops --------------------------------------------------------------
BANK.mistakes(
    ("the clock starts when the batch is there: the waiting is over",
     "a for loop fetches before its first line: read the clock before next(iterator)",
     (change("        start = time.perf_counter()\n        try", "        try"),
     change("fetched = time", "start = fetched = time"))),
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
     (change(AFTER, "stepped = time.perf_counter()\n        step(batch)\n        fetched, late = time.perf_counter(), "
     "fetched\n        torch.cuda.synchronize()"), change("(fetched - start,", "(late - start,"))),
    ("work that was queued before the call is in the first step", "torch.cuda.synchronize() once before the loop",
     change(BEFORE, "    while")),
    ("the start of the loader is counted as waiting",
     "iter(loader) starts the workers, once in an epoch: call it before the clock is started",
     (drop("iterator = iter(loader)"), change("        try:\n            batch = next(iterator)",
     "        try:\n            if not times:\n                iterator = iter(loader)\n            "
     "batch = next(iterator)"))),
    ("the end of the loader is counted as waiting",
     "the fetch that raises StopIteration brings no batch: workers are stopped in it",
     (change("            break",
     "            times and times.append((times.pop()[0] + time.perf_counter() - start, times[-1][1])) "
     "if False else None\n            ended = time.perf_counter() - start\n            break"),
     add("ended = 0.0", before="iterator = iter(loader)"),
     change("sum(wait for wait, _ in timed)", "sum(wait for wait, _ in timed) + ended"))),
    ("a clock is read that is not fit for this",
     "time.time is the date and may be set back; time.perf_counter is for what lies between two readings",
     (change("start = time.perf_counter()", "start = time.time()"),
     change("fetched = time.perf_counter()", "fetched = time.time()"),
     change("time.perf_counter() - fetched", "time.time() - fetched")),
     (change("start = time.perf_counter()", "start = time.process_time()"),
     change("fetched = time.perf_counter()", "fetched = time.process_time()"),
     change("time.perf_counter() - fetched", "time.process_time() - fetched"))),
)  # fmt: skip

# --- wrong: what is taken from the loader -----------------------------------------------------------------


@BANK.wrong(
    "a batch is fetched and not used",
    "a for loop that ends with break has fetched once more: itertools.islice, or next()",
)
def one_batch_more(loader, step, batches, warm_up):
    times, iterator = [], iter(loader)
    torch.cuda.synchronize()
    start = perf_counter()
    for number, batch in enumerate(iterator):
        if number == warm_up + batches:
            break
        fetched = perf_counter()
        step(batch)
        torch.cuda.synchronize()
        times.append((fetched - start, perf_counter() - fetched))
        start = perf_counter()
    if not times[warm_up:]:
        raise ValueError("warm_up")
    waiting, stepping = (sum(column) for column in zip(*times[warm_up:], strict=True))
    count = len(times) - warm_up
    return waiting / count, stepping / count, waiting / (waiting + stepping)


BANK.mistakes(
    ("the loader is started anew for every batch",
     "iter(loader) starts new workers, and its first batch is always the first: call it once",
     change("next(iterator)", "next(iter(loader))")),
    ("where the loader ends it is started again", "a second start would be in the times: the steps are fewer then",
     change("except StopIteration:\n            break",
     "except StopIteration:\n            if not times:\n                break\n            iterator = "
     "iter(loader)\n            continue")),
    ("the batches are all fetched before the first step",
     "so nothing is left to be waited for: fetch a batch when the step before it is done",
     change("iterator = iter(loader)",
     "iterator = iter(list(__import__('itertools').islice(loader, warm_up + batches)))")),
    ("the next batch is fetched before the step is made",
     "what is fetched ahead is measured in the wrong place, and one batch too many is taken",
     (change("iterator = iter(loader)", "iterator = iter(loader)\n    ahead = next(iterator, None)"),
     change("batch = next(iterator)", "batch, ahead = ahead, next(iterator)"))),
    ("the loader is asked for its length, and need not have one", "take batches until there are no more: StopIteration",
     change("warm_up + batches:", "min(warm_up + batches, len(loader)):")),
    ("the end of the loader is not expected",
     "next() raises StopIteration there: the steps that there were are the answer",
     change(CATCH, "batch = next(iterator)")),
    ("a batch is taken apart", "it may be a tensor, a pair or a dictionary: step knows, the measurement need not",
     change("step(batch)", "step(batch[0])")),
    ("step is called with other arguments than one batch", "step(batch), whatever a batch is",
     change("step(batch)", "step(*batch)")),
    ("the iterator outlives the function",
     "a global or an attribute holds it, and with it its workers and the batches that they have fetched " "ahead",
     change("iterator = iter(loader)", "iterator = time.started = iter(loader)")),
    ("step is never called",
     "with nothing to do between the fetches it is the loader alone that is measured, not how long a "
     "step waits for it", change(AFTER, "torch.cuda.synchronize()")),
)  # fmt: skip

# --- wrong: the warm-up, and what is divided by what ------------------------------------------------------
BANK.mistakes(
    ("the warm-up is left out", "warm_up steps come before those that are timed",
     (change("times) < warm_up + batches", "times) < batches"), change("times[warm_up:]", "times"))),
    ("the warm-up is counted", "the first fetches wait for workers that start: times[warm_up:]",
     change("times[warm_up:]", "times")),
    ("the warm-up is taken from the steps that are to be timed", "it comes on top of them: warm_up + batches",
     change("times) < warm_up + batches", "times) < max(batches, warm_up + 1)")),
    ("in the warm-up batches are fetched, and no steps made",
     "a step's own first time is slow as well, and a batch that is fetched goes into step",
     (change(BEFORE, '    for _ in range(warm_up):\n        next(iterator, None)\n' + BEFORE),
     change("times) < warm_up + batches", "times) < batches"), change("times[warm_up:]", "times"))),
    ("the sums are divided by batches, also where there were fewer", "divide by the number of steps that were timed",
     change(RETURN, "return waiting / batches, stepping / batches, waiting / (waiting + stepping)")),
    ("the sums are divided by all steps, those of the warm-up too", "divide by the number of steps that were timed",
     change(RETURN, "return waiting / len(times), stepping / len(times), waiting / (waiting + stepping)")),
    ("the share is the mean of the steps' shares",
     "a short step counts as much as a long one in it: the sum of the waits over the sum of all",
     change("waiting / (waiting + stepping)", "sum(w / (w + s) for w, s in timed) / len(timed)")),
    ("the warm-up is counted in the share", "the sums of the timed steps alone, for all three",
     change("waiting / (waiting + stepping)", "sum(w for w, _ in times) / sum(w + s for w, s in times)")),
    ("the share is waiting over stepping", "of the whole: waiting / (waiting + stepping)",
     change("waiting / (waiting + stepping)", "waiting / stepping")),
    ("the share is that of the steps", "waiting / (waiting + stepping)",
     change("waiting / (waiting + stepping)", "stepping / (waiting + stepping)")),
    ("the share is in percent", "from 0 to 1; f'{share:.0%}' where it is printed",
     change("waiting / (waiting + stepping)", "100 * waiting / (waiting + stepping)")),
    ("the times are in milliseconds", "time.perf_counter counts seconds, and seconds are asked for",
     change("waiting / len(timed), stepping / len(timed)", "1e3 * waiting / len(timed), 1e3 * stepping / len(timed)")),
    ("the times are medians",
     "where every tenth batch is late, the median does not know of it, and the GPU waits: the mean",
     change(RETURN, "middle = [sorted(column)[len(timed) // 2] for column in zip(*timed)]\n    return *middle, waiting "
     "/ (waiting + stepping)")),
    ("the times are those of all steps together", "the mean: divided by the number of timed steps",
     change("waiting / len(timed), stepping / len(timed)", "waiting, stepping")),
    ("stepping stands where waiting should", "(waiting, stepping, share), in this order",
     change("waiting / len(timed), stepping / len(timed)", "stepping / len(timed), waiting / len(timed)")),
    ("stepping has the waiting in it", "from the call of step on: the clock is read between fetch and step",
     change("time.perf_counter() - fetched", "time.perf_counter() - start")),
    ("one number came back", "three: waiting, stepping, share",
     change(RETURN, "return waiting / (waiting + stepping)")),
    ("nothing came back", "return them; print where it is called",
     change(RETURN, RETURN.replace('return ', 'print(') + ')')),
    ("a dictionary came back", "a tuple: waiting, stepping, share = starvation(…)",
     change(RETURN, 'return {"waiting": waiting / len(timed), "stepping": stepping / len(timed)}')),
    ("where no step is timed the division fails",
     "that error says nothing of loader or warm_up: raise a ValueError that names warm_up",
     (drop("if not timed:"), change(CHECK + '\n', ""))),
    ("where no step is timed a share comes back all the same",
     "0 would say that nobody waits: raise a ValueError that names warm_up",
     change(CHECK, "        return 0.0, 0.0, 0.0")),
)  # fmt: skip
NEXT = "        try:\n            batch = next(iterator)\n        except StopIteration:\n            break\n"
BANK.mistakes(
    ("a batch that is None is taken for the loader's end",
     "next(iterator, None) cannot tell the two apart: StopIteration, or an object of your own",
     change(NEXT, "        batch = next(iterator, None)\n        if batch is None:\n            break\n")),
    ("an empty batch is taken for the loader's end", "what is empty is false, and no end: StopIteration is",
     change(NEXT,
     NEXT + '        if not isinstance(batch, torch.Tensor | None) and len(batch) == 0:\n            break\n')),
    ("a list goes into step as a tuple", "a batch goes into step as the loader gave it",
     change("step(batch)", "step(tuple(batch) if isinstance(batch, list) else batch)")),
    ("step runs without gradients", "it is a training step: torch.no_grad() is for an evaluation",
     change("step(batch)", "torch.no_grad()(step)(batch)")),
    ("an exception of the loader is taken for its end",
     "except StopIteration: another one is an error in the data, and its reader must see it",
     change("except StopIteration", "except Exception"),
     change("except StopIteration", "except (StopIteration, RuntimeError)")),
    ("an exception of step is swallowed", "next(iterator) alone stands in the try: what step raises goes to the caller",
     change("        step(batch)\n",
     "        try:\n            step(batch)\n        except Exception:\n            break\n"),
     change(NEXT + '        fetched = time.perf_counter()\n        step(batch)\n', NEXT.replace("        except",
     "            fetched = time.perf_counter()\n            step(batch)\n        except"))),
    ("the ValueError does not name warm_up", "the caller must know what to make smaller",
     change(CHECK, '        raise ValueError("no data")')),
)  # fmt: skip
