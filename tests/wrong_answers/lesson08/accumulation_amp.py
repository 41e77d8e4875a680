"""Answers to "accumulation with mixed precision and clipping": what runs once a window, and in which order."""

import torch
from torch import nn

from gpulab.check.lesson08.misconceptions import SECTIONS

from ..by_hand import Bank

BANK = Bank("accumulation_amp", SECTIONS)
clip_grad_norm_ = nn.utils.clip_grad_norm_


def windows(micro_batches, steps):
    return [micro_batches[i : i + steps] for i in range(0, len(micro_batches), steps)]


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def backward(model, scaler, loss_fn, window, divisor):
    """The right inside of a window; answers that are wrong in something else call it."""
    for x, y in window:
        with autocast():
            loss = loss_fn(model(x), y) / divisor
        scaler.scale(loss).backward()


def finish(model, optimizer, scaler, max_norm, clipped=None):
    """The right end of a window, without the schedule; whether the optimizer stepped."""
    scaler.unscale_(optimizer)
    clip_grad_norm_(clipped or model.parameters(), max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= before


def train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        if finish(model, optimizer, scaler, max_norm):
            scheduler.step()


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def windows_by_slicing(*args):
    train(*args)


@BANK.right
def windows_by_a_counter(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(micro_batches):
        held = min(steps, len(micro_batches) - i + i % steps)
        with torch.autocast(device_type=x.device.type):
            loss = loss_fn(model(x), y)
        (scaler.scale(loss) / held).backward()
        if (i + 1) % steps == 0 or (i + 1) == len(micro_batches):
            if finish(model, optimizer, scaler, max_norm):
                scheduler.step()
            optimizer.zero_grad(set_to_none=True)


@BANK.right
def gradients_divided_before_clipping(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        model.zero_grad()
        backward(model, scaler, loss_fn, window, 1)
        scaler.unscale_(optimizer)
        for p in model.parameters():
            p.grad.div_(len(window))
        norm = clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        if norm.isfinite():
            scheduler.step()
        scaler.update()


@BANK.right
def clips_to_a_scaled_norm(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        with autocast():
            for x, y in window:
                scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped = scaler.get_scale() < scale
        if not skipped:
            scheduler.step()


@BANK.right
def lets_the_optimizer_advance_the_schedule(
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm
):
    hook = optimizer.register_step_post_hook(lambda *_: scheduler.step())
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        finish(model, optimizer, scaler, max_norm)
    hook.remove()


@BANK.right
def looks_at_the_gradients_after_unscaling(
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm
):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        good = all(p.grad.isfinite().all() for p in model.parameters())
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        if good:
            scheduler.step()


@BANK.right
def steps_if_the_norm_is_finite(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        if clip_grad_norm_(model.parameters(), max_norm).isfinite():
            scaler.step(optimizer)
            scheduler.step()
        scaler.update()


@BANK.right
def one_sample_at_a_time(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    samples = [(x[i : i + 1], y[i : i + 1]) for x, y in micro_batches for i in range(len(x))]
    train(model, optimizer, scaler, scheduler, loss_fn, samples, steps * len(micro_batches[0][0]), max_norm)


@BANK.right
def reports_losses(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    """With a second call of loss_fn for each micro-batch, which has no graph."""

    losses = []

    def reported(outputs, targets):
        with torch.no_grad():
            losses.append(loss_fn(outputs, targets))
        return loss_fn(outputs, targets)

    train(model, optimizer, scaler, scheduler, reported, micro_batches, steps, max_norm)


# --- wrong: the scaler ---------------------------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "it may run once between two updates")
def unscales_every_micro_batch(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("scaler.unscale_ runs for every micro-batch", "divides what is accumulated by the scale again")
def unscales_and_updates_every_micro_batch(
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm
):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            scaler.unscale_(optimizer)
            scaler.update()
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("your function raised AssertionError", "scaler.update runs where no step was")
def updates_every_micro_batch(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            scaler.update()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scheduler.step()


@BANK.wrong("your function raised RuntimeError", "scaler.update stands before scaler.step")
def updates_before_the_step(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.update()
        scaler.step(optimizer)
        scheduler.step()


@BANK.wrong("your function raised RuntimeError", "scaler.update() is missing")
def never_updates(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scheduler.step()


@BANK.wrong("scaler.update does not follow each step", "the scale never adapts")
def updates_all_but_the_last_time(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for i, window in enumerate(windows(micro_batches, steps)):
        if i:
            scaler.update()
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scheduler.step()


@BANK.wrong("your function raised RuntimeError", "scaler.unscale_ comes before scaler.step")
def unscales_after_the_step(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.step(optimizer)
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.update()
        scheduler.step()


@BANK.wrong("optimizer.step() is called directly", "multiplied by the scale until someone divides them")
def steps_past_the_scaler(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scaler.update()
        scheduler.step()


@BANK.wrong("your function raised AssertionError", "nothing was scaled")
def runs_backward_without_the_scaler(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            with autocast():
                loss = loss_fn(model(x), y) / len(window)
            loss.backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("the scaler that was passed in is not used", "a new scaler, or none")
def switches_a_new_scaler_off(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)


@BANK.wrong("your function raised AssertionError", "there is no gradient to step with")
def always_steps_after_the_loop(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(micro_batches):
        held = min(steps, len(micro_batches) - i + i % steps)
        backward(model, scaler, loss_fn, [batch], held)
        if (i + 1) % steps == 0:
            finish(model, optimizer, scaler, max_norm)
            scheduler.step()
            optimizer.zero_grad()
    finish(model, optimizer, scaler, max_norm)
    scheduler.step()


# --- wrong: clipping -----------------------------------------------------------------------------------


@BANK.wrong("the gradients are clipped while they are still scaled", "nearly every norm is above max_norm")
def clips_before_unscaling(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("the gradients are clipped while they are still scaled", same_as="clips_before_unscaling")
def never_unscales(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("scaled gradients are clipped, after every micro-batch", "clip once a window")
def clips_every_micro_batch(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("clipping happens for every micro-batch", "clipping the pieces changes their weights")
def clips_every_micro_batch_to_a_scaled_norm(
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm
):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("the gradient is not clipped", "clip_grad_norm_ is missing")
def never_clips(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, 1e9)


@BANK.wrong("the gradient is not clipped", "comes after scaler.step", same_as="never_clips")
def clips_after_the_step(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.step(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.update()
        scheduler.step()


@BANK.wrong("single elements are clipped, not the norm", "another direction")
def clips_the_elements(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("each parameter is clipped by itself", "all gradients together")
def clips_each_parameter(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        for p in model.parameters():
            clip_grad_norm_([p], max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("the gradient is divided after it was clipped", "Divide first, then clip")
def divides_after_clipping(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, 1)
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        for p in model.parameters():
            p.grad /= len(window)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


# --- wrong: the schedule -------------------------------------------------------------------------------


def with_schedule(args, advance):
    """A right epoch but for the schedule: advance(scale before update, scale after it)."""
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm = args
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if advance(before, scaler.get_scale()):
            scheduler.step()


@BANK.wrong("scheduler.step runs after a skipped step too", "a skipped step is none")
def schedules_skipped_steps(*args):
    with_schedule(args, lambda before, after: True)


@BANK.wrong("scheduler.step runs after a skipped step too", same_as="schedules_skipped_steps")
def asks_whether_a_gradient_is_there(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        finish(model, optimizer, scaler, max_norm)
        if any(p.grad is not None for p in model.parameters()):
            scheduler.step()


@BANK.wrong("scheduler.step runs after a skipped step too", same_as="schedules_skipped_steps")
def compares_the_scale_before_update_only(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        if scaler.get_scale() >= before:
            scheduler.step()
        scaler.update()


@BANK.wrong("scheduler.step is left out after steps that were made", "or larger where it grew")
def asks_for_the_same_scale(*args):
    with_schedule(args, lambda before, after: after == before)


@BANK.wrong("scheduler.step runs after a skipped first step", "nothing to compare its scale with")
def compares_with_the_window_before(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    last = 0.0
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        finish(model, optimizer, scaler, max_norm)
        if scaler.get_scale() >= last:
            scheduler.step()
        last = scaler.get_scale()


HALVED = "scheduler.step runs after skipped steps, with another backoff_factor than 0.5"


@BANK.wrong(HALVED, "whether it is smaller than before")
def asks_whether_the_scale_is_halved(*args):
    with_schedule(args, lambda before, after: after != before / 2)


@BANK.wrong(HALVED, same_as="asks_whether_the_scale_is_halved")
def asks_for_more_than_half_the_scale(*args):
    with_schedule(args, lambda before, after: after > before / 2)


def with_a_look(args, good):
    """A right epoch but for the schedule: good(optimizer, norm before clipping)."""
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm = args
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), max_norm)
        stepped = good(optimizer, norm)
        scaler.step(optimizer)
        scaler.update()
        if stepped:
            scheduler.step()


@BANK.wrong("scheduler.step runs after a step that was skipped for an inf", "isnan() is False for it")
def asks_whether_the_norm_is_nan(*args):
    with_a_look(args, lambda optimizer, norm: not norm.isnan())


@BANK.wrong("scheduler.step runs after a step that was skipped for one element", "ask all gradients, or the scale")
def looks_at_the_first_parameter(*args):
    with_a_look(args, lambda optimizer, norm: optimizer.param_groups[0]["params"][0].grad.isfinite().all())


@BANK.wrong("scheduler.step runs after a step that was skipped for one element", same_as="looks_at_the_first_parameter")
def looks_at_the_last_parameter(*args):
    with_a_look(args, lambda optimizer, norm: optimizer.param_groups[-1]["params"][-1].grad.isfinite().all())


@BANK.wrong("scheduler.step runs after a step that was skipped for one element", same_as="looks_at_the_first_parameter")
def looks_at_the_first_group(*args):
    with_a_look(args, lambda optimizer, norm: all(p.grad.isfinite().all() for p in optimizer.param_groups[0]["params"]))


@BANK.wrong("your function raised RuntimeError", "is left out where the step is")
def updates_only_after_a_step(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        if clip_grad_norm_(model.parameters(), max_norm).isfinite():
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()


@BANK.wrong("the scale does not fall with an overflow", "lowers the scale")
def updates_only_after_a_step_of_scaled_gradients(
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm
):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        if clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale()).isfinite():
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()


@BANK.wrong("an overflow in one micro-batch does not skip the step of its window, and only that", "is in .grad still")
def clears_only_after_a_step(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad()
    for window in windows(micro_batches, steps):
        backward(model, scaler, loss_fn, window, len(window))
        if finish(model, optimizer, scaler, max_norm):
            scheduler.step()
            optimizer.zero_grad()


@BANK.wrong("an overflow in one micro-batch does not skip the step of its window, and only that", "hides the overflow")
def makes_numbers_of_inf(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        for p in model.parameters():
            p.grad.nan_to_num_(0.0, 0.0, 0.0)
        if finish(model, optimizer, scaler, max_norm):
            scheduler.step()


@BANK.wrong("scheduler.step runs for every micro-batch", "counts updates of the weights")
def schedules_every_micro_batch(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            scheduler.step()
        finish(model, optimizer, scaler, max_norm)


@BANK.wrong("scheduler.step does not follow each step", "missing or stands outside the loop")
def never_schedules(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        finish(model, optimizer, scaler, max_norm)


@BANK.wrong("scheduler.step does not follow each step", "not epochs", same_as="never_schedules")
def schedules_once_an_epoch(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    never_schedules(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)
    scheduler.step()


@BANK.wrong("scheduler.step comes before the step", "the schedule follows the step")
def schedules_first(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        scheduler.step()
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        finish(model, optimizer, scaler, max_norm)


# --- wrong: autocast -----------------------------------------------------------------------------------


@BANK.wrong("the forward pass does not run under autocast", "a scaler does not switch it on")
def forgets_autocast(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            scaler.scale(loss_fn(model(x), y) / len(window)).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("the forward pass does not run under autocast", "another device", same_as="forgets_autocast")
def autocasts_the_gpu(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("later windows run with the weights of the first", "16-bit copies of the weights")
def one_autocast_for_the_epoch(*args):
    with autocast():
        train(*args)


@BANK.wrong("the loss is not under autocast", "the block ends after the model")
def takes_the_loss_outside(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            with autocast():
                outputs = model(x)
            scaler.scale(loss_fn(outputs, y) / len(window)).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("autocast runs in another dtype than bfloat16", "float16 is what a scaler is for")
def autocasts_to_float16(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("the model came back in another dtype", "rounds the caller's weights for good")
def converts_the_model(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    model.to(torch.bfloat16)
    halves = [(x.to(torch.bfloat16), y) for x, y in micro_batches]
    train(model, optimizer, scaler, scheduler, loss_fn, halves, steps, max_norm)


# --- wrong: the window ---------------------------------------------------------------------------------


def accumulate(args, *, divisor=len, clear="before the window"):
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm = args
    for window in windows(micro_batches, steps):
        if clear == "before the window":
            optimizer.zero_grad()
        for batch in window:
            if clear == "before each":
                optimizer.zero_grad()
            backward(model, scaler, loss_fn, [batch], divisor(window))
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("the last, incomplete window never makes a step", "leaves the rest in .grad")
def the_loop_of_the_web(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for i, (x, y) in enumerate(micro_batches):
        with autocast():
            loss = loss_fn(model(x), y) / steps
        scaler.scale(loss).backward()
        if (i + 1) % steps == 0:
            finish(model, optimizer, scaler, max_norm)
            scheduler.step()
            optimizer.zero_grad()


@BANK.wrong("the step comes at the wrong end of the window", "Count from one")
def steps_at_zero(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(micro_batches):
        held = min(steps, len(micro_batches) - i + i % steps)
        backward(model, scaler, loss_fn, [batch], held)
        if i % steps == 0:
            finish(model, optimizer, scaler, max_norm)
            scheduler.step()
            optimizer.zero_grad()


@BANK.wrong("the optimizer steps after every micro-batch", "take it out of that loop")
def steps_inside_the_window(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for batch in window:
            backward(model, scaler, loss_fn, [batch], len(window))
            finish(model, optimizer, scaler, max_norm)
            scheduler.step()


@BANK.wrong("the optimizer steps once, at the end of the epoch", "the windows run into each other")
def one_window_for_all(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad()
    for i, batch in enumerate(micro_batches):
        backward(model, scaler, loss_fn, [batch], min(steps, len(micro_batches) - i + i % steps))
    finish(model, optimizer, scaler, max_norm)
    scheduler.step()


@BANK.wrong("the gradients are cleared just before the step", "zero_grad stands between backward and step")
def clears_after_unscaling(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
        clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("the gradients are divided by the micro-batches of the whole epoch", "its own window")
def divides_by_the_epoch(*args):
    accumulate(args, divisor=lambda window: len(args[5]))


@BANK.wrong("the last window is divided by steps, though it holds fewer micro-batches", "shrinks its update to 2/3")
def divides_by_steps_anyway(*args):
    accumulate(args, divisor=lambda window: args[6])


@BANK.wrong("the gradients are added up and never divided", "the sum over the window")
def never_divides(*args):
    accumulate(args, divisor=lambda window: 1)


@BANK.wrong("the loss is another one than loss_fn", "whatever the caller has chosen")
def writes_the_loss_into_the_loop(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    loss_fn = nn.functional.cross_entropy
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)


@BANK.wrong("each update sees only the last micro-batch of its window", "throws away what was accumulated")
def clears_for_every_micro_batch(*args):
    accumulate(args, clear="before each")


@BANK.wrong("gradients of earlier windows are still in .grad", "nothing clears the gradients")
def never_clears(*args):
    accumulate(args, clear="")


@BANK.wrong("the optimizer steps after every micro-batch", "nothing is accumulated")
def does_not_accumulate(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, 1, max_norm)


@BANK.wrong("each update sees only the last micro-batch of its window", "throws away what was accumulated")
def clears_each_and_never_divides(*args):
    accumulate(args, clear="before each", divisor=lambda window: 1)


@BANK.wrong("several micro-batches went through the model at once", "which is what must not fit")
def concatenates_the_window(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    large = [tuple(map(torch.cat, zip(*window, strict=True))) for window in windows(micro_batches, steps)]
    train(model, optimizer, scaler, scheduler, loss_fn, large, 1, max_norm)


@BANK.wrong("the activations of several micro-batches are kept at once", "backward runs once for all of them")
def one_backward_for_the_window(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        with autocast():
            loss = sum(loss_fn(model(x), y) for x, y in window) / len(window)
        scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("the optimizer that was passed in never stepped", "replaced by another optimizer")
def uses_an_optimizer_of_its_own(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, own, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)


@BANK.wrong("the weights are not where the optimizer's steps lead", "updated by hand too")
def steps_by_hand_too(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad


def with_lines_for_the_rest(args, *, unscales=True, clips=True, asks=True):
    """The loop of tutorials, with the end of a window once more below it."""
    model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm = args
    rest = len(micro_batches) % steps
    optimizer.zero_grad()
    for i, batch in enumerate(micro_batches):
        backward(model, scaler, loss_fn, [batch], steps if i < len(micro_batches) - rest else rest)
        if (i + 1) % steps == 0:
            if finish(model, optimizer, scaler, max_norm):
                scheduler.step()
            optimizer.zero_grad()
    if rest:
        if unscales:
            scaler.unscale_(optimizer)
        if clips:
            clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not asks or scaler.get_scale() >= before:
            scheduler.step()


@BANK.right
def has_lines_for_the_rest(*args):
    with_lines_for_the_rest(args)


@BANK.wrong("the gradient of the last, short window is not clipped", "clipping is missing in those for the rest")
def does_not_clip_the_rest(*args):
    with_lines_for_the_rest(args, clips=False)


@BANK.wrong("the gradient of the last, short window is not clipped", same_as="does_not_clip_the_rest")
def neither_unscales_nor_clips_the_rest(*args):
    with_lines_for_the_rest(args, unscales=False, clips=False)


@BANK.wrong("the gradient of the last, short window is clipped while it is still scaled", "scaler.unscale_ is missing")
def does_not_unscale_the_rest(*args):
    with_lines_for_the_rest(args, unscales=False)


@BANK.wrong("scheduler.step runs after a skipped step of the last, short window", "stand twice")
def does_not_ask_whether_the_rest_was_skipped(*args):
    with_lines_for_the_rest(args, asks=False)


@BANK.wrong("the optimizer stepped 2 times, not 3", "the last one too")
def skips_a_window_of_one(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    left = micro_batches[:-1] if len(micro_batches) % steps == 1 else micro_batches
    train(model, optimizer, scaler, scheduler, loss_fn, left, steps, max_norm)


@BANK.wrong("what was in .grad before the call is counted in the first window", "the caller may have left some")
def clears_after_each_step_only(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        backward(model, scaler, loss_fn, window, len(window))
        if finish(model, optimizer, scaler, max_norm):
            scheduler.step()
        optimizer.zero_grad()


@BANK.wrong("the largest element is clipped to max_norm, not the norm", "norm_type=inf")
def clips_the_largest_element(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm, norm_type=float("inf"))
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


@BANK.wrong("the gradient is divided after it was clipped", same_as="divides_after_clipping")
def divides_the_norm_too(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        if finish(model, optimizer, scaler, max_norm / len(window)):
            scheduler.step()


@BANK.wrong("the model runs in evaluation mode", "switches dropout off")
def trains_in_evaluation_mode(model, *args):
    model.eval()
    train(model, *args)
    model.train()


@BANK.wrong("the outputs of several micro-batches are kept at once", "collected in a list")
def keeps_the_outputs(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    outputs = []

    def kept(out, y):
        outputs.append(out)
        return loss_fn(out, y)

    train(model, optimizer, scaler, scheduler, kept, micro_batches, steps, max_norm)


@BANK.wrong("something is returned", "holds on to its graph")
def returns_the_last_loss(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    losses = []

    def kept(out, y):
        losses.append(loss_fn(out, y))
        return losses[-1]

    train(model, optimizer, scaler, scheduler, kept, micro_batches, steps, max_norm)
    return losses[-1]


# --- with a GPU ----------------------------------------------------------------------------------------


def to_gpu(micro_batches):
    return [(x.to("cuda"), y.to("cuda")) for x, y in micro_batches]


@BANK.wrong("the model was moved to another device", "the caller's own model", on_gpu=True)
def leaves_the_model_on_the_gpu(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    model.to("cuda")
    for window in windows(to_gpu(micro_batches), steps):
        optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_fn(model(x), y) / len(window)
            scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)
        scheduler.step()


@BANK.wrong("your function raised RuntimeError", "where the model is", on_gpu=True)
def moves_the_data_and_not_the_model(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    train(model, optimizer, scaler, scheduler, loss_fn, to_gpu(micro_batches), steps, max_norm)


@BANK.wrong("the scaler that was passed in is not used", "a new scaler, or none", on_gpu=True)
def makes_a_scaler_for_the_gpu(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    scaler = torch.amp.GradScaler("cuda")
    train(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your function seeds a global random generator", "torch.random.fork_rng()")
def seeds_the_generator(*args):
    torch.manual_seed(42)
    train(*args)


@BANK.wrong(
    "your function changed its argument model: model.0.weight.requires_grad is False, not True",
    "requires_grad_() was used",
)
def freezes_the_first_layer_afterwards(model, *args):
    train(model, *args)
    model[0].requires_grad_(False)


@BANK.wrong("the first parameter group alone is clipped", "or over all groups")
def clips_one_group(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        backward(model, scaler, loss_fn, window, len(window))
        if finish(model, optimizer, scaler, max_norm, optimizer.param_groups[0]["params"]):
            scheduler.step()
