"""Answers to "the largest batch, and nothing left behind"."""

import copy

import torch

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("batch_search", "largest_batch")


def to_host(value):
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    return [to_host(item) for item in value] if isinstance(value, list) else value


def two_steps(optimizer, loss_of, batch, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()


def fits(optimizer, loss_of, batch, attempt=two_steps, clean=True, catch=torch.OutOfMemoryError):
    if clean:
        torch.cuda.empty_cache()
    try:
        attempt(optimizer, loss_of, batch)
    except catch:
        return False
    return True


def bisect(optimizer, loss_of, most, fits=fits, low=0, high=None):
    high = most + 1 if high is None else high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(optimizer, loss_of, middle) else (low, middle)
        optimizer.zero_grad()
    return low


def kept(model, optimizer, search, weights=True, state=True, random=True, clear=True):
    """What `search()` returns, with everything put back after it but what is switched off."""
    before = to_host(model.state_dict()), to_host(optimizer.state_dict())
    with torch.random.fork_rng(enabled=random):
        found = search()
    if clear:
        optimizer.zero_grad()
    if weights:
        model.load_state_dict(before[0])
    if state:
        optimizer.load_state_dict(before[1])
    return found


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def doubles_then_bisects(model, optimizer, loss_of, most):
    def search():
        low = 0
        batch = 1
        while batch <= most and fits(optimizer, loss_of, batch):
            low, batch = batch, 2 * batch
        optimizer.zero_grad()
        return bisect(optimizer, loss_of, most, low=low, high=min(batch, most + 1))

    return kept(model, optimizer, search)


@BANK.right
def restores_after_each_attempt(model, optimizer, loss_of, most):
    weights, state = to_host(model.state_dict()), to_host(optimizer.state_dict())
    cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state()

    def whole(batch):
        failed = False
        torch.cuda.empty_cache()
        try:
            two_steps(optimizer, loss_of, batch)
        except torch.OutOfMemoryError:
            failed = True
        optimizer.zero_grad(set_to_none=True)
        optimizer.load_state_dict(copy.deepcopy(state))
        model.load_state_dict(weights)
        return not failed

    low, high = 1, most
    while low <= high:
        middle = (low + high) // 2
        if whole(middle):
            low = middle + 1
        else:
            high = middle - 1
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state(gpu)
    return high


@BANK.right
def halves_then_bisects_recursively(model, optimizer, loss_of, most):
    def between(low, high):
        if high - low <= 1:
            return low
        middle = (low + high) // 2
        return between(middle, high) if fits(optimizer, loss_of, middle) else between(low, middle)

    return kept(model, optimizer, lambda: between(0, most + 1))


# --- wrong: what an attempt is -------------------------------------------------------------------------

TWICE = "for _ in range(2):"
ONE = "the batch fits for one step only"
ONE_WHY = "an attempt is two whole steps: Adam's state is made at the end of the first, and is there during the second"
BANK.mistakes(
    ("the batch fits for the forward pass only",
     "an attempt needs backward() and the optimizer's step too: gradients and what they are made from " "come on top",
     change("loss_of(batch).backward()\n                optimizer.step()", "loss_of(batch)")),
    (ONE, ONE_WHY, change(TWICE, "for _ in range(1):"), drop("optimizer.step()")),
)  # fmt: skip

# --- wrong: the search ---------------------------------------------------------------------------------

SEARCHES = """while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)"""
COARSE = "the search doubles or halves, and never looks between"
BETWEEN = "the first size that fails and the last that fits enclose the answer: bisect between them"
BANK.mistakes(
    (COARSE, BETWEEN,
     change(SEARCHES, "while max(1, 2 * low) <= most and fits(max(1, 2 * low)):\n            low = max(1, 2 * low)"),
     (change("low, high = 0, most + 1", "low, high = most, 0"),
     change(SEARCHES, "while low and not fits(low):\n            low //= 2"))),
)  # fmt: skip


@BANK.wrong(
    "a failed attempt is still alive during the next one",
    "the next attempt runs inside `except`, where the exception holds the frames of the failed one; or the exception "
    "is kept in a variable. Leave the block first",
)
def retries_inside_except(model, optimizer, loss_of, most):
    def between(low, high):
        if high - low <= 1:
            return low
        middle = (low + high) // 2
        try:
            torch.cuda.empty_cache()
            two_steps(optimizer, loss_of, middle)
        except torch.OutOfMemoryError:
            return between(low, middle)
        return between(middle, high)

    return kept(model, optimizer, lambda: between(0, most + 1))


BANK.mistakes(
    ("the segments of earlier attempts take room from the later ones",
     "a tensor that sits in a larger cached segment wastes the rest of it: torch.cuda.empty_cache() "
     "before each attempt, while nothing is alive", drop("torch.cuda.empty_cache()  #")),
    ("the first batch that failed is returned", "low is the last batch that fitted, high the first that did not",
     change("return low", "return min(most, high)")),
    ("the search begins with a high that is no failure",
     "high is the first batch that failed, and most + 1 needs no attempt", change("0, most + 1", "0, most // 8 + 1")),
    ("the search stops before it knows the answer",
     "the next larger batch was never tried: the search goes on until high is low + 1",
     change("high - low > 1", "high - low > max(1, low // 16)")),
    ("a larger batch was tried and fits too", "the answer is the last one that fitted, without a margin",
     change("return low", "return low - 1 if 1 < low < most else low")),
    ("most itself is never tried", "`most` itself is allowed: begin with high = most + 1, which needs no attempt",
     change("0, most + 1", "0, most")),
    ("batch 1 is taken for granted", "0 is an answer too: begin with low = 0, which needs no attempt",
     change("0, most + 1", "1, most + 1")),
    ("the search tries one batch after the other", "each attempt may take minutes on a real model: halve the interval",
     (change("middle = (low + high) // 2", "middle = low + 1"), change("else (low, middle)", "else (low, low)"))),
    ("an error that is not a lack of memory is swallowed",
     "`except RuntimeError`, or a bare except, catches every fault of the program: catch " "torch.OutOfMemoryError",
     change("except torch.OutOfMemoryError", "except RuntimeError")),
    ("an attempt that does not fit is not caught",
     "an attempt that does not fit must be caught: `except torch.OutOfMemoryError`",
     change("except torch.OutOfMemoryError", "except ZeroDivisionError")),
)  # fmt: skip

# --- wrong: what is left behind ------------------------------------------------------------------------

AFTER_EACH = "model.load_state_dict(weights)"
BANK.mistakes(
    ("the parameters are changed",
     "the attempts' steps move them: state_dict() before and load_state_dict() after; its tensors are "
     "the live ones, so copy them to the host", drop(AFTER_EACH),
     change("to_host(model.state_dict())", "model.state_dict()")),
    ("BatchNorm's running averages are changed",
     "each forward pass in training mode advances them; they are in model.state_dict(), and not in "
     "model.parameters()",
     (change("to_host(model.state_dict())", "to_host(dict(model.named_parameters()))"),
     change("load_state_dict(weights)", "load_state_dict(weights, strict=False)"))),
)  # fmt: skip
STATE = "optimizer.load_state_dict("
STATE_WHY = (
    "Adam counts the attempts as steps and keeps their moments: optimizer.state_dict() before, copied to the host, and "
    "load_state_dict() after"
)
BANK.mistakes(
    ("the optimizer's state is changed", STATE_WHY, drop(STATE)),
    ("the copy of the optimizer's state is used up",
     "load_state_dict takes the step counts as they are, not copied: the next attempt counts on in your "
     "copy. Load a copy of it", change("copy.deepcopy(state)", "state")),
    ("gradients of an attempt are left", "zero_grad() after the last attempt, also when it failed",
     change("optimizer.zero_grad()\n            optimizer.load", "optimizer.load")),
    ("gradients of zeros are left where there were none",
     "zero_grad(set_to_none=False) keeps the tensors: the gradients were None before",
     change("optimizer.zero_grad()\n            optimizer.load",
     "optimizer.zero_grad(False)\n            optimizer.load")),
    ("the random numbers have moved on", "data and dropout draw from them: with torch.random.fork_rng() puts both back",
     change("torch.random.fork_rng()", "torch.random.fork_rng(enabled=False)")),
    ("the GPU's random numbers have moved on",
     "dropout on the GPU draws from the GPU's generator: fork_rng() without devices= keeps those of all GPUs",
     change("torch.random.fork_rng()", "torch.random.fork_rng(devices=[])")),
    ("the model's mode is changed", "train() and eval() last beyond the search",
     add("model.eval()", before="return low")),
    ("the attempts are made in evaluation mode",
     "there dropout keeps nothing for backward, and training takes more: put the running averages back " "instead",
     (add("model.eval()", before="def fits"), add("model.train()", before="return low"))),
    ("a copy on the GPU takes room from the attempts",
     "a copy of the model or of its state takes memory from the attempts: keep it on the host",
     add("on_gpu = [[p.detach().clone() for p in model.parameters()] for _ in range(2)]  # of two snapshots",
     before="def fits"), change("to_host(optimizer.state_dict())", "copy.deepcopy(optimizer.state_dict())")),
    ("a batch above most is returned", "`most` can be 1: high = most + 1, and nothing above most is an answer",
     change("0, most + 1", "0, max(most, 2) + 1")),
    ("the search leaves tensors on the GPU",
     "a copy, an exception kept in a variable, or the last attempt's loss: whatever holds a reference",
     (add("fits.last = torch.ones(100, device='cuda')", before="return low"),
     add("globals()['kept'] = fits", before="return low"))),
)  # fmt: skip

# --- wrong: what is returned ---------------------------------------------------------------------------
BANK.mistakes(
    ("nothing is returned", "the function ends without a return", drop("return low")),
    ("a float is returned", "a division with / gives a float: use //", change("return low", "return low / 1")),
)  # fmt: skip
