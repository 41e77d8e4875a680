"""Answers to "one step, in the right order": scaler, clipping, schedule, and what is returned."""

from banks.bank import Bank
from banks.edits import add, change, drop, move, swap

BANK = Bank("amp_step", "train_step")
CLIP, UNSCALE, STEP, FELL, RETURN = "clip_grad_norm_", "unscale_", "scaler.step(", ">= before", "loss.item(), stepped"
BLOCK, FORWARD, BACKWARD = "with torch.autocast(x.device.type, dtype=dtype):", "loss_fn(model(x), y)", ".backward()"
GRADS = "p.grad for p in model.parameters() if p.grad is not None"
NORM = change("    nn.utils.clip_grad_norm_", "    norm = nn.utils.clip_grad_norm_")
TEST = "scaler.get_scale() >= before"
BANK.right(
    # counts the optimizer's steps; clears late, and to zeros; the schedule before update
    (change("optimizer.zero_grad()", "done = []"),
     add("hook = optimizer.register_step_post_hook(lambda *_: done.append(True))", after="done = []"),
     add("optimizer.zero_grad(set_to_none=False)", before=BACKWARD), change(TEST, "bool(done)"),
     add("hook.remove()", after=STEP), move("scaler.update()", before="return")),
    # leaves out unscale_: the limit is scaled instead
    (drop(UNSCALE), change("model.parameters(), max_norm", "model.parameters(), max_norm * scaler.get_scale()")),
    # looks at the norm; skips by itself
    (NORM, change("scaler.step(optimizer)", "if norm.isfinite():\n        optimizer.step()"),
     change(TEST, "bool(norm.isfinite())")),
)  # fmt: skip

# --- unscale and clip ----------------------------------------------------------------------------------
BANK.mistakes(
    ("the gradients are clipped while they are still scaled",
     "the scaler multiplied them by its scale, so nearly every norm is above max_norm: unscale_ first",
     swap(CLIP, UNSCALE), drop(UNSCALE)),
    ("unscale_ runs twice in a step", "unscale_ divides in place, so it runs once between two updates",
     add("scaler.unscale_(optimizer)", after=CLIP)),
    ("unscale_ comes after the step", "unscale_ comes before scaler.step, and clipping between them",
     (move(UNSCALE, after=STEP), move(CLIP, after=UNSCALE))),
    ("the gradient is not clipped", "clip_grad_norm_ is missing, comes after the step, or comes before backward",
     drop(CLIP)),
    ("single elements are clipped, not the norm",
     "clip_grad_value_ changes the gradient's direction; clip_grad_norm_ keeps it and shortens the gradient",
     change(CLIP, "clip_grad_value_")),
    ("the gradient is clipped to another norm than max_norm", "the norm is an argument of the step: pass it on",
     change("model.parameters(), max_norm", "model.parameters(), 1.0")),
    ("only the first parameter group is clipped",
     "an optimizer may have several groups: clip what the model's parameters() gives",
     change("model.parameters()", 'optimizer.param_groups[0]["params"]')),
    ("the optimizer steps although the gradients overflow",
     "scaler.step skips by itself if the gradients are scaled by the scaler that was passed in, and inf "
     "is not clipped or replaced before", add(f"[g.nan_to_num_(0, 0, 0) for g in [{GRADS}]]", before=UNSCALE)),
    ("gradients that were there before are counted too",
     "clear them before backward: zero_grad is missing, or comes after the step only", drop("zero_grad")),
    ("the gradients are gone at the step", "zero_grad is between backward and step: put it before backward",
     move("zero_grad", after=BACKWARD)),
    ("something besides the optimizer's step changes the weights",
     "weight decay, EMA and the like are not part of this step",
     add("[p.data.mul_(0.99) for p in model.parameters()]", after="scaler.update()")),
)  # fmt: skip

# --- the scaler and the schedule -----------------------------------------------------------------------
BANK.mistakes(
    ("optimizer.step() is called directly", "it steps with whatever is in .grad: scaled numbers, or inf",
     change("scaler.step(optimizer)", "optimizer.step()")),
    ("scaler.update() is missing", "without it the scale never adapts, and the next unscale_ raises",
     drop("scaler.update()")),
    ("the scale falls after an overflow, and never grows",
     "the scaler's update() grows the scale after growth_interval good steps; update(new_scale) sets it, and forgets "
     "the steps counted",
     change("scaler.update()", f"fine = all(g.isfinite().all() for g in [{GRADS}])\n    "
            "scaler.update(before if fine else before * scaler.get_backoff_factor())")),
    ("scaler.update comes before scaler.step",
     "update ends the scaler's step: it forgets that unscale_ has run and what was found",
     move("scaler.update()", before="before = ")),
    ("the gradients are divided by the scale although the loss was not scaled",
     "backward runs on scaler.scale(loss), not on the loss",
     change("scaler.scale(loss).backward()", "scaler.scale(loss)\n    loss.backward()")),
    ("nothing was scaled", "unscale_ and step need gradients from scaler.scale(loss).backward()",
     change("scaler.scale(loss).backward()", "loss.backward()")),
    ("the schedule advances after a skipped step",
     "the schedule counts updates of the weights: advance it only where the optimizer stepped",
     change("if stepped:", "if True:"), change("if stepped:", "if loss.isfinite():")),
    ("the schedule advances before the step", "the first step would run at the second learning rate",
     (NORM, change("    if stepped:\n        scheduler.step()\n", ""),
      add("scheduler.step() if norm.isfinite() else None", before=STEP))),
    ("an overflow is noticed in one parameter's gradient only",
     "the scaler skips the step for one inf in any of them: compare the scale, or look at all gradients",
     change(TEST, f"bool([{GRADS}][-1].isfinite().all())"), change(TEST, f"bool([{GRADS}][0].isfinite().all())")),
    ("an inf in the gradients is not noticed",
     "an overflow gives inf, and so does the norm; NaN only comes from computing with inf: use norm.isfinite()",
     (NORM, change(TEST, "not bool(norm.isnan())"))),
    ("a skipped step is treated as one that happened",
     "the loss may be finite, and backoff_factor not 0.5: a step was skipped if the scale is smaller afterwards",
     change(FELL, "> before / 2"), change(TEST, "True")),
    ("a step in which the scale grew is treated as skipped",
     "after a step the scale is the same or larger; only after an overflow is it smaller. A disabled scaler's is "
     "always 1", change(FELL, "== before")),
    ("a step with a disabled scaler is treated as skipped",
     "a disabled scaler has the scale 1, and the optimizer steps every time",
     change(FELL, ">= before and scaler.is_enabled()")),
)  # fmt: skip

