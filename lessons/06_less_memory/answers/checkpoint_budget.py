"""Answers to "checkpoint within a budget": which blocks are computed again, their gradients, the peak."""

from banks.bank import Bank
from banks.edits import add, change, drop

import gpulab

BANK = Bank("checkpoint_budget", "step_within")
ROOM, MUST = "(budget - len(blocks) * x.nbytes) // inside", "max(len(blocks) - room, 0)"
LOOP = """    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i < again else block(x)"""
BACKWARD, RETURN = "loss_fn(x).backward()", "return torch.cuda.max_memory_allocated(x.device) - before"
RESET = "torch.cuda.reset_peak_memory_stats(x.device)"
STACK = "checkpoint_sequential(nn.Sequential(*blocks)"
IMPORT = "    from torch.utils.checkpoint import checkpoint_sequential\n"


@BANK.right
def uses_a_tracker(blocks, x, loss_fn, inside, budget):
    with gpulab.GPUMemoryTracker() as tracker:
        BANK.solution(blocks, x, loss_fn, inside, budget)
    return tracker.peak_above_entry_bytes


BANK.right(
    (add("x = x.detach().requires_grad_()", before="for i, block"), change("reentrant=False", "reentrant=True")),
    (
        change(RESET, "torch.cuda.reset_peak_memory_stats()"),
        change(
            BACKWARD,
            """parameters = list(blocks.parameters())
    for p, grad in zip(parameters, torch.autograd.grad(loss_fn(x), parameters), strict=True):
        p.grad = grad if p.grad is None else p.grad.add_(grad)""",
        ),
        change(RETURN, 'return torch.cuda.memory_stats()["allocated_bytes.all.peak"] - before'),
    ),
)
BANK.mistakes(
    # which blocks are computed again
    ("everything is recomputed, and no memory is saved",
     "the blocks are one segment: when backward begins, all of it is recomputed at once. Make each recomputed block a "
     "segment of its own",
     change(LOOP, "    x = checkpoint(nn.Sequential(*blocks), x, use_reentrant=False)")),
    ("no block is recomputed", "checkpoint the blocks whose insides do not fit into the budget",
     change("if i < again", "if False")),
    ("the wrong blocks keep their insides",
     "the first ones keep theirs. Backward begins with the last block and recomputes it while all kept insides are "
     "still there: one inside too many. Keep those of the last blocks", change("i < again", "i >= room")),
    ("every block is recomputed, whatever the budget", "each costs a forward pass: keep the insides that fit",
     change(MUST, "len(blocks)")),
    ("more insides fit than are kept",
     "budget - len(blocks) * x.nbytes is the room for insides, and all of it is to be used",
     change(ROOM, "max(" + ROOM + " // 2, 1)"), change("len(blocks) * x", "(len(blocks) + 1) * x")),
    ("the last block is recomputed too, although one inside fits",
     "backward begins with it, so its inside comes back at once",
     change(MUST, "max(len(blocks) - room + (room == 1), 0)")),
    ("the room for insides is overestimated",
     "an input is kept for every block, even a recomputed one, and an inside fits as a whole or not at all: (budget - "
     "len(blocks) * x.nbytes) // inside", change(" - len(blocks) * x.nbytes", ""),
     change(ROOM, "budget // (inside + x.nbytes)"), change(ROOM, "round((budget - len(blocks) * x.nbytes) / inside)")),
    ("an input is counted at 4 bytes per element", "x need not be float32: x.nbytes",
     change("x.nbytes", "x.numel() * 4")),
    ("the recomputed blocks are one segment", "backward recomputes all their insides at once",
     change(LOOP, """    x = checkpoint(nn.Sequential(*blocks[:again]), x, use_reentrant=False)
    for block in blocks[again:]:
        x = block(x)"""),
     (change(MUST, "min(max(len(blocks) - room, 0) + 1, len(blocks))"),
      change(LOOP, """    x = checkpoint(nn.Sequential(*blocks[:again]), x, use_reentrant=False)
    for block in blocks[again:]:
        x = block(x)"""))),
    ("the last of equal segments is larger than the others",
     "checkpoint_sequential leaves the rest to the last one, which keeps all its insides: 5 blocks in 3 segments are "
     "1, 1 and 3", change(LOOP, IMPORT + f"    x = {STACK}, -(-len(blocks) // room), x, use_reentrant=False)")),
    ("activations are sent to the host", "they return over a slow bus: checkpoint the blocks instead",
     change(LOOP, """    with torch.autograd.graph.save_on_cpu():
        for block in blocks:
            x = block(x)"""),
     change(LOOP, """    for i, block in enumerate(blocks):
        if i < again:
            with torch.autograd.graph.save_on_cpu():
                x = checkpoint(block, x, use_reentrant=False)
        else:
            x = block(x)""")),
    ("a block is left out", "room and budget decide which blocks are recomputed; all of them run",
     change("enumerate(blocks)", "enumerate(blocks[:-1])")),
    # gradients
    ("checkpointed blocks got no gradient",
     "the older implementation ran (use_reentrant=True, or not said): it gives no gradient to a segment whose input "
     "needs none, and x is data. Say use_reentrant=False", change("reentrant=False", "reentrant=True"),
     change(LOOP, IMPORT + f"    x = {STACK}, 2, x)")),
    ("the output has no graph",
     "with use_reentrant=True, the default, a checkpoint whose input needs no gradient gives an output without one, "
     "and x is data. Say use_reentrant=False",
     change(LOOP, "    x = checkpoint(nn.Sequential(*blocks), x, use_reentrant=True)")),
    ("the graph is cut between blocks",
     "a block got a detached tensor, so backward stops there. checkpoint already keeps no activations: there is "
     "nothing to detach", add("x = x.detach()", before="x = checkpoint")),
    ("no block got a gradient",
     "backward() was not called on the loss, or what torch.autograd.grad returns is not added to .grad",
     change(BACKWARD, "loss_fn(x)"), change(BACKWARD, "torch.autograd.grad(loss_fn(x), list(blocks.parameters()))")),
    ("a block was recomputed with other dropout masks",
     "preserve_rng_state=False, or another seed before the second pass: the gradient is then that of a function that "
     "was never run forward", change("reentrant=False", "reentrant=False, preserve_rng_state=False")),
    ("dropout draws other masks than in a plain pass",
     "the first pass must begin with the random generators as they are at entry",
     (add("forked = torch.random.fork_rng(); forked.__enter__(); torch.manual_seed(0)", before="for i, block"),
      add("forked.__exit__(None, None, None)", after=BACKWARD)),
     (add("for block in blocks: block.dropout.p = 0.0", before="for i, block"),
      add("for block in blocks: block.dropout.p = 0.2", after=BACKWARD))),
    ("the blocks run forward once before the pass",
     "that draws other masks, and costs a forward pass: what a block keeps is known, it is `inside`",
     add("with torch.no_grad(): nn.Sequential(*blocks)(x)", before="for i, block")),
    ("your function seeds a global random generator", "use a generator of your own",
     add("torch.manual_seed(0)", before="for i, block"), add("torch.cuda.manual_seed_all(0)", after=BACKWARD)),
    ("dropout was switched off", "eval() makes both passes equal by switching it off. checkpoint restores the random "
                                 "state for you", (add("blocks.eval()", before="for i, block"), add("blocks.train()",
                                 after=BACKWARD))),
    ("the gradients that existed before are gone",
     "zero_grad(), or an assignment to .grad: the caller may be in the middle of an accumulation",
     add("blocks.zero_grad()", before="for i, block")),
    ("gradients are added to .grad, which may be None", "where there is no gradient yet, .grad is None",
     change(BACKWARD, """parameters = list(blocks.parameters())
    for p, grad in zip(parameters, torch.autograd.grad(loss_fn(x), parameters), strict=True):
        p.grad += grad""")),
    ("the gradient is twice that of a plain pass", "backward() once, of loss_fn(output)",
     change(BACKWARD, "(loss_fn(x) * 2).backward()"),
     change(BACKWARD, "loss = loss_fn(x); loss.backward(retain_graph=True); loss.backward()")),
    ("the loss is wrong", "loss_fn, an argument, computes the loss from the output", change("loss_fn(x)",
     "x.square().mean()")),
    # what is returned
    ("what is left after backward was returned, not the peak",
     "memory_allocated() counts what is alive now; by then the activations are gone",
     change("max_memory", "memory"), change(RETURN, "del x\n    return torch.cuda.memory_allocated() - before")),
    ("what is left after backward was returned, including what was allocated before the call",
     "memory_allocated() at the end: the activations are gone by then",
     change(RETURN, "return torch.cuda.memory_allocated()"),
     change(RETURN, "del x\n    return torch.cuda.memory_allocated()")),
    ("an earlier peak was returned",
     "the counter covers the whole process: call torch.cuda.reset_peak_memory_stats() first", drop(RESET)),
    ("an earlier peak was returned, including what was allocated before the call",
     "the counter was not reset, and what was allocated before is not subtracted", (drop(RESET), change(" - before",
     ""))),
    ("the number includes what was allocated before the call", "subtract what was allocated at entry",
     change(" - before", "")),
    ("the peak of the forward pass alone was returned",
     "read the counter after backward: the recomputed activations appear there",
     (change(BACKWARD, "loss = loss_fn(x)"), change(RETURN, RETURN.replace("return", "peak =")
      + "\n    loss.backward()\n    return peak"))),
    ("the peak of the reserved memory was returned", "the allocator reserves more than it hands out",
     change("max_memory_allocated", "memory_reserved")),
    ("the peak of another GPU was returned", "the current GPU need not be the first",
     tuple(change(f"{name}(x.device)", f"{name}(0)") for name in
           ("= torch.cuda.memory_allocated", "reset_peak_memory_stats", "max_memory_allocated"))),
    ("the peak is returned in MiB", "bytes were asked for", change(RETURN, f"return ({RETURN[7:]}) / 2**20")),
    ("the peak is not a whole number", "count bytes, and do not divide them",
     change(RETURN, f"return float({RETURN[7:]})")),
    ("the peak is not returned", "the function ends without a return", drop(RETURN)),
    ("a tensor was returned, and not the peak", "return one number", change(RETURN, "return x.detach()")),
)  # fmt: skip
