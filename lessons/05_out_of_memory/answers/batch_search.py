"""Answers to "the largest batch, and nothing left behind"."""

from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("batch_search", "largest_batch")
SEARCHES = """while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)"""
BY_BITS = """for bit in reversed(range(most.bit_length())):
            middle = low + 2**bit
            low = middle if middle <= most and fits(middle) else low"""
DOUBLES = "while max(1, 2 * low) <= most and fits(max(1, 2 * low)):\n            low = max(1, 2 * low)"
BETWEEN = """def between(low, high):
        if high - low < 2:
            return low
        middle = (low + high) // 2
        try:
            fits(middle)
        except torch.OutOfMemoryError:
            return between(low, middle)
        return between(middle, high)
"""
TWICE, FIRST, CAUGHT = "range(2)", "low, high = 0, most + 1", "except torch.OutOfMemoryError"
CLEARS, STATE = "optimizer.zero_grad()\n            optimizer.load", "optimizer.load_state_dict(copy.deepcopy(state))"
FORK, WEIGHTS, RETURN = "torch.random.fork_rng()", "model.load_state_dict(weights)", "return low"
ON_HOST = "to_host(model.state_dict())"

BANK.right(
    change(SEARCHES, BY_BITS),
    (drop(STATE), drop(WEIGHTS), add("model.load_state_dict(weights)", before=RETURN),
     add("optimizer.load_state_dict(state)", before=RETURN)),
    (change(f"with {FORK}", "cpu, gpu = torch.get_rng_state(), torch.cuda.get_rng_state()\n    if True"),
     add("torch.set_rng_state(cpu), torch.cuda.set_rng_state(gpu)", before=RETURN)),
)  # fmt: skip
BANK.mistakes(
    # what an attempt is
    ("the batch fits for the forward pass only",
     "an attempt needs backward() and the optimizer's step too: gradients and what they are made from come on top",
     change("loss_of(batch).backward()\n                optimizer.step()", "loss_of(batch)")),
    ("the batch fits for one step only",
     "an attempt is two whole steps: Adam's state is made at the end of the first, and is there during the second",
     change(TWICE, "range(1)"), drop("optimizer.step()")),
    ("the attempts are made in evaluation mode",
     "in that mode dropout keeps nothing for backward, and training takes more: restore the running averages instead",
     (add("model.eval()", before="def fits"), add("model.train()", before=RETURN))),
    # the search
    ("the search doubles or halves, and never tries a size in between",
     "the first size that fails and the last that fits enclose the answer: bisect between them",
     change(SEARCHES, DOUBLES),
     (change(FIRST, "low = most"), change(SEARCHES, "while low and not fits(low):\n            low //= 2"))),
    ("a failed attempt is still alive during the next one",
     "the next attempt runs inside `except`, where the exception holds the frames of the failed one; or the exception "
     "is kept in a variable. Leave the block first",
     (change(CAUGHT, "except ZeroDivisionError"), change(FIRST, BETWEEN),
      change(SEARCHES, "for low in [between(0, most + 1)]:"))),
    ("the segments of earlier attempts take room from the later ones",
     "a tensor that sits in a larger cached segment wastes the rest of it: torch.cuda.empty_cache() before each "
     "attempt, while nothing is alive", drop("torch.cuda.empty_cache()  #")),
    ("a copy on the GPU takes room from the attempts",
     "a copy of the model or of its state leaves less memory for the attempts: keep it on the host",
     add("on_gpu = [[p.detach().clone() for p in model.parameters()] for _ in range(2)]", before="def fits"),
     change("to_host(optimizer.state_dict())", "copy.deepcopy(optimizer.state_dict())")),
    ("the first batch that failed is returned", "low is the last batch that fitted, high the first that did not",
     change(RETURN, "return min(most, high)")),
    ("the search begins with a high that may fit",
     "high is the first batch that failed, and most + 1 needs no attempt", change("most + 1", "most // 8 + 1")),
    ("the search stops before it knows the answer",
     "the next larger batch was never tried: the search goes on until high is low + 1",
     change("high - low > 1", "high - low > max(1, low // 16)")),
    ("a larger batch was tried and fits too", "the answer is the last one that fitted, without a margin",
     change(RETURN, "return low - 1 if 1 < low < most else low")),
    ("most itself is never tried", "`most` itself is allowed: begin with high = most + 1, which needs no attempt",
     change("most + 1", "most")),
    ("batch 1 is never tried", "0 is an answer too: begin with low = 0, which needs no attempt",
     change(FIRST, "low, high = 1, most + 1")),
    ("a batch above most is returned", "`most` can be 1: high = most + 1, and nothing above most is an answer",
     change("most + 1", "max(most, 2) + 1")),
    ("the search tries one batch after the other", "each attempt may take minutes on a real model: halve the interval",
     change(SEARCHES, "while low < most and fits(low + 1):\n            low += 1")),
    # errors
    ("an error that is not a lack of memory is swallowed",
     "`except RuntimeError`, or a bare except, catches every error of the program: catch torch.OutOfMemoryError",
     change(CAUGHT, "except RuntimeError")),
    ("an attempt that does not fit is not caught",
     "an attempt that does not fit must be caught: `except torch.OutOfMemoryError`",
     change(CAUGHT, "except ZeroDivisionError")),
    # what is left behind
    ("the parameters are changed",
     "the attempts' steps move them: state_dict() before and load_state_dict() after; its tensors are the live ones, "
     "so copy them to the host", drop(WEIGHTS), change(ON_HOST, "model.state_dict()")),
    ("BatchNorm's running averages are changed",
     "each forward pass in training mode advances them; they are in model.state_dict(), not in model.parameters()",
     (change(ON_HOST, "to_host(dict(model.named_parameters()))"), change("(weights)", "(weights, strict=False)"))),
    ("the optimizer's state is changed",
     "Adam counts the attempts as steps and keeps their moments: optimizer.state_dict() before, copied to the host, "
     "and load_state_dict() after", drop(STATE)),
    ("the copy of the optimizer's state is changed",
     "load_state_dict does not copy the step counts: the next attempt increments them in your copy. Load a copy of it",
     change("copy.deepcopy(state)", "state")),
    ("gradients of an attempt are left", "zero_grad() after the last attempt, also when it failed",
     change(CLEARS, "optimizer.load")),
    ("gradients of zeros are left where there were none",
     "zero_grad(set_to_none=False) keeps the tensors: the gradients were None before",
     change(CLEARS, "optimizer.zero_grad(False)\n            optimizer.load")),
    ("the random numbers have moved on", "data and dropout draw from them: with torch.random.fork_rng() restores both",
     change(FORK, "torch.random.fork_rng(enabled=False)")),
    ("the GPU's random numbers have moved on",
     "dropout on the GPU draws from the GPU's generator: fork_rng() without devices= keeps those of all GPUs",
     change(FORK, "torch.random.fork_rng(devices=[])")),
    ("the search leaves tensors on the GPU",
     "a copy, an exception kept in a variable, or the last attempt's loss: find what holds a reference",
     add("globals()['kept'] = torch.ones(100, device='cuda')", before=RETURN)),
    # what is returned
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("a float is returned", "a division with / gives a float: use //", change(RETURN, "return low / 1")),
)  # fmt: skip