# --- autocast ------------------------------------------------------------------------------------------
BANK.mistakes(
    ("the forward pass does not run under autocast",
     "the block is missing: model and loss stand in torch.autocast(x.device.type, dtype=dtype)",
     change(BLOCK, "if True:")),
    ("autocast is switched on for another device",
     'torch.autocast("cuda") does nothing for a model on the CPU: use x.device.type',
     change("x.device.type", '"cuda"')),
    ("autocast runs in bfloat16, whatever dtype says", "pass the argument on: dtype=dtype",
     change("dtype=dtype", "dtype=torch.bfloat16")),
    ("autocast runs in its default dtype",
     "without dtype= autocast takes float16 on a GPU and bfloat16 on the CPU: pass the argument on",
     change(", dtype=dtype", "")),
    ("the loss is not under autocast",
     "the block ends after the model, so the loss of its 16-bit outputs is computed in 16 bits",
     change(f"loss = {FORWARD}", "outputs = model(x)\n    loss = loss_fn(outputs, y)")),
    ("backward runs under autocast",
     "each backward op uses its forward op's dtype by itself; the block holds the forward pass and the loss",
     change("    scaler.scale(loss).backward()", "        scaler.scale(loss).backward()")),
    ("the model came back in another dtype",
     "half() or to(dtype) rounds the caller's weights permanently, even if the step then fails: keep the parameters "
     "float32, autocast casts copies", change("model(x)", "model.to(dtype)(x)")),
    ("the data are converted by hand",
     "with autocast convert neither data nor model: it casts what each operation takes",
     (change(BLOCK, "if True:"), change("model(x)", "model(x.to(dtype))"))),
    ("the model was moved to another device",
     "model and x are on the right device already: move nothing",
     change(FORWARD, 'loss_fn(model.to("cuda:0")(x.to("cuda:0")), y.to("cuda:0"))')),
)  # fmt: skip

# --- the loss, and what is returned --------------------------------------------------------------------
BANK.mistakes(
    ("the loss function that was passed in is not used", "loss_fn(outputs, targets) is an argument of the step",
     change(FORWARD, "nn.functional.cross_entropy(model(x), y)")),
    ("the model runs twice in a step",
     "one forward pass gives the loss for backward, and its value for the log: loss.item()",
     change(f"loss = {FORWARD}", f"loss = {FORWARD}\n        loss = {FORWARD}")),
    ("what is returned is not a pair", "the function ends without a return", drop("return ")),
    ("the loss is not returned as a float", "a tensor: call .item(), or float()",
     change("loss.item()", "loss.detach()")),
    ("whether the optimizer stepped is returned as a tensor",
     "norm.isfinite() and the like are tensors, on the GPU perhaps: call .item(), or bool()",
     change(RETURN, "loss.item(), torch.tensor(stepped)")),
    ("whether the optimizer stepped is not returned as a bool", "scaler.step returns what optimizer.step returns: None",
     change(RETURN, "loss.item(), None")),
    ("the loss that is returned is rounded", "return it as it is, and round where it is printed",
     change(RETURN, "round(loss.item(), 1), stepped")),
    ("the loss that is returned is scaled", "scaler.scale(loss) is for backward; log the loss itself",
     change("scaler.scale(loss).backward()", "loss = scaler.scale(loss)\n    loss.backward()")),
    ("a skipped step is reported as one that happened",
     "the loss is finite although its scaled gradients overflow: compare the scale before and after update",
     change(RETURN, "loss.item(), bool(loss.isfinite())")),
    ("a step that happened is reported as skipped",
     "the scale falls when a step was skipped, and may grow when it was not",
     change(RETURN, "loss.item(), scaler.get_scale() == before")),
    ("your function changed its argument optimizer: it has a hook that it did not have", "keep the handle",
     add("optimizer.register_step_post_hook(lambda *_: None)", before="zero_grad")),
)  # fmt: skip
