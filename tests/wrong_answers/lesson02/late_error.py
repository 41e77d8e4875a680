"""Answers to "the error three lines late": which step fails, when the call of a later one raises, or none."""

import os
import time

import torch

from gpulab.check.lesson02.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("late_error", SECTIONS)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def waits_after_each(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None


@BANK.right
def waits_on_any_accelerator(steps, batch):
    number = None
    try:
        for number, step in enumerate(steps):  # noqa: B007
            batch = step(batch)
            torch.accelerator.synchronize()
    except Exception:
        return number


@BANK.right
def reads_a_number(steps, batch):
    for i in range(len(steps)):
        try:
            batch = steps[i](batch)
            batch.sum().item()
        except (RuntimeError, IndexError, ValueError):
            return i


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


@BANK.right
def waits_for_an_event(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            done = torch.cuda.Event()
            done.record()
            done.synchronize()
        except RuntimeError:
            return number
    return None


@BANK.right
def asks_the_stream_until_it_is_done(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            while not torch.cuda.current_stream().query():
                pass
        except RuntimeError:
            return number
    return None


@BANK.right
def asks_an_event_now_and_then(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                time.sleep(0.01)
        except RuntimeError:
            return number
    return None


@BANK.right
def detaches_what_a_step_gives(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch).detach()
            torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None


# --- wrong: no wait, or in the wrong place -------------------------------------------------------------


@BANK.wrong("this is not the step that fails", "that is where the error surfaced")
def does_not_wait(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
        except RuntimeError:
            return number
    return None


@BANK.wrong("steps ran after the one that fails", "right by luck")
def waits_for_nothing_but_blames_the_one_before(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
        except RuntimeError:
            return number - 1
    return None


@BANK.wrong("this is not the step that fails", "that is where the error surfaced", same_as="does_not_wait")
def asks_for_blocking_launches_too_late(steps, batch):
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    return does_not_wait(steps, batch)


@BANK.wrong("this is not the step that fails", "the wait stands before the step")
def waits_before_each(steps, batch):
    for number, step in enumerate(steps):
        try:
            torch.cuda.synchronize()
            batch = step(batch)
        except RuntimeError:
            return number
    return None


@BANK.wrong("your function raised AcceleratorError", "inside the try")
def waits_outside_the_try(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
        except RuntimeError:
            return number
        torch.cuda.synchronize()
    return None


@BANK.wrong("this is not the step that fails", "one wait for all of them")
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


@BANK.wrong("your function raised AcceleratorError", "inside the try", same_as="waits_outside_the_try")
def catches_nothing(steps, batch):
    for step in steps:
        batch = step(batch)
        torch.cuda.synchronize()


@BANK.wrong("your function raised RuntimeError", "may also raise at the call")
def catches_only_the_accelerators(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            torch.cuda.synchronize()
        except torch.AcceleratorError:
            return number
    return None


@BANK.wrong("this is not the step that fails", "an error at the call counts too")
def takes_an_error_at_the_call_for_none(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
        except RuntimeError:
            return None
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return number


# --- wrong: what is counted and returned ---------------------------------------------------------------


@BANK.wrong("this is not the step that fails", "counted from 0", same_as="waits_before_each")
def counts_from_one(steps, batch):
    for number, step in enumerate(steps, start=1):
        try:
            batch = step(batch)
            torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None


@BANK.wrong("this is not the step that fails", "the step before is blamed")
def blames_the_one_before(steps, batch):
    number = waits_after_each(steps, batch)
    return None if number is None else number - 1


@BANK.wrong("this is not the step that fails", "the error itself was returned")
def returns_the_error(steps, batch):
    for step in steps:
        try:
            batch = step(batch)
            torch.cuda.synchronize()
        except RuntimeError as error:
            return error
    return None


@BANK.wrong("this is not the step that fails", "return None after the last one")
def returns_minus_one_for_none(steps, batch):
    number = waits_after_each(steps, batch)
    return -1 if number is None else number


@BANK.wrong("steps ran after the one that fails", "stop there")
def goes_on_after_it(steps, batch):
    found = None
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            torch.cuda.synchronize()
        except RuntimeError:
            found = number if found is None else found
    return found


@BANK.wrong("the steps did not run one after the other", "one pass has to find it")
def bisects_by_running_again(steps, batch):
    for last in range(len(steps)):
        try:
            result = batch
            for step in steps[: last + 1]:
                result = step(result)
            torch.cuda.synchronize()
        except RuntimeError:
            return last
    return None


@BANK.wrong("a step was not given what the step before gave", "given to every step")
def gives_every_step_the_first_batch(steps, batch):
    for number, step in enumerate(steps):
        try:
            step(batch)
            torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None


@BANK.wrong("this is not the step that fails", "Its table is on the GPU")
def runs_it_on_the_cpu(steps, batch):
    batch = batch.cpu()
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
        except (RuntimeError, IndexError):
            return number
    return None


@BANK.wrong("this is not the step that fails", "whether there is a fault")
def says_whether(steps, batch):
    return waits_after_each(steps, batch) is not None


@BANK.wrong("this is not the step that fails", "nobody waited for it")
def waits_after_all_but_the_last(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            if number < len(steps) - 1:
                torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None


@BANK.wrong("a step began before the one before it was over", "right by luck")
def asks_something_of_the_result(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch)
            batch.sum()  # raises here, where a kernel has failed
        except RuntimeError:
            return number
    return None


@BANK.wrong("your function raised IndexError", "may be empty")
def takes_the_first_step_unasked(steps, batch):
    number = 0
    while True:
        try:
            batch = steps[number](batch)
            torch.cuda.synchronize()
        except RuntimeError:
            return number
        number += 1
        if number == len(steps):
            return None


@BANK.wrong(
    "a step was not given what the step before gave", "or a copy of it", same_as="gives_every_step_the_first_batch"
)
def copies_what_a_step_gives(steps, batch):
    for number, step in enumerate(steps):
        try:
            batch = step(batch).clone()
            torch.cuda.synchronize()
        except RuntimeError:
            return number
    return None
