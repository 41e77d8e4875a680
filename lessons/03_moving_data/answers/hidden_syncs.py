"""Answers to "find the hidden waits": what is left in the loop, and what the epoch comes to."""

import numpy as np
import torch
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.nn import functional as F

BANK = Bank("hidden_syncs", "quiet_epoch")
TO, LOOP = "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)", "for x, y in batches:"
TOTAL, BEST = "total += losses.sum()", "torch.minimum(best, loss.detach())"
HARD, CORRECT = "torch.where(losses > 1.0, losses, 0.0)", "(logits.argmax(dim=1) == y).sum()"
READ = "torch.stack([total, best, hard, correct]).tolist()"
RETURN = 'return {"loss": total / samples, "best": best, "hard": hard, "correct": int(correct)}'
END, BACK = "samples += len(x)", "total, best, hard, correct = torch"
SIDE = (
    add("side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)", before=LOOP),
    change(TO, f"with torch.cuda.stream(side):\n            {TO}\n        main.wait_stream(side)"),
    add("[t.record_stream(main) for t in (x, y)]", before="logits = model(x)"),
)


@BANK.right
def keeps_all_losses_and_reads_afterwards(model, optimizer, batches):
    every, hits = [], []
    where = next(model.parameters()).device
    for x, y in batches:
        x, y = x.cuda(where, non_blocking=True), y.cuda(where, non_blocking=True)
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        every.append(losses.detach())
        hits.append((logits.detach().argmax(1) == y).sum())
    means = torch.stack([losses.mean() for losses in every])
    losses = torch.cat(every).cpu()
    hard = losses[losses > 1].sum().item()
    return {
        "loss": losses.mean().item(),
        "best": means.min().item(),
        "hard": hard,
        "correct": np.int64(sum(hits).item()),
    }


