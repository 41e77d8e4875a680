"""Answers to "an epoch whose last window is short": the loop, and the mean loss that it reports."""

import functools

import torch
from banks.bank import Bank
from banks.edits import add, change, drop

from . import windows
from .windows import FIRST, LOSS, NO_WINDOW_OF_ONE, STARTS, WINDOW

BANK = Bank("accumulation_window", "train_epoch")
HELD, SHARE = "in_window = sum(len(x) for x, _ in window)", "loss * len(x) / in_window"
BACKWARD, BEGIN, STEP = f"({SHARE}).backward()", f"loss = {LOSS}", "optimizer.step()"
TOTAL, MEAN, RETURN = "loss.detach() * len(x)  #", "(total / samples).item()", "return (total"
NO_STEP = change(STEP, f"len(window) < steps or {STEP}")
EACH = "for p in model.parameters(): p.grad /= len(window)"


# --- right ---------------------------------------------------------------------------------------------


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


BANK.mistakes(*windows.mistakes(
    shared=lambda text: change(SHARE, f"loss{text}"), begin=BEGIN, step=STEP, inside=change(STEP, f"    {STEP}"),
    after=lambda line: add(line, after=STEP), at_the_end=lambda line: add(line, before=RETURN),
))  # fmt: skip

# --- wrong: windows and gradients ----------------------------------------------------------------------
BANK.mistakes(
    ("the last, incomplete window never makes a step", "", NO_STEP, (NO_STEP, change(SHARE, "loss / steps")),
     (NO_STEP, change(SHARE, "loss / steps"), drop(windows.CLEAR), add(windows.CLEAR, after=STEP))),
    ("the windows end one micro-batch late",
     "i > 0 and i % steps == 0 is true after steps + 1 micro-batches the first time. Count from one: (i + 1) % steps",
     (change(WINDOW, "micro_batches[start + (start > 0) : start + steps + 1]"), change(SHARE, "loss / steps"),
      change(STARTS, "range(0, len(micro_batches) - steps, steps)"),
      change(MEAN, "float(total) / max(samples, 1)"))),
    ("one more step follows a last window that was full",
     "the step for the rest runs even where there is no rest; with momentum or weight decay it moves the weights. Make "
     "it only when micro-batches are left", change(STARTS, "range(0, len(micro_batches) + 1, steps)")),
    ("a single micro-batch that is left is put into the window before it",
     "a window has `steps` micro-batches, and what is left forms a window of its own, however small",
     (change(WINDOW, "micro_batches[start : start + steps + (1 < steps == len(micro_batches) - start - 1)]"),
      NO_WINDOW_OF_ONE)),
    ("the optimizer steps twice in a window", "one step when a window ends", add(STEP, after=STEP)),
    ("gradients are cleared in the first parameter group only",
     "an optimizer may have several groups: optimizer.zero_grad() clears all of them",
     change(windows.CLEAR, "for p in optimizer.param_groups[0]['params']: p.grad = None")),
    ("every window is treated as a full one",
     "a short window does not hold `steps` micro-batches of the usual size: add up its samples",
     change(HELD, "in_window = steps * len(micro_batches[0][0])")),
    ("micro-batches of different sizes count the same",
     "the mean of the micro-batches' means is not the mean over the samples when the last one is smaller. Weight each "
     "by its number of samples", change(SHARE, "loss / len(window)")),
    ("the summed losses of the samples are never divided",
     "loss * len(x) is a sum over samples: divide by the samples of the window", change(SHARE, "loss * len(x)")),
    ("the gradients are divided by the samples of the whole epoch",
     "an update uses the mean over its own window: divide by the window's samples",
     change(SHARE, "loss * len(x) / sum(len(a) for a, _ in micro_batches)")),
    ("the gradients are divided after every micro-batch",
     "what is in .grad is divided again each time, so the first micro-batch counts least. Divide each loss before "
     "backward, or the sum once at the end of the window",
     change(BACKWARD, f"loss.backward()\n            {EACH}")),
    ("loss and gradient are both divided", "divide each loss before backward, or the sum at the end of the window",
     add(EACH, before=STEP), (change(SHARE, "loss / len(window)"), add(EACH, before=STEP))),
    ("the gradient is clipped", "that is not asked for here: the step uses the gradient as it is",
     add("nn.utils.clip_grad_norm_(model.parameters(), 1.0)", before=STEP)),
    ("the forward pass runs under autocast",
     "autocast rounds the weights of a float32 model to 16 bits, so the gradient is that of rounded weights. It is "
     "not asked for here, but in exercise 3",
     change(BEGIN, f"with torch.autocast(x.device.type, torch.bfloat16): {BEGIN}"),
     (add("cast = torch.autocast('cpu', torch.bfloat16); cast.__enter__()", before=FIRST),
      add("cast.__exit__(None, None, None)", before=RETURN))),
    ("the gradient holds NaN", "something divides by zero, such as len(x) // steps when a window holds fewer",
     change(SHARE, "loss * (len(x) // steps) / torch.tensor(float(len(x) // steps))")),
    ("the number of remaining micro-batches is used as a divisor, even when it is 0",
     "len(micro_batches) % steps is 0 when the last window is full",
     change(HELD, HELD + " / (len(micro_batches) % steps) * (len(micro_batches) % steps)")),
    ("backward runs on a running total",
     "an earlier backward has freed its graphs: call backward on the loss of this micro-batch alone",
     (change("total += loss.detach()", "total = total + loss"), change(BACKWARD, "pass"),
      add("(total / steps).backward()", before="samples +="))),
    ("the activations of several micro-batches are kept at once",
     "losses are added up and backward runs once for all of them, or retain_graph keeps each graph. Call backward for "
     "each micro-batch, which frees its graph",
     (change(BACKWARD, "mean = mean + loss * len(x) / in_window"), change(HELD, HELD + "; mean = 0"),
      add("mean.backward()", before=STEP)),
     (change("backward()", "backward(retain_graph=True); kept.append(loss)"), add("kept = []", before=FIRST))),
    ("the data are moved, and the model is not", "they are already on the model's device: move nothing",
     change("model(x)", 'model(x.to("cuda:0"))')),
    ("your function changed its argument micro_batches", "pop or sort of a list",
     change(WINDOW, "[micro_batches.pop(0) for _ in range(min(steps, len(micro_batches)))]")),
    # --- what is returned ---
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("the mean loss is returned as a tensor", "call .item(): a tensor holds memory on its device",
     change(MEAN, "total / samples")),
    ("the mean loss is returned as a tensor with its graph",
     "a loss that was not detached keeps its graph: take loss.detach() for the report, and .item() at the end",
     (change("loss.detach() * len(x)", "loss * len(x)"), change(MEAN, "total / samples"))),
    ("a list is returned, not one number", "return the mean over the samples",
     change(MEAN, "[total.item() / samples]")),
    ("a 32-bit NumPy number is returned", "float() makes a float of it",
     change("return (total / samples).item()", "import numpy; return numpy.float32((total / samples).item())")),
    ("the mean of the micro-batches' means is returned",
     "it counts a small micro-batch like the others: weight each loss by its samples",
     (change(TOTAL, "loss.detach()  #"), change("samples += len(x)", "samples += 1"))),
    ("the mean of the windows' means is returned",
     "it counts a short window like the others: divide the sum over all samples by their number",
     (change(TOTAL, "loss.detach() * len(x) / in_window  #"),
      change(MEAN, "(total / -(-len(micro_batches) // steps)).item()"))),
    ("the sum of the windows' means is returned", "the losses were added up after they were divided for backward",
     (change(TOTAL, "loss.detach() * len(x) / in_window  #"), change(MEAN, "total.item()"))),
    ("the sum of the losses is returned", "divide it by the number of samples",
     (change(TOTAL, "loss.detach()  #"), change(MEAN, "total.item()"))),
    ("the sum over the samples is divided by the number of micro-batches", "divide by the number of samples",
     change(MEAN, "(total / len(micro_batches)).item()")),
    ("the loss of the last micro-batch is returned", "return that of all samples of the epoch",
     change(MEAN, "loss.item()")),
    ("the mean loss of the last window is returned", "return that of all samples of the epoch",
     add("total, samples = 0.0, 0", after=f"    {HELD}")),
    ("the loss of the trained model is returned",
     "that needs a second pass; the loss of the epoch is that of the forward passes that trained the model",
     change("return (total / samples).item()", "with torch.no_grad():\n        "
            "return (sum(loss_fn(model(x), y) * len(x) for x, y in micro_batches) / samples).item()")),
    ("the loss that is returned is rounded", "return it as it is, and round where it is printed",
     change(MEAN, "round((total / samples).item(), 2)")),
)  # fmt: skip
