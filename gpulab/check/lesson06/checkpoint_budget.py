"""The check of checkpointing within a budget: a plain pass's gradient, no block computed again in vain, the peak."""

from __future__ import annotations

from typing import Any

import torch

from ..base import Trial, check
from ..lesson08.common import flat_gradient
from ..measure import virtual_gpu
from ..wording import is_finite, is_number, show
from .sections import AGAIN, MISTAKES, QUESTION, SEGMENTS
from .stack import MIB, Recording, Stack

# Blocks, how many of them may keep their inside, whether the budget is exactly for those, and whether there are
# gradients already.
CASES = ((8, 4, False, False), (6, 1, False, True), (5, 9, False, True), (7, 3, True, True))


@check(lesson=6, says="within the budget, with the gradient of a plain pass, and no block computed again in vain")
def checkpoint_budget(student: Any, trial: Trial) -> None:
    """Check a function of (blocks, x, loss_fn, inside, budget): a forward and backward pass whose activations fit the
    budget, with as few blocks computed again as that takes; it returns the peak of its own allocated bytes."""
    trial.function(student, ("blocks", "x", "loss_fn", "inside", "budget"))
    drawn: list[tuple[float, float]] = []  # after each call
    for length, room, exact, earlier in CASES:
        with virtual_gpu(count=2) as gpu, torch.cuda.device(1):
            stack = Stack(length, room, exact, earlier)
            spare = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")  # an earlier peak, which is none of the call's
            old_peak = torch.cuda.max_memory_allocated()
            record = Recording()
            with gpu.timeline() as timeline:
                returned = trial.call(
                    student,
                    *(stack.blocks, stack.x, record.loss, stack.inside, stack.budget),
                    may_seed=True,  # judged by `_judge_gradient`: dropout
                    may_change={"blocks": {"grad", "buffers"}},
                    explain=_explain,
                    inside=record,
                )
            _judge_calls(trial, stack)
            _judge_gradient(trial, stack)
            _judge_bytes(trial, stack, record, room)
            _judge_copies(trial, [span.nbytes for span in timeline.spans if span.where == "to host"], stack)
            _judge_returned(trial, returned, record, old_peak)
            drawn.append(record.drawn)
            del spare

    for numbers, where in zip(zip(*drawn, strict=True), ("CPU", "GPU"), strict=True):
        trial.expect(
            len(set(numbers)) == len(CASES),
            "a seed is set when the pass is over",
            expected="other random numbers after each call, as after a plain pass",
            got=f"the {where}'s next random number was {numbers[-1]:.4f} after several calls",
            likely="the masks of all later calls are then the same: leave the random generators to the caller",
            read=AGAIN,
        )


def _judge_calls(trial: Trial, stack: Stack) -> None:
    calls = [block.calls for block in stack.layers]
    trial.expect(
        all(calls),
        "not every block was run",
        expected=f"a forward pass through {len(calls)} blocks",
        got=f"no call of block {', '.join(str(i) for i, seen in enumerate(calls) if not seen)}",
        read=AGAIN,
    )
    trial.expect(
        all(call.training for seen in calls for call in seen),
        "the blocks were run in evaluation mode",
        expected="training mode, as they came, with dropout",
        got="a forward pass with training off",
        likely="eval() makes both passes alike by switching dropout off. checkpoint keeps the random state for you",
        read=AGAIN,
    )
    other = [i for i, seen in enumerate(calls) if any(call.mask != seen[0].mask for call in seen[1:])]
    trial.expect(
        not other,
        "a block was computed again with other dropout masks",
        expected="the same masks in both forward passes",
        got=f"other masks in block {', '.join(map(str, other))}",
        likely="preserve_rng_state=False, or another seed before the second pass: the gradient is then that of a "
        "function which was never run forward",
        read=AGAIN,
    )


