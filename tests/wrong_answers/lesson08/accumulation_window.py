"""Answers to "accumulation with an uneven last window": the loop and the mean loss it reports."""

import functools
import itertools

import numpy as np
import torch
from torch import nn

from gpulab.check.lesson08.misconceptions import SECTIONS

from ..by_hand import Bank

BANK = Bank("accumulation_window", SECTIONS)


def mean(losses):
    """The mean over samples of (loss, size) pairs, for answers that are wrong in something else."""
    return sum(loss * n for loss, n in losses) / sum(n for _, n in losses)


def windows(micro_batches, steps):
    return [micro_batches[i : i + steps] for i in range(0, len(micro_batches), steps)]


def train(model, optimizer, loss_fn, micro_batches, steps, clear=torch.optim.Optimizer.zero_grad, then=lambda: None):
    """The right loop, with a place before a window and one before its step; wrong answers call it."""
    losses = []
    for window in windows(micro_batches, steps):
        held = sum(len(x) for x, _ in window)
        clear(optimizer)
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss * len(x) / held).backward()
            losses.append((loss.item(), len(x)))
        then()
        optimizer.step()
    return losses


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def windows_by_slicing(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, optimizer, loss_fn, micro_batches, steps))


@BANK.right
def windows_by_a_counter(model, optimizer, loss_fn, micro_batches, steps):
    total, samples = 0.0, 0
    model.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        first = i - i % steps
        held = sum(len(b) for b, _ in micro_batches[first : first + steps])
        loss = loss_fn(model(x), y)
        (loss * (x.shape[0] / held)).backward()
        total += loss.detach().item() * x.shape[0]
        samples += x.shape[0]
        if (i + 1) % steps == 0 or i + 1 == len(micro_batches):
            optimizer.step()
            model.zero_grad()
    return total / samples


@BANK.right
def gradients_divided_at_the_end_of_the_window(model, optimizer, loss_fn, micro_batches, steps):
    losses, left = [], iter(micro_batches)
    while window := list(itertools.islice(left, steps)):
        for p in model.parameters():
            p.grad = None
        for x, y in window:
            loss = loss_fn(model(x), y) * len(x)
            loss.backward()
            losses.append(loss.item())
        for p in model.parameters():
            p.grad /= sum(len(x) for x, _ in window)
        optimizer.step()
    return sum(losses) / sum(len(x) for x, _ in micro_batches)


@BANK.right
def gradients_from_autograd_grad(model, optimizer, loss_fn, micro_batches, steps):
    parameters, losses = list(model.parameters()), []
    for window in windows(micro_batches, steps):
        sums = [torch.zeros_like(p) for p in parameters]
        for x, y in window:
            loss = loss_fn(model(x), y)
            for total, g in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
                total.add_(g, alpha=len(x))
            losses.append((float(loss.detach()), len(x)))
        for p, total in zip(parameters, sums, strict=True):
            p.grad = total / sum(len(x) for x, _ in window)
        optimizer.step()
    return mean(losses)


@BANK.right
def a_closure_for_the_optimizer(model, optimizer, loss_fn, micro_batches, steps):
    losses = []

    def run(window):
        optimizer.zero_grad()
        held = sum(len(x) for x, _ in window)
        for x, y in window:
            loss = loss_fn(model(x), y) * (len(x) / held)
            loss.backward()
            losses.append((loss.item() * held / len(x), len(x)))
        return 0.0

    for window in windows(micro_batches, steps):
        optimizer.step(functools.partial(run, window))
    return mean(losses)


@BANK.right
def sums_from_the_loss_function_itself(model, optimizer, loss_fn, micro_batches, steps):
    total = 0.0
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y, reduction="sum")
            loss.backward()
            total += loss.item()
        for p in model.parameters():
            p.grad /= sum(len(x) for x, _ in window)
        optimizer.step()
    return total / sum(len(x) for x, _ in micro_batches)


