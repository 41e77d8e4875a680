"""Answers to "checkpoint within a budget": which blocks are computed again, their gradients, the peak."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import gpulab
from gpulab.check.lesson06.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("checkpoint_budget", SECTIONS)


def room_for(blocks, x, inside, budget):
    return (budget - len(blocks) * x.nbytes) // inside


def forward(blocks, x, again, **options):
    """The first `again` blocks checkpointed one by one."""
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False, **options) if i < again else block(x)
    return x


def measured(run):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def needed(blocks, x, inside, budget):
    return max(len(blocks) - room_for(blocks, x, inside, budget), 0)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def keeps_the_last_ones(blocks, x, loss_fn, inside, budget):
    return measured(lambda: loss_fn(forward(blocks, x, needed(blocks, x, inside, budget))).backward())


@BANK.right
def cuts_equal_segments(blocks, x, loss_fn, inside, budget):
    segments = -(-len(blocks) // room_for(blocks, x, inside, budget))
    stack = nn.Sequential(*blocks)
    return measured(lambda: loss_fn(checkpoint_sequential(stack, segments, x, use_reentrant=False)).backward())


@BANK.right
def reentrant_with_an_input_that_needs_a_gradient(blocks, x, loss_fn, inside, budget):
    def run():
        h = x.detach().requires_grad_()
        for i, block in enumerate(blocks):
            h = checkpoint(block, h, use_reentrant=True) if i < needed(blocks, x, inside, budget) else block(h)
        loss_fn(h).backward()

    return measured(run)


@BANK.right
def reads_the_statistics(blocks, x, loss_fn, inside, budget):
    again = needed(blocks, x, inside, budget)
    torch.cuda.reset_peak_memory_stats(x.device)
    before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    loss = loss_fn(forward(list(blocks), x, again))
    grads = torch.autograd.grad(loss, list(blocks.parameters()))
    for p, grad in zip(blocks.parameters(), grads, strict=True):
        p.grad = grad if p.grad is None else p.grad.add_(grad)
    return torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before


@BANK.right
def uses_a_tracker(blocks, x, loss_fn, inside, budget):
    with gpulab.GPUMemoryTracker() as tracker:
        out = forward(blocks, x, needed(blocks, x, inside, budget))
        loss_fn(out).backward()
        del out
    return tracker.peak_above_entry_bytes


# --- wrong: which blocks are computed again ------------------------------------------------------------


@BANK.wrong("everything is computed again, and nothing is saved", "the blocks are one segment")
def one_segment(blocks, x, loss_fn, inside, budget):
    stack = nn.Sequential(*blocks)
    return measured(lambda: loss_fn(checkpoint(stack, x, use_reentrant=False)).backward())


@BANK.wrong("the activations do not fit the budget: no block is computed again", "the room for insides")
def checkpoints_nothing(blocks, x, loss_fn, inside, budget):
    return measured(lambda: loss_fn(nn.Sequential(*blocks)(x)).backward())


@BANK.wrong("the wrong blocks keep their insides", "Keep the last ones")
def keeps_the_first_ones(blocks, x, loss_fn, inside, budget):
    def run():
        room, h = room_for(blocks, x, inside, budget), x
        for i, block in enumerate(blocks):
            h = block(h) if i < room else checkpoint(block, h, use_reentrant=False)
        loss_fn(h).backward()

    return measured(run)


@BANK.wrong("blocks are computed again in vain", "every block is checkpointed, whatever the budget")
def every_block(blocks, x, loss_fn, inside, budget):
    return measured(lambda: loss_fn(forward(blocks, x, len(blocks))).backward())


@BANK.wrong("blocks are computed again in vain", "more insides have room")
def halves_the_room(blocks, x, loss_fn, inside, budget):
    room = max(room_for(blocks, x, inside, budget) // 2, 1)
    return measured(lambda: loss_fn(forward(blocks, x, len(blocks) - room)).backward())


@BANK.wrong("blocks are computed again in vain", "the last block is checkpointed too")
def one_too_many_when_tight(blocks, x, loss_fn, inside, budget):
    room = room_for(blocks, x, inside, budget)
    return measured(lambda: loss_fn(forward(blocks, x, len(blocks) - room + (room == 1))).backward())


@BANK.wrong("the activations do not fit the budget", "the inputs, x.nbytes for each block")
def forgets_the_inputs(blocks, x, loss_fn, inside, budget):
    again = max(len(blocks) - budget // inside, 0)
    return measured(lambda: loss_fn(forward(blocks, x, again)).backward())


@BANK.wrong(
    "the activations do not fit the budget", "the inputs, x.nbytes for each block", same_as="forgets_the_inputs"
)
def counts_the_inputs_of_kept_blocks_only(blocks, x, loss_fn, inside, budget):
    again = max(len(blocks) - budget // (inside + x.nbytes), 0)
    return measured(lambda: loss_fn(forward(blocks, x, again)).backward())


@BANK.wrong(
    "the activations do not fit the budget", "the inputs, x.nbytes for each block", same_as="forgets_the_inputs"
)
def rounds_the_room(blocks, x, loss_fn, inside, budget):
    again = max(len(blocks) - round((budget - len(blocks) * x.nbytes) / inside), 0)
    return measured(lambda: loss_fn(forward(blocks, x, again)).backward())


@BANK.wrong("the activations do not fit the budget", "comes back with all their insides")
def one_large_and_one_kept(blocks, x, loss_fn, inside, budget):
    again = min(needed(blocks, x, inside, budget) + 1, len(blocks))

    def run():
        h = checkpoint(nn.Sequential(*blocks[:again]), x, use_reentrant=False)
        for block in blocks[again:]:
            h = block(h)
        loss_fn(h).backward()

    return measured(run)


@BANK.wrong("the activations are somewhere else", "they went to the host")
def sends_them_to_the_host(blocks, x, loss_fn, inside, budget):
    def run():
        with torch.autograd.graph.save_on_cpu():
            out = nn.Sequential(*blocks)(x)
        loss_fn(out).backward()

    return measured(run)


@BANK.wrong("the activations are somewhere else", "they went to the host", same_as="sends_them_to_the_host")
def sends_the_inputs_to_the_host(blocks, x, loss_fn, inside, budget):
    def run():
        h = x
        for i, block in enumerate(blocks):
            if i < needed(blocks, x, inside, budget):
                with torch.autograd.graph.save_on_cpu():
                    h = checkpoint(block, h, use_reentrant=False)
            else:
                h = block(h)
        loss_fn(h).backward()

    return measured(run)


@BANK.wrong("not every block was run")
def leaves_out_the_last(blocks, x, loss_fn, inside, budget):
    return measured(lambda: loss_fn(forward(blocks[:-1], x, needed(blocks, x, inside, budget))).backward())


# --- wrong: gradients ----------------------------------------------------------------------------------


@BANK.wrong("some blocks got no gradient", "the older implementation ran")
def reentrant(blocks, x, loss_fn, inside, budget):
    def run():
        h = x
        for i, block in enumerate(blocks):
            h = checkpoint(block, h, use_reentrant=True) if i < needed(blocks, x, inside, budget) else block(h)
        loss_fn(h).backward()

    return measured(run)


@BANK.wrong("some blocks got no gradient", "the older implementation ran", same_as="reentrant")
def does_not_say_which(blocks, x, loss_fn, inside, budget):
    stack = nn.Sequential(*blocks)
    return measured(lambda: loss_fn(checkpoint_sequential(stack, 2, x)).backward())


@BANK.wrong("your function raised RuntimeError", "Say use_reentrant=False")
def reentrant_everywhere(blocks, x, loss_fn, inside, budget):
    stack = nn.Sequential(*blocks)
    return measured(lambda: loss_fn(checkpoint(stack, x, use_reentrant=True)).backward())


@BANK.wrong("the graph is cut between blocks", "there is nothing to detach")
def detaches_between(blocks, x, loss_fn, inside, budget):
    def run():
        h = x
        for i, block in enumerate(blocks):
            h = h.detach()
            h = checkpoint(block, h, use_reentrant=False) if i < needed(blocks, x, inside, budget) else block(h)
        loss_fn(h).backward()

    return measured(run)


@BANK.wrong("some blocks got no gradient", "did not reach them")
def no_backward(blocks, x, loss_fn, inside, budget):
    return measured(lambda: loss_fn(forward(blocks, x, needed(blocks, x, inside, budget))))


@BANK.wrong("a block was computed again with other dropout masks", "preserve_rng_state=False")
def other_masks(blocks, x, loss_fn, inside, budget):
    again = needed(blocks, x, inside, budget)
    return measured(lambda: loss_fn(forward(blocks, x, again, preserve_rng_state=False)).backward())


@BANK.wrong("the dropout masks are not those of a plain pass", "a seed was set")
def seeds_for_dropout(blocks, x, loss_fn, inside, budget):
    torch.manual_seed(0)
    return keeps_the_last_ones(blocks, x, loss_fn, inside, budget)


@BANK.wrong("a seed is set when the pass is over", "leave the random generators to the caller")
def seeds_afterwards(blocks, x, loss_fn, inside, budget):
    peak = keeps_the_last_ones(blocks, x, loss_fn, inside, budget)
    torch.manual_seed(0)
    return peak


@BANK.wrong(
    "a seed is set when the pass is over", "leave the random generators to the caller", same_as="seeds_afterwards"
)
def seeds_the_gpu_afterwards(blocks, x, loss_fn, inside, budget):
    peak = keeps_the_last_ones(blocks, x, loss_fn, inside, budget)
    torch.cuda.manual_seed_all(0)
    return peak


@BANK.wrong("the blocks were run in evaluation mode", "switching dropout off")
def without_dropout(blocks, x, loss_fn, inside, budget):
    blocks.eval()
    peak = keeps_the_last_ones(blocks, x, loss_fn, inside, budget)
    blocks.train()
    return peak


@BANK.wrong("the gradients that were there are gone", "zero_grad() belongs to the caller")
def clears_first(blocks, x, loss_fn, inside, budget):
    blocks.zero_grad(set_to_none=False)
    return keeps_the_last_ones(blocks, x, loss_fn, inside, budget)


@BANK.wrong("your function raised TypeError", "where there is no gradient yet, .grad is None")
def adds_to_gradients_that_must_be_there(blocks, x, loss_fn, inside, budget):
    def run():
        loss = loss_fn(forward(blocks, x, needed(blocks, x, inside, budget)))
        for p, grad in zip(blocks.parameters(), torch.autograd.grad(loss, list(blocks.parameters())), strict=True):
            p.grad += grad

    return measured(run)


@BANK.wrong("the gradient is not that of a plain pass", "is backward called more often than once")
def backward_twice(blocks, x, loss_fn, inside, budget):
    def run():
        loss = loss_fn(forward(blocks, x, needed(blocks, x, inside, budget)))
        (loss * 2).backward()

    return measured(run)


# --- wrong: what is returned ---------------------------------------------------------------------------


def without_measuring(blocks, x, loss_fn, inside, budget):
    loss_fn(forward(blocks, x, needed(blocks, x, inside, budget))).backward()


@BANK.wrong("what is left after backward was returned, not the peak", "counts what is alive now")
def measures_after_backward(blocks, x, loss_fn, inside, budget):
    before = torch.cuda.memory_allocated()
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.memory_allocated() - before


@BANK.wrong("what is left after backward was returned, not the peak", "with what was there before the call")
def measures_after_backward_absolutely(blocks, x, loss_fn, inside, budget):
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.memory_allocated()


@BANK.wrong("an earlier peak was returned", "remembers all of the process")
def does_not_reset(blocks, x, loss_fn, inside, budget):
    before = torch.cuda.memory_allocated()
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.max_memory_allocated() - before


@BANK.wrong("an earlier peak was returned", "was not reset, and what was there before")
def neither_resets_nor_subtracts(blocks, x, loss_fn, inside, budget):
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.max_memory_allocated()


@BANK.wrong("what was allocated before the call is in the number", "subtract what was allocated")
def does_not_subtract(blocks, x, loss_fn, inside, budget):
    torch.cuda.reset_peak_memory_stats()
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.max_memory_allocated()


@BANK.wrong("the peak of the forward pass alone was returned", "read the counter after backward")
def measures_forward_only(blocks, x, loss_fn, inside, budget):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = forward(blocks, x, needed(blocks, x, inside, budget))
    peak = torch.cuda.max_memory_allocated() - before
    loss_fn(out).backward()
    return peak


@BANK.wrong("the number that was returned is not the peak", "max_memory_allocated() after backward")
def returns_the_reserve(blocks, x, loss_fn, inside, budget):
    before = torch.cuda.memory_allocated()
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.memory_reserved() - before


@BANK.wrong("the peak of another GPU was returned", "need not be the first")
def measures_the_first_gpu(blocks, x, loss_fn, inside, budget):
    before = torch.cuda.memory_allocated(0)
    torch.cuda.reset_peak_memory_stats(0)
    without_measuring(blocks, x, loss_fn, inside, budget)
    return torch.cuda.max_memory_allocated(0) - before


@BANK.wrong("the peak is returned in MiB", "bytes were asked for")
def returns_mebibytes(blocks, x, loss_fn, inside, budget):
    return keeps_the_last_ones(blocks, x, loss_fn, inside, budget) / 2**20


@BANK.wrong("the peak is not a whole number", "counted, not divided")
def returns_a_float(blocks, x, loss_fn, inside, budget):
    return float(keeps_the_last_ones(blocks, x, loss_fn, inside, budget))


@BANK.wrong("the peak is not returned", "without a return")
def returns_nothing(blocks, x, loss_fn, inside, budget):
    without_measuring(blocks, x, loss_fn, inside, budget)


@BANK.wrong("what was returned is not the peak", "one number is wanted")
def returns_the_output(blocks, x, loss_fn, inside, budget):
    out = forward(blocks, x, needed(blocks, x, inside, budget))
    loss_fn(out).backward()
    return out.detach()


@BANK.wrong("blocks are computed again in vain", "more insides have room", same_as="halves_the_room")
def counts_the_output_too(blocks, x, loss_fn, inside, budget):
    again = max(len(blocks) - room_for(blocks, x, inside, budget - x.nbytes), 0)
    return measured(lambda: loss_fn(forward(blocks, x, again)).backward())