COPIED = 'torch.stack([total, best, hard, correct]).to("cpu", non_blocking=True)'
LATE = (
    change(READ, COPIED),
    change(BACK, "read = torch"),
    add("torch.cuda.synchronize(device)", before="return {"),
    add("total, best, hard, correct = read.tolist()", before="return {"),
)
BANK.right(
    (*SIDE, add("torch.cuda.set_sync_debug_mode('error')", before=LOOP),
     add("torch.cuda.set_sync_debug_mode('default')", before=BACK)),
    (*LATE, change(HARD, "(losses * (losses > 1))")),
)  # fmt: skip
BANK.mistakes(
    ("the host waits for a batch to be copied",
     "the default .to(device) waits; from pinned memory, non_blocking=True does not",
     change(TO, "x, y = x.to(device), y.to(device)")),
    ("the host waits for a copy from ordinary memory",
     "torch.tensor(..., device=device) sends a number from there, torch.zeros and torch.full make it on the GPU; and "
     "what is copied anew on the host (clone) is no longer pinned", change("x.to(device", "x.clone().to(device"),
     change('torch.full((), float("inf"), device=device)', "torch.tensor(float('inf'), device=device)")),
    ("the host waits for a number in the loop",
     ".item() and float() need the value now: keep a running sum on the GPU, and read it after the loop",
     change(TOTAL, "total += losses.sum().item()"), add("if samples > 9: loss.item()", before=END)),
    ("the host waits for a truth value in the loop",
     "Python's if, min and max need the value now: torch.minimum and torch.where choose on the GPU",
     change(BEST, "loss.detach() if loss < best else best"), change(BEST, "min(best, loss.detach())")),
    ("the host waits for a size that depends on values in the loop",
     "losses[mask] has such a size: torch.where(mask, losses, 0.0).sum() has a fixed shape",
     change(HARD, "losses[losses > 1.0]")),
    ("the host waits for a whole number in the loop",
     "int() of a tensor is .item(): keep the tensor, and read it after the loop", change(CORRECT, f"int({CORRECT})")),
    ("the host waits for a tensor to come to the CPU in the loop",
     "copying a tensor to the CPU, or printing it, waits: collect on the GPU, and copy everything once",
     add("shown = losses.cpu()", before=END), add("print(losses)", before=END)),
    ("the host is told to wait in the loop",
     "synchronize waits for all that is queued: call it after the loop, if anywhere",
     add("torch.cuda.synchronize(device)", before=END)),
    ("the numbers are read before they are there",
     "a copy to the CPU with non_blocking=True returns at once: a wait comes between it and what reads it",
     change(READ, f"{COPIED}.tolist()")),
    ("the host waits for the current GPU, and the model is on another", "torch.cuda.synchronize(device)",
     (*LATE, change("synchronize(device)", "synchronize()"))),
    ("a batch is read before it has arrived",
     "two streams do not wait for each other by themselves: main.wait_stream(side) before the forward pass, or no "
     "second stream at all", (*SIDE, drop("main.wait_stream"))),
    ("a batch's memory is given to the next copy while it is read",
     "the allocator knows the side stream only: t.record_stream(main) for each of its tensors",
     (*SIDE, drop("record_stream"))),
    ("the batch stays on the CPU", "running sums and batches are on the device of the model", drop(TO)),
    ("the batch goes to the current GPU, also where the model is on another",
     "“cuda” is the current GPU: take the device of the model's parameters",
     change(TO, TO.replace("device,", "'cuda',"))),
    ("loss is the mean of the batches' means", "that gives samples of the small last batch more weight",
     (change(TOTAL, "total += losses.mean()"), change("total / samples", "total / len(batches)"))),
    ("loss is the sum over all samples", "divide it by their number", change("total / samples", "total")),
    ("loss is that of the last batch", "add up all losses",
     (change(TOTAL, "total = losses.sum()"), change("total / samples", "total / len(x)"))),
    ("best is that of the last batch", "keep the smaller: torch.minimum(best, loss)", change(BEST, "loss.detach()")),
    ("best is the smallest loss of a sample", "a batch's mean loss is asked for",
     change("loss.detach())", "losses.min())")),
    ("best starts at a number that losses may exceed", "begin at infinity", change('float("inf")', "10.0")),
    ("best is not a number", "start the smallest so far at infinity", change('float("inf")', "float('nan')")),
    ("hard is how many losses are above 1", "their sum is asked for", change(HARD, "(losses > 1)")),
    ("hard is the sum of all losses", "losses of 1 and below count as 0", change(HARD, "losses")),
    ("correct is the fraction that is right", "the number is asked for", change("int(correct)", "correct / samples")),
    ("correct is a float", "torch.stack([...]).tolist() gives floats when one of the tensors has floats: int(correct)",
     change("int(correct)", "correct")),
    ("correct is counted with the weights after the step", "count with the logits that the loss was computed from",
     change("logits.argmax", "model(x).argmax")),
    ("the graphs of earlier batches are kept",
     "a running sum of tensors that are not detached holds the graphs of all of them: losses = losses.detach() after "
     "backward", drop("losses = losses.detach()"), change("loss.detach()", "loss")),
    ("the numbers are tensors", "torch.stack([...]).tolist() after the loop reads all of them with one wait",
     change(".tolist()", "")),
    ("a list came back", "a dict is asked for", change(RETURN, "return [total / samples, best, hard, int(correct)]")),
    ("nothing came back", "the function ends without a return", change("return {", "found = {")),
    ("the last batch is left out", "go through all of them", change(LOOP, "for x, y in batches[:-1]:")),
    ("the optimizer never steps", "one step for each batch", drop("optimizer.step()")),
    ("the gradients add up", "each batch has its zero_grad", drop("optimizer.zero_grad()")),
    ("backward runs on the sum of the losses", "on loss, the mean",
     change("loss.backward()", "losses.sum().backward()")),
    ("something besides the steps changes the weights", "optimizer.step() alone changes them",
     add("[p.data.mul_(0.99) for p in model.parameters()]", before=BACK)),
    ("your function left a setting changed", "use it as a context manager",
     add("torch.cuda.set_sync_debug_mode('warn')", before=LOOP)),
    ("your function changed its argument model: it is left in eval mode", "put it back in a finally",
     add("model.eval()", before=BACK)),
    ("your function changed its argument batches", "pop or sort of a list", add("batches.reverse()", before=LOOP)),
)  # fmt: skip