def _judge_gradient(trial: Trial, stack: Stack) -> None:
    blocks, calls = list(stack.blocks), [block.calls for block in stack.layers]
    got = flat_gradient(stack.blocks.parameters())
    added, sizes = got - stack.earlier, [sum(p.numel() for p in block.parameters()) for block in blocks]
    missing = [i for i, part in enumerate(added.split(sizes)) if not part.any()]
    rows = {
        "expected": "a gradient for every block",
        "got": "none for block " + ", ".join(map(str, missing)) if missing else "",
    }
    if missing and any(not calls[i][0].grad for i in missing):
        trial.fail(
            "some blocks got no gradient",
            likely="the older implementation ran (use_reentrant=True, or not said): it gives no gradient to a segment "
            "whose input needs none, and x is data. Say use_reentrant=False",
            read=MISTAKES,
            **rows,
        )
    cut = [i for i, seen in enumerate(calls) if i and not seen[0].fed]
    if missing and cut:
        trial.fail(
            "the graph is cut between blocks",
            likely=f"block {cut[0]} was given a detached tensor, so backward never gets below it. checkpoint keeps no "
            "activations by itself: there is nothing to detach",
            read=MISTAKES,
            **rows,
        )
    trial.expect(
        not missing, "some blocks got no gradient", likely="backward did not reach them", read=MISTAKES, **rows
    )
    want = stack.gradient()
    if _close(added, want):
        return
    if _close(got, want):
        trial.fail(
            "the gradients that were there are gone",
            expected="the new gradient added to .grad",
            got=".grad holds the new gradient alone",
            likely="zero_grad() belongs to the caller: it may be in the middle of an accumulation",
            read=AGAIN,
        )
    masks = [seen[0].mask for seen in calls]
    if any(abs(a - b) > 1e-4 * (1 + abs(b)) for a, b in zip(masks, stack.masks, strict=True)):
        trial.fail(
            "the dropout masks are not those of a plain pass",
            expected="the random numbers that a plain forward pass draws",
            got="others",
            likely="a seed was set inside the function, or a block ran forward more often than once before backward",
            read=AGAIN,
        )
    ratio = float(added @ want / (want @ want))
    trial.fail(
        "the gradient is not that of a plain pass",
        expected=f"norm {float(want.norm()):.4g}",
        got=f"norm {float(added.norm()):.4g}",
        likely=f"it is {ratio:.3g} times the right one: is backward called more often than once?"
        if _close(added, want * ratio)
        else "compare with a pass without checkpoint, from the same seed",
        read=AGAIN,
    )


def _judge_bytes(trial: Trial, stack: Stack, record: Recording, room: int) -> None:
    counts = [len(block.calls) - 1 for block in stack.layers]
    length, again, half = len(counts), sum(counts), stack.inside // 2
    over = record.peak > stack.best_peak + half
    rows = {
        "expected": f"a peak of at most {_mib(stack.best_peak + half)} (virtual): {stack.again} of {length} blocks "
        f"computed again, room for {min(room, length)} insides",
        "got": f"a peak of {_mib(record.peak)} (virtual), {again} of {length} computed again; without checkpointing "
        f"it is {_mib(stack.plain_peak)}",
    }
    if over and not again:
        trial.fail(
            "the activations do not fit the budget: no block is computed again",
            likely="budget - len(blocks) * x.nbytes is the room for insides",
            read=AGAIN,
            **rows,
        )
    if over and record.peak > stack.plain_peak - half:
        trial.fail(
            "everything is computed again, and nothing is saved",
            likely="the blocks are one segment: when backward begins, all of it comes back at once. Make each block "
            "that is computed again a segment of its own",
            read=QUESTION,
            **rows,
        )
    first = next((i for i, n in enumerate(counts) if n), length)
    if over and again == stack.again and first > 0:
        trial.fail(
            "the wrong blocks keep their insides",
            likely="the first ones keep theirs. Backward begins with the last, computes one of them again, and the "
            "kept ones are all still there: one inside too many. Keep the last ones",
            read=SEGMENTS,
            **rows,
        )
    trial.expect(
        not over,
        "the activations do not fit the budget",
        likely="too few blocks are computed again: the inputs, x.nbytes for each block, are in the budget too"
        if again < stack.again
        else "a segment of several blocks comes back with all their insides at once",
        read=SEGMENTS,
        **rows,
    )
    rows["expected"] = (
        f"{stack.again} of {length} blocks computed again: the budget has room for {min(room, length)} insides"
    )
    rows["got"] = f"{again} blocks computed again"
    if again > stack.again:
        last = counts[-1] > 0 and again == stack.again + 1
        trial.fail(
            "blocks are computed again in vain",
            likely="the last block is checkpointed too: backward begins with it, so its inside comes back at once"
            if last
            else "every block is checkpointed, whatever the budget: each costs a forward pass"
            if again >= length
            else "more insides have room than are kept",
            read=SEGMENTS,
            **rows,
        )
    trial.expect(
        again == stack.again,
        "the activations are somewhere else",
        likely="they went to the host, or were kept in fewer bytes: checkpoint the blocks instead",
        read=AGAIN,
        **rows,
    )


