"""Answers to "an epoch whose last window is short": the loop, and the mean loss that it reports."""

import functools
import itertools

import torch

from ..bank import Bank
from ..edits import add, change, drop, move

BANK = Bank("accumulation_window", "train_epoch")
STARTS, WINDOW = "range(0, len(micro_batches), steps)", "micro_batches[start : start + steps]"
HELD, SHARE = "in_window = sum(len(x) for x, _ in window)", "loss * len(x) / in_window"
BACKWARD, LOOP, LOSS = f"({SHARE}).backward()", "for x, y in window:", "loss_fn(model(x), y)"
TOTAL, MEAN, RETURN = "loss.detach() * len(x)  #", "(total / samples).item()", "return (total"
FULL, CLEAR, STEP, BEGIN = "(i + 1) % steps == 0", "optimizer.zero_grad()", "optimizer.step()", "total, samples = "


def steps_if(condition, share="loss * len(x) / sum(len(a) for a, _ in window[i - i % steps :][:steps])"):
    """The solution as one loop over all micro-batches, with a step where this holds of the number `i` of one."""
    step = f"    if {condition}: optimizer.step(); optimizer.zero_grad()"
    loop = change(LOOP, "for i, (x, y) in enumerate(window):"), change(SHARE, share)
    return change(STARTS, "[0]"), change(WINDOW, "micro_batches"), *loop, change(STEP, step)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def gradients_from_autograd_grad(model, optimizer, loss_fn, micro_batches, steps):
    parameters, total, left = list(model.parameters()), 0.0, iter(micro_batches)
    while window := list(itertools.islice(left, steps)):
        sums = [torch.zeros_like(p) for p in parameters]
        for x, y in window:
            loss = loss_fn(model(x), y)
            for so_far, g in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                so_far.add_(g, alpha=len(x))
            total += float(loss.detach()) * len(x)
        for p, so_far in zip(parameters, sums, strict=True):
            p.grad = so_far / sum(len(x) for x, _ in window)
        optimizer.step()
    return total / sum(len(x) for x, _ in micro_batches)


@BANK.right
def a_closure_for_the_optimizer(model, optimizer, loss_fn, micro_batches, steps):
    losses = []

    def run(window):
        optimizer.zero_grad(set_to_none=False)
        held = sum(len(x) for x, _ in window)
        for x, y in window:
            loss = loss_fn(model.forward(x), y) * (len(x) / held)
            loss.backward()
            losses.append(loss.item() * held)
        return 0.0

    for start in range(0, len(micro_batches), steps):
        optimizer.step(functools.partial(run, micro_batches[start : start + steps]))
    return sum(losses) / sum(len(x) for x, _ in micro_batches)


