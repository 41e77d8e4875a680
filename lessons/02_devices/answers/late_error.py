"""Answers to "the error three lines late": which step fails, when the call of a later one raises, or none."""

import time

import torch
from banks.bank import Bank
from banks.edits import add, change, drop, swap

BANK = Bank("late_error", "first_fault")
SYNC, CATCH = "torch.accelerator.synchronize()", "except RuntimeError:  # torch.AcceleratorError is one"
STEP, LOOP = "batch = step(batch)", "for number, step in enumerate(steps):"
TRY_END = f"            {SYNC}\n        {CATCH}\n            return number"


@BANK.right
def prints_what_a_step_gives(steps, batch):
    number = None
    try:
        for number, step in enumerate(steps):  # noqa: B007
            batch = step(batch).detach()
            str(batch)
    except Exception:
        return number


@BANK.right
def asks_an_event_now_and_then(steps, batch):
    for number in range(len(steps)):
        try:
            batch = steps[number](batch)
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                time.sleep(0.01)
        except (RuntimeError, IndexError):
            return number


@BANK.right
def fetches_the_batch(steps, batch):
    def fails(step):
        nonlocal batch
        try:
            batch = step(batch)
            batch.cpu()
        except RuntimeError:
            return True
        return False

    return next((number for number, step in enumerate(steps) if fails(step)), None)


def waits_at_the_end(steps, batch):
    number = None
    try:
        for number, step in enumerate(steps):  # noqa: B007
            try:
                batch = step(batch)
            except RuntimeError:
                continue
        torch.cuda.synchronize()
    except RuntimeError:
        return number


def runs_again_from_the_start(steps, batch):
    for last in range(len(steps)):
        try:
            result = batch
            for step in steps[: last + 1]:
                result = step(result)
            torch.cuda.synchronize()
        except RuntimeError:
            return last


# --- no wait, or in the wrong place ----------------------------------------------------------------------
BANK.mistakes(
    ("nothing waits, and the step at which the error surfaced is named",
     "an earlier step launched the kernel: wait after each step", drop(SYNC),
     (drop(SYNC), add('__import__("os").environ["CUDA_LAUNCH_BLOCKING"] = "1"', before=LOOP))),
    ("nothing waits, and one was subtracted",
     "right by luck: how much later an error surfaces can vary. Wait after each step",
     (drop(SYNC), change("return number", "return number - 1"))),
    ("the wait stands before the step",
     "then it finds the failure of the step before: wait after each step", swap(STEP, SYNC)),
    ("the wait stands outside the try", "the wait that finds the fault raises: it has to be inside the try",
     change(TRY_END, f"        {CATCH}\n            return number\n        {SYNC}")),
    ("there is one wait for all steps", "it shows that something failed, not where: synchronize after each step",
     waits_at_the_end),
    ("nothing waits for the last step", "its kernel fails after the call has returned: synchronize after each step",
     change(SYNC, f"number < len(steps) - 1 and {SYNC}")),
    ("the result is queried, but nothing waits",
     "right by luck: here an error surfaces at the next call of any kind, on a real GPU perhaps at a later one. Wait "
     "after each step", change(SYNC, "batch.sum()")),
)  # fmt: skip

# --- what is caught, counted and returned ----------------------------------------------------------------
BANK.mistakes(
    ("no error is caught", "the wait that finds the fault raises: it has to be inside a try",
     change("except RuntimeError", "except ZeroDivisionError")),
    ("an error at the call is not caught", "a step's call may also raise, like any line of Python",
     change("except RuntimeError", "except torch.AcceleratorError")),
    ("an error at the call was ignored",
     "it counts too: catch RuntimeError, of which torch.AcceleratorError is one",
     change("return number", "return None if 'shape' in str(__import__('sys').exc_info()[1]) else number")),
    ("the steps are counted from 1", "they are counted from 0, as in a list", change("(steps)", "(steps, start=1)")),
    ("the step before is blamed", "a fault is found by the wait after a step, and belongs to that step",
     change("return number", "return number - 1")),
    ("the error itself was returned", "return the number of the step",
     (change("except RuntimeError:", "except RuntimeError as error:"), change("return number", "return error"))),
    ("-1 was returned where none fails", "return None after the last one", change("return None", "return -1")),
    ("whether a step fails was returned, not which one", "return its number",
     (change("return number", "return True"), change("return None", "return False"))),
    ("the steps after the fault ran too", "after a failed kernel the process can no longer use the GPU: stop there",
     (change(LOOP, f"found = []\n    {LOOP}"), change("return number", "found.append(number)"),
      change("return None", "return found[0] if found else None"))),
    ("each step is tried from the start again",
     "after a failed kernel nothing can be tried again in the same process, so one pass has to find it",
     runs_again_from_the_start),
    ("every step was given the first batch", "batch = step(batch), and the next step of that",
     change(STEP, "step(batch)")),
    ("a step was given a copy", "give it the tensor that the step before gave",
     change(STEP, "batch = step(batch).clone()")),
    ("the batch was copied to the CPU", "the steps' tables are on the GPU: give them the batch as it is",
     add("batch = batch.cpu()", before=LOOP)),
    ("the first step is assumed to exist", "the list of steps may be empty; then none fails",
     add("first = steps[0]", before=LOOP)),
)  # fmt: skip