@BANK.right
def one_sample_at_a_time(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        samples = [(x[i : i + 1], y[i : i + 1]) for x, y in window for i in range(len(x))]
        optimizer.zero_grad()
        for x, y in samples:
            loss = loss_fn(model(x), y) / len(samples)
            loss.backward()
            losses.append(loss.item() * len(samples))
        optimizer.step()
    return sum(losses) / len(losses)


# --- wrong: the window's end ---------------------------------------------------------------------------


@BANK.wrong("the last, incomplete window never makes a step", "leaves the rest in .grad")
def the_loop_of_the_web(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for i, (x, y) in enumerate(micro_batches):
        loss = loss_fn(model(x), y) / steps
        loss.backward()
        losses.append((loss.item() * steps, len(x)))
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("the last, incomplete window never makes a step", "(i + 1) % steps == 0")
def drops_the_rest(model, optimizer, loss_fn, micro_batches, steps):
    full = len(micro_batches) // steps * steps
    return mean(train(model, optimizer, loss_fn, micro_batches[:full], steps))


@BANK.wrong("the step comes at the wrong end of the window", "i % steps == 0 is true for i = 0")
def steps_at_zero(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = loss_fn(model(x), y)
        (loss / steps).backward()
        losses.append((loss.item(), len(x)))
        if i % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("the windows end one micro-batch late", "steps + 1 micro-batches the first time")
def steps_one_late(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = loss_fn(model(x), y)
        (loss / steps).backward()
        losses.append((loss.item(), len(x)))
        if i and i % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("the optimizer steps after every micro-batch", "nothing is accumulated")
def does_not_accumulate(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, optimizer, loss_fn, micro_batches, 1))


@BANK.wrong("the optimizer steps after every micro-batch", "take it out of that loop")
def steps_inside_the_window(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
            optimizer.step()
            losses.append((loss.item(), len(x)))
    return mean(losses)


@BANK.wrong("the optimizer steps once, at the end of the epoch", "the windows run into each other")
def one_window_for_all(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    optimizer.zero_grad()
    for x, y in micro_batches:
        loss = loss_fn(model(x), y)
        (loss / steps).backward()
        losses.append((loss.item(), len(x)))
    optimizer.step()
    return mean(losses)


@BANK.wrong("one more step follows a last window that was full", "Make it only when micro-batches are left")
def always_steps_after_the_loop(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        start = i - i % steps
        held = sum(len(b) for b, _ in micro_batches[start : start + steps])
        loss = loss_fn(model(x), y)
        (loss * len(x) / held).backward()
        losses.append((loss.item(), len(x)))
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    return mean(losses)


@BANK.wrong("your function raised ZeroDivisionError", "len(micro_batches) % steps is 0")
def divides_by_what_is_over(model, optimizer, loss_fn, micro_batches, steps):
    losses, rest = [], len(micro_batches) % steps
    usual = len(micro_batches[0][0])
    size_in_the_rest = sum(len(x) for x, _ in micro_batches[-rest:]) / rest
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        held = rest * size_in_the_rest if i >= len(micro_batches) - rest else steps * usual
        loss = loss_fn(model(x), y)
        (loss * len(x) / held).backward()
        losses.append((loss.item(), len(x)))
        if (i + 1) % steps == 0 or i + 1 == len(micro_batches):
            optimizer.step()
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("the last, incomplete window never makes a step", "(i + 1) % steps == 0", same_as="drops_the_rest")
def looks_for_the_end_one_late(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = loss_fn(model(x), y)
        (loss / steps).backward()
        losses.append((loss.item(), len(x)))
        if (i + 1) % steps == 0 or i == len(micro_batches):
            optimizer.step()
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("one more step follows a last window that was full", same_as="always_steps_after_the_loop")
def counts_one_window_more(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for k in range(len(micro_batches) // steps + 1):
        window = micro_batches[k * steps : (k + 1) * steps]
        losses += train(model, optimizer, loss_fn, window, steps)
        if not window:
            optimizer.zero_grad()
            optimizer.step()
    return mean(losses)


# --- wrong: clearing -----------------------------------------------------------------------------------


def accumulate(model, optimizer, loss_fn, micro_batches, steps, *, clear="", share=None):
    """A loop over the windows that clears `.grad` at the named place."""
    losses = []
    for window in windows(micro_batches, steps):
        if clear == "before the window":
            optimizer.zero_grad()
        for x, y in window:
            if clear == "before each":
                optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            part = len(x) / sum(len(b) for b, _ in window) if share is None else share(window)
            (loss * part).backward()
            losses.append((loss.item(), len(x)))
        if clear == "before the step":
            optimizer.zero_grad()
        optimizer.step()
        if clear == "after the step":
            optimizer.zero_grad()
    return mean(losses)


@BANK.wrong("each update sees only the last micro-batch of its window", "throws away what was accumulated")
def clears_for_every_micro_batch(*args):
    return accumulate(*args, clear="before each")


@BANK.wrong("gradients of earlier windows are still in .grad", "nothing clears the gradients")
def never_clears(*args):
    return accumulate(*args)


@BANK.wrong("what was in .grad before the call is counted in the first window", "the caller may have left some")
def clears_only_after_a_step(*args):
    return accumulate(*args, clear="after the step")


@BANK.wrong("the gradients are cleared just before the step", "zero_grad stands between backward and step")
def clears_before_the_step(*args):
    return accumulate(*args, clear="before the step")


@BANK.wrong("gradients of earlier windows are still in .grad", "nothing clears the gradients", same_as="never_clears")
def clears_the_data_and_not_the_gradients(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        held = sum(len(x) for x, _ in window)
        for x, y in window:
            loss = loss_fn(model(x.clone()), y)
            (loss * len(x) / held).backward()
            losses.append((loss.item(), len(x)))
        optimizer.step()
    return mean(losses)


# --- wrong: weights ------------------------------------------------------------------------------------


@BANK.wrong("the last window is divided by steps, though it holds fewer micro-batches", "shrinks its update to 2/4")
def divides_by_steps_anyway(model, optimizer, loss_fn, micro_batches, steps):
    return accumulate(
        *(model, optimizer, loss_fn, micro_batches, steps), clear="before the window", share=lambda window: 1 / steps
    )


@BANK.wrong("micro-batches of different size count the same", "the mean of the micro-batches' means")
def mean_of_means(*args):
    return accumulate(*args, clear="before the window", share=lambda window: 1 / len(window))


@BANK.wrong("the gradients are added up and never divided", "the update is the sum over the window")
def never_divides(*args):
    return accumulate(*args, clear="before the window", share=lambda window: 1)


@BANK.wrong("the gradients are divided by the micro-batches of the whole epoch", "its own window")
def divides_by_the_epoch(model, optimizer, loss_fn, micro_batches, steps):
    return accumulate(
        *(model, optimizer, loss_fn, micro_batches, steps),
        clear="before the window",
        share=lambda window: 1 / len(micro_batches),
    )


@BANK.wrong("the gradient of step 3 is 0.3125 times the right one", "is divided by the wrong number")
def takes_every_window_for_a_full_one(model, optimizer, loss_fn, micro_batches, steps):
    usual = steps * len(micro_batches[0][0])
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss * len(x) / usual).backward()
            losses.append((loss.item(), len(x)))
        optimizer.step()
    return mean(losses)


@BANK.wrong("the gradients are divided after every micro-batch", "the first micro-batch counts least")
def divides_the_gradients_every_time(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            loss.backward()
            for p in model.parameters():
                p.grad /= len(window)
            losses.append((loss.item(), len(x)))
        optimizer.step()
    return mean(losses)


@BANK.wrong("the gradient of step 1 is 0.25 times the right one", "is divided by the wrong number")
def divides_the_loss_and_the_gradient(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / len(window)).backward()
            losses.append((loss.item(), len(x)))
        for p in model.parameters():
            p.grad /= len(window)
        optimizer.step()
    return mean(losses)


@BANK.wrong("the gradient of step 1 is another one than the full batch's", "compare that window by hand")
def weighs_the_first_micro_batch_twice(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in [window[0], *window]:
            loss = loss_fn(model(x), y)
            (loss / (len(window) + 1)).backward()
            losses.append((loss.item(), len(x)))
        optimizer.step()
    return mean(losses)


@BANK.wrong("the loss is another one than loss_fn", "whatever the caller has chosen")
def writes_the_loss_into_the_loop(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, optimizer, nn.functional.cross_entropy, micro_batches, steps))


@BANK.wrong("the gradient of step 1 holds NaN or inf")
def divides_by_zero_elements(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss / torch.zeros(())).backward()
            losses.append((loss.item(), len(x)))
        optimizer.step()
    return mean(losses)


# --- wrong: several at once ----------------------------------------------------------------------------


@BANK.wrong("each update sees only the last micro-batch of its window", "throws away what was accumulated")
def clears_each_and_divides_by_steps(model, optimizer, loss_fn, micro_batches, steps):
    return accumulate(
        *(model, optimizer, loss_fn, micro_batches, steps), clear="before each", share=lambda window: 1 / steps
    )


@BANK.wrong(
    "the last, incomplete window never makes a step",
    "counted in the next epoch",
    also="gradients of earlier windows are still in .grad; the gradients are added up and never divided",
)
def drops_the_rest_and_never_clears_or_divides(model, optimizer, loss_fn, micro_batches, steps):
    full = len(micro_batches) // steps * steps
    return accumulate(*(model, optimizer, loss_fn, micro_batches[:full], steps), share=lambda window: 1)


@BANK.wrong("gradients of earlier windows are still in .grad", "nothing clears the gradients")
def never_clears_and_never_divides(*args):
    return accumulate(*args, share=lambda window: 1)


# --- wrong: the gradient is right, and the memory that of the large batch -------------------------------


@BANK.wrong("several micro-batches went through the model at once", "which is what must not fit")
def concatenates_the_window(model, optimizer, loss_fn, micro_batches, steps):
    large = [tuple(map(torch.cat, zip(*window, strict=True))) for window in windows(micro_batches, steps)]
    return mean(train(model, optimizer, loss_fn, large, 1))


@BANK.wrong("the activations of several micro-batches are kept at once", "backward runs once for all of them")
def one_backward_for_the_window(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        held, total = sum(len(x) for x, _ in window), 0.0
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            total = total + loss * len(x) / held
            losses.append((loss.item(), len(x)))
        total.backward()
        optimizer.step()
    return mean(losses)


@BANK.wrong("the activations of several micro-batches are kept at once", same_as="one_backward_for_the_window")
def keeps_every_graph(model, optimizer, loss_fn, micro_batches, steps):
    losses = []
    for window in windows(micro_batches, steps):
        held = sum(len(x) for x, _ in window)
        optimizer.zero_grad()
        for x, y in window:
            loss = loss_fn(model(x), y)
            (loss * len(x) / held).backward(retain_graph=True)
            losses.append((loss, len(x)))
        optimizer.step()
    return mean([(loss.item(), n) for loss, n in losses])


# --- wrong: what moves the weights ---------------------------------------------------------------------


@BANK.wrong("the optimizer that was passed in never stepped", "replaced by another optimizer")
def uses_an_optimizer_of_its_own(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn, micro_batches, steps))


@BANK.wrong("the weights are not where the optimizer's steps lead", "the learning rate was changed")
def divides_the_learning_rate_too(model, optimizer, loss_fn, micro_batches, steps):
    for group in optimizer.param_groups:
        group["lr"] /= steps
    return mean(train(model, optimizer, loss_fn, micro_batches, steps))


@BANK.wrong("your function raised RuntimeError", "a running total")
def runs_backward_on_the_total(model, optimizer, loss_fn, micro_batches, steps):
    total = 0.0
    optimizer.zero_grad()
    for x, y in micro_batches:
        total = total + loss_fn(model(x), y) / steps
        total.backward()
    optimizer.step()


@BANK.wrong("your function raised RuntimeError", "the loss has no graph")
def forgets_the_graph(model, optimizer, loss_fn, micro_batches, steps):
    with torch.no_grad():
        return mean(train(model, optimizer, loss_fn, micro_batches, steps))


@BANK.wrong("your function raised AttributeError", "item() or float() came before backward")
def takes_the_number_first(model, optimizer, loss_fn, micro_batches, steps):
    for x, y in micro_batches:
        loss = loss_fn(model(x), y).item() / steps
        loss.backward()


@BANK.wrong("your function changed its argument micro_batches", "pop or sort of a list")
def uses_the_list_up(model, optimizer, loss_fn, micro_batches, steps):
    given = list(micro_batches)
    micro_batches.clear()
    return mean(train(model, optimizer, loss_fn, given, steps))


@BANK.wrong("your function changed its argument micro_batches", "a method that ends in _", same_as="uses_the_list_up")
def normalises_the_inputs_in_place(model, optimizer, loss_fn, micro_batches, steps):
    for x, _ in micro_batches:
        x -= x.mean()
    return mean(train(model, optimizer, loss_fn, micro_batches, steps))


@BANK.wrong("the model came back in evaluation mode", "train() was not")
def leaves_evaluation_mode(model, optimizer, loss_fn, micro_batches, steps):
    model.eval()
    return mean(train(model, optimizer, loss_fn, micro_batches, steps))


# --- wrong: what is reported ---------------------------------------------------------------------------


@BANK.wrong("the mean loss of the epoch is not returned", "ends without a return")
def reports_nothing(*args):
    train(*args)


@BANK.wrong("the mean loss came back as a tensor", "a tensor holds memory on its device")
def reports_a_tensor(*args):
    return torch.tensor(mean(train(*args)))


@BANK.wrong("the mean loss came back as a tensor", "the graphs behind it too")
def reports_a_tensor_with_its_graph(model, optimizer, loss_fn, micro_batches, steps):
    loss = mean(train(model, optimizer, loss_fn, micro_batches, steps))
    return nn.Parameter(torch.tensor(loss)) * 1.0


@BANK.wrong("what came back is not the mean loss of the epoch", "another thing, or several")
def reports_the_list_of_losses(*args):
    return [loss for loss, _ in train(*args)]


@BANK.wrong("what came back is not the mean loss of the epoch", "float() makes it one")
def reports_a_numpy_number(*args):
    return np.float32(mean(train(*args)))


@BANK.wrong("the reported loss is not the mean over all samples", "mean of the micro-batches' means")
def reports_the_mean_of_means(*args):
    losses = train(*args)
    return sum(loss for loss, _ in losses) / len(losses)


@BANK.wrong("the reported loss is not the mean over all samples", "mean of the windows' means")
def reports_the_mean_of_the_windows(*args):
    means = [mean(window) for window in windows(train(*args), args[-1])]
    return sum(means) / len(means)


@BANK.wrong("the reported loss is not the mean over all samples", "what was divided for backward")
def reports_the_divided_losses(*args):
    return sum(mean(window) for window in windows(train(*args), args[-1]))


@BANK.wrong("the reported loss is not the mean over all samples", "the sum of the losses, not divided")
def reports_the_sum(*args):
    return sum(loss for loss, _ in train(*args))


@BANK.wrong("the reported loss is not the mean over all samples", "the loss of the last micro-batch alone")
def reports_the_last_loss(*args):
    return train(*args)[-1][0]


@BANK.wrong("the reported loss is not the mean over all samples", "divide by the number of samples")
def reports_samples_over_batches(*args):
    losses = train(*args)
    return sum(loss * n for loss, n in losses) / len(losses)


@BANK.wrong("the reported loss is not the mean over all samples", "divide the sum of loss × samples")
def reports_a_fixed_number(*args):
    train(*args)
    return 1.0986


@BANK.wrong("the reported loss is not the mean over all samples", "the loss of the trained model")
def reports_the_loss_of_the_trained_model(model, optimizer, loss_fn, micro_batches, steps):
    train(model, optimizer, loss_fn, micro_batches, steps)
    with torch.no_grad():
        return mean([(loss_fn(model(x), y).item(), len(x)) for x, y in micro_batches])


# --- with a GPU ----------------------------------------------------------------------------------------


def to_gpu(micro_batches):
    return [(x.to("cuda"), y.to("cuda")) for x, y in micro_batches]


@BANK.right_with_a_gpu
def goes_to_the_gpu_and_back(model, optimizer, loss_fn, micro_batches, steps):
    model.to("cuda")
    losses = train(model, optimizer, loss_fn, to_gpu(micro_batches), steps)
    model.to("cpu")
    return mean(losses)


@BANK.right_with_a_gpu
def asks_the_model_where_it_is(model, optimizer, loss_fn, micro_batches, steps):
    device = next(model.parameters()).device
    moved = [(x.to(device), y.to(device)) for x, y in micro_batches]
    return mean(train(model, optimizer, loss_fn, moved, steps))


@BANK.wrong("the model was moved to another device", "the caller's own model", on_gpu=True)
def leaves_the_model_on_the_gpu(model, optimizer, loss_fn, micro_batches, steps):
    model.to("cuda")
    return mean(train(model, optimizer, loss_fn, to_gpu(micro_batches), steps))


@BANK.wrong("your function raised RuntimeError", "where the model is", on_gpu=True)
def moves_the_data_and_not_the_model(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, optimizer, loss_fn, to_gpu(micro_batches), steps))


@BANK.wrong("gradients are cleared in the first parameter group only", "clears all of them")
def clears_one_group(model, optimizer, loss_fn, micro_batches, steps):
    def clear(optimizer):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = None

    return mean(train(model, optimizer, loss_fn, micro_batches, steps, clear))


@BANK.wrong("the gradient of step 1 is 0.00125 times the right one", "or the gradient clipped")
def clips(model, optimizer, loss_fn, micro_batches, steps):
    def clip():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return mean(train(model, optimizer, loss_fn, micro_batches, steps, then=clip))


@BANK.wrong("a last window of a single micro-batch makes no step", "its samples are in the epoch")
def skips_a_window_of_one(model, optimizer, loss_fn, micro_batches, steps):
    left = micro_batches[:-1] if len(micro_batches) % steps == 1 and steps > 1 else micro_batches
    return mean(train(model, optimizer, loss_fn, left, steps))


@BANK.wrong("a single micro-batch that is left is put into the window before it", "one of its own, however few")
def joins_a_window_of_one(model, optimizer, loss_fn, micro_batches, steps):
    cut = len(micro_batches) - steps - 1
    if len(micro_batches) % steps != 1 or steps == 1 or cut < 0:
        return mean(train(model, optimizer, loss_fn, micro_batches, steps))
    losses = train(model, optimizer, loss_fn, micro_batches[:cut], steps) if cut else []
    return mean(losses + train(model, optimizer, loss_fn, micro_batches[cut:], steps + 1))


@BANK.wrong("the model runs in evaluation mode", "switches dropout off")
def trains_in_evaluation_mode(model, optimizer, loss_fn, micro_batches, steps):
    model.eval()
    losses = train(model, optimizer, loss_fn, micro_batches, steps)
    model.train()
    return mean(losses)


@BANK.wrong("the forward pass runs under autocast", "rounds the weights")
def runs_under_autocast(model, optimizer, loss_fn, micro_batches, steps):
    with torch.autocast("cpu", torch.bfloat16):
        return mean(train(model, optimizer, loss_fn, micro_batches, steps))


@BANK.wrong("the outputs of several micro-batches are kept at once", "collected in a list")
def keeps_the_outputs(model, optimizer, loss_fn, micro_batches, steps):
    outputs = []

    def kept(out, y):
        outputs.append(out)
        return loss_fn(out, y)

    return mean(train(model, optimizer, kept, micro_batches, steps))


@BANK.wrong("the outputs of several micro-batches are kept at once", same_as="keeps_the_outputs")
def keeps_detached_outputs(model, optimizer, loss_fn, micro_batches, steps):
    outputs = []

    def kept(out, y):
        outputs.append(out.detach())
        return loss_fn(out, y)

    return mean(train(model, optimizer, kept, micro_batches, steps))


@BANK.wrong("the optimizer stepped 6 times, not 3", "step 2 is the first with another gradient")
def steps_twice_a_window(model, optimizer, loss_fn, micro_batches, steps):
    return mean(train(model, optimizer, loss_fn, micro_batches, steps, then=optimizer.step))


@BANK.right
def notes_which_are_right(model, optimizer, loss_fn, micro_batches, steps):
    found, losses = [], []
    for window in windows(micro_batches, steps):
        optimizer.zero_grad()
        for x, y in window:
            outputs = model(x)
            found.append(outputs.argmax(1) == y)
            loss = loss_fn(outputs, y)
            (loss * len(x) / sum(len(a) for a, _ in window)).backward()
            losses.append((loss.detach(), len(x)))
        optimizer.step()
    return mean(losses).item()
