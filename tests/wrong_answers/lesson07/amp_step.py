"""Answers to "one step, in the right order": scaler, clipping, schedule, and what is returned."""

import math

import torch
from torch import nn

from gpulab.check.lesson07.sections import SECTIONS

from ..bank import Bank

BANK = Bank("amp_step", SECTIONS)


def forward(model, loss_fn, x, y, dtype):
    with torch.autocast(x.device.type, dtype=dtype):
        return loss_fn(model(x), y)


def finish(optimizer, scaler, scheduler, loss):
    """Step, update, schedule; the pair that is returned."""
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
    return loss.item(), stepped


def clip(model, max_norm):
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.right
def counts_the_optimizers_steps(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    done = []
    hook = optimizer.register_step_post_hook(lambda *_: done.append(True))
    try:
        with torch.autocast(device_type=x.device.type, dtype=dtype):
            loss = loss_fn(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        if done:
            scheduler.step()
        scaler.update()
    finally:
        hook.remove()
    return float(loss.detach()), bool(done)


@BANK.right
def clips_by_hand(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    for p in model.parameters():
        p.grad = None
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
    if math.isfinite(norm) and norm > max_norm:
        for g in gradients:
            g *= max_norm / norm
    return finish(optimizer, scaler, scheduler, loss)


@BANK.right
def clips_with_a_scaled_limit(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    clip(model, max_norm * scaler.get_scale())
    return finish(optimizer, scaler, scheduler, loss)


@BANK.right
def clears_at_the_end_too(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    model.zero_grad()
    result = in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)
    optimizer.zero_grad()
    return result


# --- wrong: unscale and clip ---------------------------------------------------------------------------


@BANK.wrong("the gradients are clipped while they are still scaled", "unscale_ first")
def clips_before_unscale(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    clip(model, max_norm)
    scaler.unscale_(optimizer)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("the gradients are clipped while they are still scaled", "unscale_ first", same_as="clips_before_unscale")
def never_unscales(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("your function raised RuntimeError", "once between two updates")
def unscales_twice(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    scaler.unscale_(optimizer)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("your function raised RuntimeError", "comes before scaler.step")
def unscales_after_the_step(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    scaler.update()
    scheduler.step()
    return loss.item(), True


@BANK.wrong("the gradient is not clipped", "clip_grad_norm_ is missing")
def never_clips(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("single elements are clipped, not the norm", "another direction")
def clips_values(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_value_(model.parameters(), max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("the optimizer steps although the gradients overflow", "not clipped or replaced before")
def cleans_the_gradients(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


# --- wrong: the scaler ---------------------------------------------------------------------------------


@BANK.wrong("optimizer.step() is called directly", "scaled numbers, or inf")
def steps_directly(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    optimizer.step()
    scaler.update()
    scheduler.step()
    return loss.item(), True


@BANK.wrong("scaler.update() is missing", "the scale never adapts")
def never_updates(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    scaler.step(optimizer)
    scheduler.step()
    return loss.item(), True


@BANK.wrong("your function raised AssertionError", "it ends the scaler's step")
def updates_first(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.update()
    scaler.step(optimizer)
    scheduler.step()
    return loss.item(), True


@BANK.wrong("scaler.update() comes before the step", "what was found")
def updates_before_the_step(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scale = scaler.get_scale()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    scaler.update()
    for p in model.parameters():
        p.grad *= scaler.get_scale()
    scaler.step(optimizer)
    stepped = scaler.get_scale() >= scale
    if stepped:
        scheduler.step()
    return loss.item(), stepped


@BANK.wrong("the gradients are divided by the scale although the loss was not scaled", "on scaler.scale(loss)")
def never_scales(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss)
    loss.backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("your function raised AssertionError", "nothing was scaled")
def forgets_the_scale(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    loss.backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("the schedule advances after a skipped step", "only where the optimizer stepped")
def always_advances(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.item(), scaler.get_scale() >= before


@BANK.wrong("the schedule does not advance with the step", "may be the same or larger")
def takes_a_larger_scale_for_a_skip(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() == before
    if stepped:
        scheduler.step()
    return loss.item(), stepped


@BANK.wrong("the schedule advances before the step", "the second learning rate")
def advances_first(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = clip(model, max_norm)
    stepped = bool(norm.isfinite())
    if stepped:
        scheduler.step()
    scaler.step(optimizer)
    scaler.update()
    return loss.item(), stepped


@BANK.wrong("the schedule advances after a skipped step", "only where the optimizer stepped", same_as="always_advances")
def looks_at_the_loss(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    scaler.step(optimizer)
    scaler.update()
    stepped = math.isfinite(loss.item())
    if stepped:
        scheduler.step()
    return loss.item(), stepped


# --- wrong: autocast -----------------------------------------------------------------------------------


@BANK.wrong("the forward pass does not run under autocast", "ask x.device.type")
def without_autocast(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("the forward pass does not run under autocast", "ask x.device.type", same_as="without_autocast")
def always_for_cuda(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=dtype):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("autocast runs in another dtype than the one asked for", "pass the argument on")
def always_bf16(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    return in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, torch.bfloat16, max_norm)


@BANK.wrong("the loss is not under autocast", "computed in 16 bits")
def loss_outside(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype):
        outputs = model(x)
    loss = loss_fn(outputs, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("backward runs under autocast", "takes its forward's dtype by itself")
def backward_inside(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=dtype):
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("your function raised ValueError", "the parameters stay float32")
def converts_the_model(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    return in_order(model.to(dtype), optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)


@BANK.wrong("your function raised RuntimeError", "with autocast convert neither")
def converts_the_data(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = loss_fn(model(x.to(dtype)), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


# --- wrong: gradients and loss -------------------------------------------------------------------------


@BANK.wrong("gradients that were there before are counted too", "zero_grad is missing")
def never_clears(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("your function raised AssertionError", "stands between backward and step")
def clears_too_late(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("the loss function that was passed in is not used")
def has_its_own_loss(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    return in_order(model, optimizer, scaler, scheduler, nn.functional.cross_entropy, x, y, dtype, max_norm)


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("what is returned is no pair", "without a return")
def returns_nothing(*args):
    in_order(*args)


@BANK.wrong("the loss is not returned as a float", "call .item()")
def returns_a_tensor(*args):
    loss, stepped = in_order(*args)
    return torch.tensor(loss), stepped


@BANK.wrong("the loss that is returned is scaled", "log the loss itself")
def returns_the_scaled_loss(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = scaler.scale(forward(model, loss_fn, x, y, dtype))
    loss.backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    return finish(optimizer, scaler, scheduler, loss)


@BANK.wrong("whether the optimizer stepped is not returned as a bool", "None")
def returns_what_step_returns(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    optimizer.zero_grad()
    loss = forward(model, loss_fn, x, y, dtype)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(model, max_norm)
    stepped = scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.item(), stepped


@BANK.wrong("a skipped step is reported as one that happened", "compare the scale before and after update")
def reports_a_finite_loss(*args):
    loss, _ = in_order(*args)
    return loss, math.isfinite(loss)


@BANK.wrong("a step that happened is reported as skipped", "may grow when it was not")
def reports_a_larger_scale_as_a_skip(model, optimizer, scaler, *rest):
    before = scaler.get_scale()
    loss, _ = in_order(model, optimizer, scaler, *rest)
    return loss, scaler.get_scale() == before


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your function seeds a global random generator", "torch.random.fork_rng()")
def seeds_so_that_runs_can_be_compared(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    torch.manual_seed(42)
    return in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)


@BANK.wrong("your function changed its argument model: it is left in eval mode", "put it back in a finally")
def leaves_the_model_in_eval_mode(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    found = in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)
    model.eval()
    return found


@BANK.wrong("your function changed its argument optimizer: it has a hook that it did not have", "keep the handle")
def leaves_a_hook_on_the_optimizer(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm):
    done = []
    optimizer.register_step_post_hook(lambda *_: done.append(True))
    return in_order(model, optimizer, scaler, scheduler, loss_fn, x, y, dtype, max_norm)
