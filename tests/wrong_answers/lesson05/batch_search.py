"""Answers to "the largest batch, and nothing left behind"."""

import copy

import torch

from gpulab.check.lesson05.sections import SECTIONS

from ..bank import Bank

BANK = Bank("batch_search", SECTIONS)


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
def bisects_and_puts_back(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))


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


@BANK.wrong("the batch fits for the forward pass only", "backward() and the optimizer's step too")
def forward_only(model, optimizer, loss_of, most):
    def attempt(optimizer, loss_of, batch):
        loss_of(batch)

    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, attempt)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


@BANK.wrong("the batch fits for one step only", "two whole steps")
def one_step(model, optimizer, loss_of, most):
    state = to_host(optimizer.state_dict())

    def attempt(optimizer, loss_of, batch):
        optimizer.load_state_dict(copy.deepcopy(state))
        two_steps(optimizer, loss_of, batch, steps=1)

    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, attempt)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


@BANK.wrong("the batch fits for one step only", same_as="one_step")
def backward_without_a_step(model, optimizer, loss_of, most):
    def attempt(optimizer, loss_of, batch):
        optimizer.zero_grad()
        loss_of(batch).backward()

    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, attempt)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


# --- wrong: the search ---------------------------------------------------------------------------------


@BANK.wrong("the search doubles or halves, and never looks between", "bisect between them")
def doubles_only(model, optimizer, loss_of, most):
    def search():
        batch = 1
        while 2 * batch <= most and fits(optimizer, loss_of, 2 * batch):
            batch *= 2
        return batch

    return kept(model, optimizer, search)


@BANK.wrong("the search doubles or halves, and never looks between", same_as="doubles_only")
def halves_only(model, optimizer, loss_of, most):
    def search():
        batch = most
        while batch and not fits(optimizer, loss_of, batch):
            batch //= 2
        return batch

    return kept(model, optimizer, search)


@BANK.wrong("a failed attempt is still alive during the next one", "the next attempt runs inside `except`")
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


@BANK.wrong("the segments of earlier attempts take room from the later ones", "before each attempt")
def never_empties_the_cache(model, optimizer, loss_of, most):
    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, clean=False)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


@BANK.wrong("the batch is too large", "is low the last one that fitted?")
def returns_the_first_that_failed(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: min(most, bisect(optimizer, loss_of, most) + 1))


@BANK.wrong("a larger batch fits too", "is high the first that failed?")
def begins_below_most(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, high=most // 8))


@BANK.wrong("a larger batch fits too", "goes on until high is low + 1")
def stops_when_near_enough(model, optimizer, loss_of, most):
    def search():
        low, high = 0, most + 1
        while high - low > max(1, low // 16):
            middle = (low + high) // 2
            low, high = (middle, high) if fits(optimizer, loss_of, middle) else (low, middle)
            optimizer.zero_grad()
        return low

    return kept(model, optimizer, search)


@BANK.wrong("a larger batch fits too", "without a margin")
def leaves_a_margin(model, optimizer, loss_of, most):
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))
    return found - 1 if 1 < found < most else found


@BANK.wrong("the result is wrong where all batches up to `most` fit", "begin with high = most + 1")
def never_tries_most(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, high=most))


@BANK.wrong("the result is wrong where not even batch 1 fits", "begin with low = 0")
def takes_1_for_granted(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, low=1))


@BANK.wrong("the search takes too many attempts", "one batch after the other")
def walks(model, optimizer, loss_of, most):
    def search():
        batch = 0
        while batch < most and fits(optimizer, loss_of, batch + 1):
            batch += 1
        return batch

    return kept(model, optimizer, search)


@BANK.wrong("an error that is not a lack of memory is swallowed", "catches every fault of the program")
def catches_every_runtime_error(model, optimizer, loss_of, most):
    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, catch=RuntimeError)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


@BANK.wrong("your function raised OutOfMemoryError", "must be caught")
def catches_nothing(model, optimizer, loss_of, most):
    def try_it(optimizer, loss_of, batch):
        return fits(optimizer, loss_of, batch, catch=ZeroDivisionError)

    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it))


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("the parameters are changed", "the attempts' steps move them")
def leaves_the_weights(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most), weights=False)


@BANK.wrong("the parameters are changed", same_as="leaves_the_weights")
def keeps_references_to_the_weights(model, optimizer, loss_of, most):
    weights = model.state_dict()
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most), weights=False)
    model.load_state_dict(weights)
    return found


@BANK.wrong("BatchNorm's running averages are changed", "not in model.parameters()")
def forgets_the_buffers(model, optimizer, loss_of, most):
    weights = [to_host(p) for p in model.parameters()]
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most), weights=False)
    with torch.no_grad():
        for p, old in zip(model.parameters(), weights, strict=True):
            p.copy_(old)
    return found


@BANK.wrong("the optimizer's state is changed", "Adam counts the attempts as steps")
def leaves_the_state(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most), state=False)


@BANK.wrong("the optimizer's state is changed", same_as="leaves_the_state")
def loads_the_same_copy_each_time(model, optimizer, loss_of, most):
    state = to_host(optimizer.state_dict())

    def try_it(optimizer, loss_of, batch):
        optimizer.load_state_dict(state)
        return fits(optimizer, loss_of, batch)

    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most, try_it), state=False)
    optimizer.load_state_dict(state)
    return found


@BANK.wrong("gradients of an attempt are left", "zero_grad() after the last attempt")
def leaves_gradients(model, optimizer, loss_of, most):
    def search():
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(optimizer, loss_of, middle) else (low, middle)
        fits(optimizer, loss_of, max(low, 1))
        return low

    return kept(model, optimizer, search, clear=False)


@BANK.wrong("the random numbers have moved on", "fork_rng()")
def leaves_the_random_numbers(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most), random=False)


@BANK.wrong("the model's mode is changed", "last beyond the search")
def ends_in_evaluation_mode(model, optimizer, loss_of, most):
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))
    model.eval()
    return found


@BANK.wrong("something large lies on the GPU while the search runs", "keep it on the host")
def keeps_a_copy_on_the_gpu(model, optimizer, loss_of, most):
    weights = [[p.detach().clone() for p in model.parameters()] for _ in range(2)]  # as of two snapshots
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))
    del weights
    return found


LEFT = []


@BANK.wrong("the search leaves tensors on the GPU", "whatever holds a reference")
def keeps_the_last_loss(model, optimizer, loss_of, most):
    LEFT.clear()
    found = kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))
    LEFT.append(torch.ones(100, device="cuda"))
    return found


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("the result is no batch size", "ends without a return")
def returns_nothing(model, optimizer, loss_of, most):
    kept(model, optimizer, lambda: bisect(optimizer, loss_of, most))


@BANK.wrong("the result is no batch size", "use //")
def divides_with_one_slash(model, optimizer, loss_of, most):
    return kept(model, optimizer, lambda: bisect(optimizer, loss_of, most)) / 1
