"""Answers to "mixed precision, clipping and a schedule": what runs once a window, and in which order."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop, move, swap
from torch import nn

from . import windows
from .windows import CLEAR, FIRST, LOOP, LOSS, STARTS

BANK = Bank("accumulation_amp", "train_epoch_amp")
SHARE = "/ len(window)"
AUTOCAST, BACKWARD = 'with torch.autocast("cpu", dtype=torch.bfloat16):', "scaler.scale(loss).backward()"
UNSCALE, CLIP, NORM = "scaler.unscale_(", "nn.utils.clip_grad_norm_(", "model.parameters(), max_norm"
BEFORE, STEP, UPDATE = "before = scaler", "scaler.step(", "scaler.update()"
GOOD, SCHEDULE = "scaler.get_scale() >= before:", "scheduler.step()"
ENDS = UNSCALE, CLIP, BEFORE, STEP, UPDATE, f"if {GOOD}", f"    {SCHEDULE}"
FINITE = "p.grad.isfinite().all()"
EACH = "[p.grad.div_(len(window)) for p in model.parameters()]"


def end_of_window(good):
    """The solution with another question before the schedule's step, asked before the scaler's."""
    return change("before = scaler.get_scale()", f"good = {good}"), change(GOOD, "good:")


def at_the_end(line):
    return change(f"            {SCHEDULE}", f"            {SCHEDULE}\n    {line}")


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def by_a_counter(model, optimizer, scaler, scheduler, loss_fn, micro_batches, steps, max_norm):
    optimizer.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(micro_batches):
        held = min(steps, len(micro_batches) - i + i % steps)
        for one, wanted in zip(x, y, strict=True):
            with torch.autocast(device_type=x.device.type):
                loss = loss_fn(model.forward(one[None]), wanted[None])
            (scaler.scale(loss) / held / len(x)).backward()
        if (i + 1) % steps == 0 or (i + 1) == len(micro_batches):
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
            if norm.isfinite():
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scheduler.step()
            else:
                scaler.unscale_(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)


BANK.right(
    (*end_of_window("all(p.grad.isfinite().all() for p in model.parameters())"),
     change(LOSS, "[loss_fn(outputs := model(x), y), loss_fn(outputs.detach(), y)][0]")),
    # the optimizer advances the schedule; divides and clips by hand
    (add("hook = optimizer.register_step_post_hook(lambda *_: scheduler.step())", before=FIRST), change(GOOD, "False:"),
     change(f" {SHARE}", ""), change(f"{CLIP}{NORM})", f"{EACH}; norm = torch.cat([p.grad.flatten() for p in "
     "model.parameters()]).norm().item(); [p.grad.mul_(min(1.0, max_norm / norm)) for p in model.parameters()]"),
     at_the_end("hook.remove()")),
)  # fmt: skip
BANK.mistakes(*windows.mistakes(
    shared=lambda text: change(f" {SHARE}", text), begin=AUTOCAST, step=STEP,
    inside=tuple(change(f"        {line}", f"            {line}") for line in ENDS),
    after=lambda line: at_the_end(f"    {line}"), at_the_end=at_the_end,
))  # fmt: skip

BANK.mistakes(
    ("the last, incomplete window never makes a step", "",  # in the loop of the web
     (add("if len(window) < steps: continue", before=UNSCALE), drop(CLEAR), at_the_end(f"    {CLEAR}"),
      change(GOOD, "True:"))),
    # --- the scaler ---
    ("unscale_ runs for every micro-batch",
     "it divides the gradients in place, so it may run once between two updates: after the last micro-batch of the "
     "window", move(UNSCALE, after=BACKWARD)),
    ("unscale_ and update run for every micro-batch",
     "a second unscale_ in a window divides what is accumulated by the scale again, and the pieces of a window must "
     "share one scale", add("scaler.unscale_(optimizer); scaler.update()", after=BACKWARD),
     (drop(UNSCALE), add("scaler.unscale_(optimizer); scaler.update()", after=BACKWARD))),
    ("update runs for every micro-batch", "update ends a step, so call it once after each scaler.step",
     move(UPDATE, after=BACKWARD)),
    ("update comes before the step", "update ends the scaler's step: it forgets that unscale_ has run",
     move(STEP, after=UPDATE)),
    ("update is missing", "without scaler.update() after scaler.step, all windows are one step for the scaler",
     drop(UPDATE)),
    ("update is left out after the last window", "without it the scale does not adapt: once for each step",
     change(UPDATE, "start + steps >= len(micro_batches) or scaler.update()")),
    ("unscale_ comes after the step", "unscale_ comes before scaler.step, and clipping between them",
     move(UNSCALE, after=STEP)),
    ("optimizer.step() is called directly", "it steps with what is in .grad, inf or NaN too: scaler.step skips then",
     change("scaler.step(optimizer)", "optimizer.step()")),
    ("nothing was scaled", "unscale_ and scaler.step need gradients from scaler.scale(loss).backward()",
     change(BACKWARD, "loss.backward()")),
    ("another scaler, or none, is used instead of the argument",
     "a scaler that should do nothing is the caller's choice, by enabled=False",
     add('scaler = torch.amp.GradScaler("cpu", enabled=False)', before=FIRST)),
    ("a scaler of its own, for the GPU, is used instead of the argument", "the scaler is an argument: use it",
     add('scaler = torch.amp.GradScaler("cuda")', before=FIRST)),
    ("one more step follows a last window that was full",
     "there is no gradient to step with: make a step for the rest only when micro-batches are left",
     change(STARTS, "range(0, len(micro_batches) + 1, steps)")),
    # --- clipping ---
    ("the gradients are clipped while they are still scaled",
     "the scaler multiplied them by its scale, so nearly every norm is above max_norm. Call scaler.unscale_(optimizer) "
     "once, then clip, then scaler.step", swap(UNSCALE, CLIP), drop(UNSCALE)),
    ("scaled gradients are clipped, after every micro-batch",
     "clip once per window, after scaler.unscale_(optimizer): a scaled norm is nearly always above max_norm",
     move(CLIP, after=BACKWARD)),
    ("clipping happens for every micro-batch",
     "clip the gradient of the window, once, before the step: clipping the pieces changes their weights",
     (move(CLIP, after=BACKWARD), change(NORM, NORM + " * scaler.get_scale()"))),
    ("the gradient is not clipped", "clip_grad_norm_ is missing, or comes after scaler.step",
     drop(CLIP), move(CLIP, after=STEP)),
    ("single elements are clipped, not the norm",
     "clip_grad_value_ changes the gradient's direction; clip_grad_norm_ keeps it and shortens the gradient",
     change("clip_grad_norm_", "clip_grad_value_")),
    ("the largest element is clipped to max_norm, not the norm",
     "norm_type=inf takes the largest element for the norm; the norm is the root of the sum of squares",
     change(NORM, NORM + ", float('inf')")),
    ("each parameter is clipped by itself",
     "the norm is that of all gradients together: one clip_grad_norm_ over model.parameters()",
     change(f"{CLIP}{NORM})", f"[{CLIP}p, max_norm) for p in model.parameters()]")),
    ("the first parameter group alone is clipped",
     "the norm is that of all gradients together: one clip_grad_norm_ over model.parameters(), or over all groups",
     change(NORM, "optimizer.param_groups[0]['params'], max_norm")),
    ("the gradient is divided after it was clipped",
     "clipping sees the sum over the window, and the division shrinks what it left; a divided max_norm does the same. "
     "Divide first, then clip to max_norm", (change(f" {SHARE}", ""), add(EACH, after=CLIP)),
     change(NORM, NORM + " / len(window)")),
    ("the gradient of the last, short window is not clipped",
     "the lines that end a window appear twice, and in those for the rest clipping is missing or comes after the "
     "step: end a short window like a full one",
     change(f"        {CLIP}", f"        if len(window) == steps: {CLIP}")),
    ("the gradient of the last, short window is clipped while it is still scaled",
     "the lines that end a window appear twice, and scaler.unscale_ is missing in those for the rest: end a short "
     "window like a full one", change(f"        {UNSCALE}", f"        if len(window) == steps: {UNSCALE}")),
    # --- the schedule, and steps that are skipped ---
    ("the schedule advances after a skipped step too",
     "the schedule counts updates of the weights, and a skipped step makes none. scaler.step does not say whether it "
     "stepped: compare scaler.get_scale() before and after scaler.update()", change(GOOD, "True:"),
     change(GOOD, "any(p.grad is not None for p in model.parameters()):"), move(UPDATE, after=SCHEDULE),
     change(GOOD, "loss.isfinite():")),
    ("the schedule does not advance after a step with which the scale grew",
     "after a skipped step the scale is smaller than before; after a good one it is the same, or larger where it grew: "
     "ask for >=", change(">= before", "== before")),
    ("the schedule advances only after a step with which the scale grew",
     "the scale may stay the same after a good step, and is smaller only after a skipped one: ask for >=",
     change(">= before", "> before")),
    ("the scale is compared with that of the window before",
     "the first window has nothing to compare with, and the first steps are the likeliest to be skipped, while the "
     "scale is too large: read scaler.get_scale() before scaler.update() in each window",
     (drop(BEFORE), add("before = 0.0", before=FIRST), add("        before = scaler.get_scale()", after=SCHEDULE),
      change("\n            before =", "\n        before ="))),
    ("a skipped step is noticed only if it halves the scale",
     "how far the scale falls depends on the scaler's backoff_factor: test whether it is smaller than before",
     change(">= before", "!= before / 2"), change(">= before", "> before / 2")),
    ("an inf in one element of the gradients is not noticed",
     "isnan() is False for an inf, which may be in any parameter: use isfinite() on all gradients, or test whether "
     "the scale has fallen",
     (*end_of_window("not norm.isnan()"), change(CLIP, "norm = " + CLIP)),
     end_of_window(FINITE.replace("p.grad", "next(model.parameters()).grad")),
     end_of_window(FINITE.replace("p.grad", "[*model.parameters()][-1].grad"))),
    ("an overflow is noticed in the gradients of one parameter group only", "look at all gradients, or at the scale",
     end_of_window(f"all({FINITE} for p in optimizer.param_groups[0]['params'])"),
     end_of_window(f"all({FINITE} for p in optimizer.param_groups[1]['params'])")),
    ("update is left out where the step is skipped",
     "it ends each window, stepped or not: it lowers the scale, or else the next window overflows too",
     (change(CLIP, "norm = " + CLIP), add("if not norm.isfinite(): continue", before=BEFORE))),
    ("update is left out where the step is skipped, and nothing is unscaled",
     "it ends each window, stepped or not: it lowers the scale, or else the next window overflows too",
     (drop(UNSCALE), change(f"{CLIP}{NORM}", f"norm = {CLIP}{NORM} * scaler.get_scale()"),
      add("if not norm.isfinite(): continue", before=BEFORE))),
    ("an overflow is still in .grad when the next window begins",
     "clear the gradients at the start of each window, stepped or not",
     (move(CLEAR, before=FIRST), add("optimizer.zero_grad()", after=SCHEDULE))),
    ("an overflow is hidden from the scaler",
     "it looks for inf in .grad, lowers the scale and skips. With a nan_to_num, the step is made with what is left of "
     "the gradient, and the scale stays too high",
     add("[p.grad.nan_to_num_(0.0, 0.0, 0.0) for p in model.parameters()]", before=UNSCALE)),
    ("the schedule advances for every micro-batch", "it counts updates of the weights, not micro-batches",
     (drop(SCHEDULE), drop(GOOD), add("scheduler.step()", after=BACKWARD))),
    ("the schedule advances before the step", "the first step would run at the second learning rate",
     (drop(SCHEDULE), drop(GOOD), add(SCHEDULE, before=CLEAR))),
    ("the schedule never advances", "scheduler.step() is missing: the schedule counts updates of the weights",
     change(GOOD, "False:")),
    ("the schedule advances once, after the epoch", "the schedule counts updates of the weights, not epochs",
     (drop(GOOD), change(f"            {SCHEDULE}", f"    {SCHEDULE}"))),
    ("the last, short window advances the schedule, skipped or not",
     "the lines that end a window appear twice, and those for the rest do not test whether the step was skipped",
     change(GOOD, "len(window) < steps or scaler.get_scale() >= before:")),
    # --- autocast ---
    ("the forward pass does not run under autocast",
     "without it everything is float32: a scaler does not switch autocast on, and a block for another device, such as "
     "cuda, has no effect here", change(AUTOCAST, "if True:"), change('autocast("cpu"', 'autocast("cuda"')),
    ("the loss is not under autocast",
     "the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits; inside the block "
     "autocast takes the loss in float32",
     change(f"    loss = {LOSS}", "    outputs = model(x)\n            loss = loss_fn(outputs, y)")),
    ("autocast runs in another dtype than bfloat16",
     "float16 needs a scaler, and is a GPU's default; this exercise asks for bfloat16 on the CPU",
     change("dtype=torch.bfloat16", "dtype=torch.float16")),
    ("later windows run with the weights of the first",
     "one autocast block around the whole epoch keeps its 16-bit copies of the weights after a step has changed them: "
     "open it for each forward pass",
     (change(AUTOCAST, "if True:"), add("cast = torch.autocast('cpu', torch.bfloat16); cast.__enter__()", before=FIRST),
      at_the_end("cast.__exit__(None, None, None)"))),
    ("the activations of several micro-batches are kept at once",
     "losses are added up and backward runs once for all of them: call backward for each micro-batch",
     (change(BACKWARD, "total = total + loss"), add("total = 0", before=LOOP),
      add("scaler.scale(total).backward()", before=UNSCALE))),
    ("something is returned", "a loss that was not detached holds its graph, and the last micro-batch's loss is not "
                              "that of the epoch", at_the_end("return loss")),
)  # fmt: skip