@BANK.right
def one_sample_at_a_time(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for i in range(len(micro_batches)):
        if i % steps == 0:
            model.zero_grad()
        held = sum(len(x) for x, _ in micro_batches[i - i % steps :][:steps])
        for x, y in zip(*micro_batches[i], strict=True):
            losses.append(loss_fn(model(x[None]), y[None]))
            (losses[-1] / held).backward()
        if (i + 1) % steps == 0 or i + 1 == len(micro_batches):
            optimizer.step()
    return torch.stack(losses).mean().item()


# --- wrong: where windows end --------------------------------------------------------------------------
BANK.mistakes(
    ("the last, incomplete window never makes a step",
     "a step only when (i + 1) % steps == 0 leaves the rest in .grad, where it is lost or, worse, counted in the next "
     "epoch", steps_if(FULL),
     steps_if(FULL, "loss / steps"), (drop(CLEAR), *steps_if(FULL, "loss / steps")),
     change(STARTS, "range(0, len(micro_batches) // steps * steps, steps)"),
     (change(STARTS, "range(0, len(micro_batches) // steps * steps, steps)"), change("0.0, 0", "0, 0"))),
    ("the step comes at the wrong end of the window",
     "i % steps == 0 is true for i = 0: the first update sees one micro-batch. Count from one: (i + 1) % steps",
     steps_if("i % steps == 0")),
    ("the windows end one micro-batch late",
     "i > 0 and i % steps == 0 is true after steps + 1 micro-batches the first time. Count from one: (i + 1) % steps",
     steps_if("i > 0 and i % steps == 0")),
    ("the optimizer steps after every micro-batch",
     "nothing is accumulated: the step belongs behind the inner loop, or behind the test for the window's end",
     change(STEP, "    optimizer.step()"), add("steps = 1", before=BEGIN)),
    ("the optimizer steps once, at the end of the epoch",
     "the windows run into each other: step and clear after every `steps` micro-batches, inside the loop",
     steps_if("i + 1 == len(window)")),
    ("one more step follows a last window that was full",
     "the step for the rest runs even where there is no rest; with momentum or weight decay it moves the weights. Make "
     "it only when micro-batches are left", change(STARTS, "range(0, len(micro_batches) + 1, steps)")),
    ("a last window of a single micro-batch makes no step",
     "what is left is a window, also if it is one micro-batch: its samples are in the epoch as others are",
     change(STARTS, "range(0, max(1, len(micro_batches) - (steps > 1)), steps)")),
    ("a single micro-batch that is left is put into the window before it",
     "a window has `steps` micro-batches, and what is left is one of its own, however few",
     (change(WINDOW, "micro_batches[start : start + steps + (1 < steps == len(micro_batches) - start - 1)]"),
      change(STARTS, "range(0, max(1, len(micro_batches) - (steps > 1)), steps)"))),
    ("the optimizer steps twice in a window", "one step when a window ends", add(STEP, after=STEP)),
    ("the optimizer that was passed in never steps",
     "it is replaced by another optimizer, or by an update by hand: call step() of the argument",
     add("optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)", before=BEGIN), drop(STEP)),
)  # fmt: skip

# --- wrong: gradients ----------------------------------------------------------------------------------
BANK.mistakes(
    ("each update sees only the last micro-batch of its window",
     "zero_grad runs for every micro-batch and throws away what was accumulated; clear once a window",
     move(CLEAR, before=f"loss = {LOSS}"), (move(CLEAR, before=f"loss = {LOSS}"), change(SHARE, "loss / steps"))),
    ("gradients of earlier windows are still in .grad",
     "nothing clears the gradients after a step, so each update repeats the ones before it", drop(CLEAR)),
    ("the gradients are cleared just before the step",
     "the gradient is zero at the step: zero_grad stands between backward and step, or there is no backward",
     move(CLEAR, before=STEP)),
    ("what was in .grad before the call is counted in the first window",
     "clear the gradients before the first window too: the caller may have left some", move(CLEAR, after=STEP)),
    ("gradients are cleared in the first parameter group only",
     "an optimizer may have several groups: optimizer.zero_grad() clears all of them",
     change(CLEAR, "for p in optimizer.param_groups[0]['params']: p.grad = None")),
    ("the last window is divided by steps, though it may hold fewer micro-batches",
     "dividing by steps shrinks the update of a window that holds fewer: divide by what the window holds",
     change(SHARE, "loss / steps")),
    ("every window is taken for a full one",
     "steps micro-batches of the usual size are not what a short window holds: add up its samples",
     change(HELD, "in_window = steps * len(micro_batches[0][0])")),
    ("micro-batches of different size count the same",
     "the mean of the micro-batches' means is not the mean over the samples when the last one is smaller. Weight each "
     "by its number of samples", change(SHARE, "loss / len(window)")),
    ("the gradients are added up and never divided",
     "backward adds to .grad; without a division the update is the sum over the window, so its size grows with the "
     "number of micro-batches", change(SHARE, "loss")),
    ("the summed losses of the samples are never divided",
     "loss * len(x) is a sum over samples: divide by the samples of the window", change(SHARE, "loss * len(x)")),
    ("the gradients are divided by the micro-batches of the whole epoch",
     "an update is the mean over its own window: divide by what the window holds, not by len(micro_batches)",
     change(SHARE, "loss / len(micro_batches)")),
    ("the gradients are divided by the samples of the whole epoch",
     "an update is the mean over its own window: divide by the window's samples",
     change(SHARE, "loss * len(x) / sum(len(a) for a, _ in micro_batches)")),
    ("the gradients are divided after every micro-batch",
     "what is in .grad is divided again each time, so the first micro-batch counts least. Divide each loss before "
     "backward, or the sum once at the end of the window",
     change(BACKWARD, "loss.backward()\n            for p in model.parameters(): p.grad /= len(window)")),
    ("loss and gradient are both divided", "divide each loss before backward, or the sum at the end of the window",
     add("for p in model.parameters(): p.grad /= len(window)", before=STEP),
     (change(SHARE, "loss / len(window)"), add("for p in model.parameters(): p.grad /= len(window)", before=STEP))),
    ("the gradient is clipped", "nobody asks for that here: the step uses the gradient as it is",
     add("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", before=STEP)),
    ("the loss is another one than loss_fn",
     "F.cross_entropy is written into the loop: call loss_fn(outputs, targets), whatever the caller has chosen",
     change(LOSS, "F.cross_entropy(model(x), y)")),
    ("the forward pass runs under autocast",
     "autocast rounds the weights of a model in float32 to 16 bits, and the gradient is that of rounded ones. Nobody "
     "asks for it here: exercise 3 does",
     change(f"loss = {LOSS}", f"with torch.autocast(x.device.type, torch.bfloat16): loss = {LOSS}"),
     (add("cast = torch.autocast('cpu', torch.bfloat16); cast.__enter__()", before=BEGIN),
      add("cast.__exit__(None, None, None)", before=RETURN))),
    ("the gradient holds NaN", "something divides by zero, such as len(x) // steps where the window holds less",
     change(SHARE, "loss * (len(x) // steps) / torch.tensor(float(len(x) // steps))")),
    ("the number of micro-batches that are left divides, also where it is 0",
     "len(micro_batches) % steps is 0 when the last window is full",
     change(HELD, HELD + " / (len(micro_batches) % steps) * (len(micro_batches) % steps)")),
    ("backward runs on a running total",
     "an earlier backward has freed its graphs: call backward on the loss of this micro-batch alone",
     (change("total += loss.detach()", "total = total + loss"), change(BACKWARD, "pass"),
      add("(total / steps).backward()", before="samples +="))),
)  # fmt: skip

# --- wrong: memory, and what moves the weights ---------------------------------------------------------
BANK.mistakes(
    ("several micro-batches go through the model at once",
     "the gradient is right, but the memory is that of the large batch, which is what must not fit",
     change(LOOP, "for x, y in [tuple(map(torch.cat, zip(*window)))]:")),
    ("the activations of several micro-batches are kept at once",
     "losses are added up and backward runs once for all of them, or retain_graph keeps each graph. Call backward for "
     "each micro-batch, and let its graph go",
     (change(BACKWARD, "mean = mean + loss * len(x) / in_window"), change(HELD, HELD + "; mean = 0"),
      add("mean.backward()", before=STEP)),
     (change("backward()", "backward(retain_graph=True); kept.append(loss)"), add("kept = []", before=BEGIN))),
    ("the outputs of several micro-batches are kept at once",
     "outputs are collected in a list, as for a report: take from each the number that is wanted, and let it go. An "
     "output, detached or not, is as large as its micro-batch",
     (add("kept = []", before=BEGIN), change(f"loss = {LOSS}", "kept.append(model(x)); loss = loss_fn(kept[-1], y)"),
      change(BACKWARD, BACKWARD + "; kept[-1] = kept[-1].detach()"))),
    ("the weights are moved beside the optimizer's step",
     "they are updated by hand too, or the learning rate is another while the function runs",
     add("with torch.no_grad(): [p.sub_(0.1 * p.grad) for p in model.parameters()]", after=STEP)),
    ("the model was moved to another device",
     "the caller's own model, whose optimizer steps next: micro-batches go to where the model is",
     (change("model(x)", 'model.to("cuda:0")(x.to("cuda:0"))'), change(", y)", ', y.to("cuda:0"))'))),
    ("the model came back in another dtype", "to(dtype) changes the caller's own model",
     change("model(x)", "model.to(torch.bfloat16)(x.bfloat16())")),
    ("the data are moved, and the model is not", "they are where the model is: nothing need be moved",
     change("model(x)", 'model(x.to("cuda:0"))')),
    ("the model runs in evaluation mode, and is put back",
     "eval() switches dropout off, and lets BatchNorm normalise with what it has stored: it is for an evaluation, not "
     "for training", (add("model.eval()", before=BEGIN), add("model.train()", before=RETURN))),
    ("your function changed its argument micro_batches", "pop or sort of a list",
     change(WINDOW, "[micro_batches.pop(0) for _ in range(min(steps, len(micro_batches)))]")),
)  # fmt: skip

# --- wrong: what is returned ---------------------------------------------------------------------------
BANK.mistakes(
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("the mean loss came back as a tensor", "call .item(): a tensor holds memory on its device",
     change(MEAN, "total / samples")),
    ("the mean loss came back as a tensor with its graph",
     "a loss that was not detached keeps its graph: take loss.detach() for the report, and .item() at the end",
     (change("loss.detach() * len(x)", "loss * len(x)"), change(MEAN, "total / samples"))),
    ("a list came back, not one number", "the mean over the samples is asked for",
     change(MEAN, "[total.item() / samples]")),
    ("a NumPy number of 32 bits came back", "float() makes a float of it",
     change("return (total / samples).item()", "import numpy; return numpy.float32((total / samples).item())")),
    ("the mean of the micro-batches' means is returned",
     "it counts a small micro-batch like the others: weight each loss by its samples",
     (change(TOTAL, "loss.detach()  #"), change("samples += len(x)", "samples += 1"))),
    ("the mean of the windows' means is returned",
     "it counts a short window like the others: divide the sum over all samples by their number",
     (change(TOTAL, "loss.detach() * len(x) / in_window  #"),
      change(MEAN, "(total / -(-len(micro_batches) // steps)).item()"))),
    ("the sum of the windows' means is returned", "what was divided for backward was added up for the report",
     (change(TOTAL, "loss.detach() * len(x) / in_window  #"), change(MEAN, "total.item()"))),
    ("the sum of the losses is returned", "it is not divided",
     (change(TOTAL, "loss.detach()  #"), change(MEAN, "total.item()"))),
    ("the sum over the samples is divided by the number of micro-batches", "divide by the number of samples",
     change(MEAN, "(total / len(micro_batches)).item()")),
    ("the loss of the last micro-batch is returned", "that of all samples of the epoch is asked for",
     change(MEAN, "loss.item()")),
    ("the mean loss of the last window is returned", "that of all samples of the epoch is asked for",
     add("total, samples = 0.0, 0", after=f"    {HELD}")),
    ("the loss of the trained model is returned",
     "a second pass finds it; the loss of the epoch is that of the forward passes that trained the model",
     change("return (total / samples).item()", "with torch.no_grad():\n        "
            "return (sum(loss_fn(model(x), y) * len(x) for x, y in micro_batches) / samples).item()")),
    ("the loss that is returned is rounded", "return it as it is, and round where it is printed",
     change(MEAN, "round((total / samples).item(), 2)")),
)  # fmt: skip