def _judge_copies(trial: Trial, nbytes: list[int], stack: Stack) -> None:
    large = [size for size in nbytes if size >= stack.x.nbytes]
    trial.expect(
        not large,
        "the activations are somewhere else",
        expected="no copy of them to the host",
        got=f"{len(large)} copies of {min(large, default=0):,} bytes or more",
        likely="they went to the host, or were kept in fewer bytes: checkpoint the blocks instead",
        read=AGAIN,
    )


def _judge_returned(trial: Trial, got: Any, record: Recording, old_peak: int) -> None:
    want, before = record.peak, record.before
    near = 16 * 1024
    rows = {"expected": f"{want:,} bytes, an int (virtual)", "got": show(got), "read": MISTAKES}
    if is_number(got) and got == 0:
        trial.fail("the peak of another GPU was returned", likely="the current GPU need not be the first", **rows)
    if got is None:
        trial.fail("the peak is not returned", likely="the function ends without a return", **rows)
    if not is_finite(got):
        trial.fail("what was returned is not the peak", likely="one number is wanted", **rows)
    known = (
        (want / MIB, "the peak is returned in MiB", "bytes were asked for"),
        (want + before, "what was allocated before the call is in the number", "subtract what was allocated at entry"),
        (
            old_peak - before,
            "an earlier peak was returned",
            "the counter remembers all of the process: torch.cuda.reset_peak_memory_stats() first",
        ),
        (old_peak, "an earlier peak was returned", "the counter was not reset, and what was there before is in it too"),
        (
            record.left,
            "what is left after backward was returned, not the peak",
            "memory_allocated() counts what is alive now; by then the activations are gone",
        ),
        (
            record.left + before,
            "what is left after backward was returned, not the peak",
            "memory_allocated() at the end, with what was there before the call: the activations are gone by then",
        ),
        (
            record.forward_peak,
            "the peak of the forward pass alone was returned",
            "read the counter after backward: what is computed again comes back there",
        ),
    )
    for value, summary, likely in known:
        if abs(got - value) <= (near if value > MIB else 1) and abs(got - want) > near:
            trial.fail(summary, likely=likely, **rows)
    trial.expect(
        abs(got - want) <= near,
        "the number that was returned is not the peak",
        likely="max_memory_allocated() after backward, less memory_allocated() at entry",
        **rows,
    )
    trial.expect(
        isinstance(got, int), "the peak is not a whole number", likely="bytes are counted, not divided", **rows
    )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).norm() <= 1e-3 * b.norm())


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.2f} MiB"


def _explain(error: str) -> str:
    return next((why for part, why in _ERRORS.items() if part in error), "")


_ERRORS = {
    "does not require grad": "the loss has no graph. With use_reentrant=True, the default, a checkpoint whose input "
    "needs no gradient gives an output without one, and x is data. Say use_reentrant=False",
    "NoneType": "where there is no gradient yet, .grad is None: backward() makes one, and adds to one that is there",
    "must not be zero": "checkpoint_sequential was given more segments than there are layers",
    "backward through the graph a second time": "backward runs twice on the same graph",
    "ModuleList": "a ModuleList cannot be called: run its blocks one after the other, or put them into nn.Sequential",
    "out of memory": "more is allocated than the virtual T4 has",
}
