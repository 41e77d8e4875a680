"""Mistakes with windows that the epochs of exercises 1 and 3 can both have."""

from banks.edits import add, change, drop, move

STARTS, WINDOW = "range(0, len(micro_batches), steps)", "micro_batches[start : start + steps]"
CLEAR, LOSS, LOOP, FIRST = "optimizer.zero_grad()", "loss_fn(model(x), y)", "for x, y in window:", "for start in"
NO_WINDOW_OF_ONE = change(STARTS, "range(0, max(1, len(micro_batches) - (steps > 1)), steps)")


def mistakes(shared, begin, step, inside, after, at_the_end):
    """Rows for a solution in which `shared(text)` puts this behind the loss in place of its share of the window, and
    the lines `begin` and `step` are those where a micro-batch begins and the optimizer steps. `inside` takes all that
    ends a window into its loop, `after(line)` adds a line to it, and `at_the_end(line)` one before the return."""
    return (
        ("the last, incomplete window never makes a step",
         "a step only when (i + 1) % steps == 0 leaves the rest in .grad, where it is lost or, worse, counted in "
         "the next epoch", change(STARTS, "range(0, len(micro_batches) // steps * steps, steps)")),
        ("the step comes at the wrong end of the window",
         "i % steps == 0 is true for i = 0: the first update sees one micro-batch. Count from one: (i + 1) % steps",
         change(WINDOW, "micro_batches[max(0, start - steps + 1) : start + 1]")),
        ("the optimizer steps after every micro-batch",
         "nothing is accumulated: the step belongs behind the inner loop, or behind the test for the window's end",
         add("steps = 1", before=FIRST), inside),
        ("the optimizer steps once, at the end of the epoch",
         "the windows run into each other: step and clear after every `steps` micro-batches, inside the loop",
         (change(STARTS, "[0]"), change(WINDOW, "micro_batches"), shared(" / steps"))),
        ("a last window of a single micro-batch makes no step",
         "what is left is a window, also if it is one micro-batch: its samples are in the epoch as others are",
         NO_WINDOW_OF_ONE),
        ("the optimizer that was passed in never steps",
         "it is replaced by another optimizer, or by an update by hand: call step() of the argument",
         add("optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)", before=FIRST)),
        ("each update sees only the last micro-batch of its window",
         "zero_grad runs for every micro-batch and throws away what was accumulated; clear once a window",
         move(CLEAR, before=begin),
         *((move(CLEAR, before=begin), shared(text)) for text in ("", " / steps"))),
        ("gradients of earlier windows are still in .grad",
         "nothing clears the gradients after a step, so each update repeats the ones before it", drop(CLEAR)),
        ("the gradients are cleared just before the step",
         "the gradient is zero at the step: zero_grad stands between backward and step, or there is no backward",
         move(CLEAR, before=step)),
        ("what was in .grad before the call is counted in the first window",
         "clear the gradients before the first window too: the caller may have left some", (drop(CLEAR), after(CLEAR))),
        ("the last window is divided by steps, though it may hold fewer micro-batches",
         "dividing by steps shrinks the update of a window that holds fewer: divide by what the window holds",
         shared(" / steps")),
        ("the gradients are added up and never divided",
         "backward adds to .grad; without a division the update is the sum over the window, so its size grows with the "
         "number of micro-batches", shared("")),
        ("the gradients are divided by the micro-batches of the whole epoch",
         "an update is the mean over its own window: divide by what the window holds, not by len(micro_batches)",
         shared(" / len(micro_batches)")),
        ("the loss is another one than loss_fn",
         "F.cross_entropy is written into the loop: call loss_fn(outputs, targets), whatever the caller has chosen",
         change(LOSS, "F.cross_entropy(model(x), y)")),
        ("several micro-batches go through the model at once",
         "the gradient is right, but the memory is that of the large batch, which is what must not fit",
         (change(LOOP, "for x, y in [tuple(map(torch.cat, zip(*window)))]:"), shared(""))),
        ("the outputs of several micro-batches are kept at once",
         "outputs are collected in a list, as for a report: take from each the number that is wanted, and let it go. "
         "An output, detached or not, is as large as its micro-batch",
         (add("kept = []", before=FIRST),
          change(f"loss = {LOSS}", "kept.append(model(x)); loss = loss_fn(kept[-1], y)"),
          add("kept[-1] = kept[-1].detach()", after=".backward()"))),
        ("the weights are moved beside the optimizer's step",
         "they are updated by hand too, or the learning rate is another while the function runs",
         after("with torch.no_grad(): [p.mul_(0.99) for p in model.parameters()]")),
        ("the model runs in evaluation mode, and is put back",
         "eval() switches dropout off, and makes BatchNorm use its running statistics: it is for an evaluation, "
         "not for training", (add("model.eval()", before=FIRST), at_the_end("model.train()"))),
        ("the model came back in another dtype",
         "model.to(dtype), or half(), rounds the caller's weights for good; autocast rounds copies",
         change("model(x)", "model.to(torch.bfloat16)(x.bfloat16())")),
        ("the model was moved to another device",
         "the caller's own model, whose optimizer steps next: micro-batches go to where the model is",
         at_the_end("model.to('cuda')")),
    )  # fmt: skip
