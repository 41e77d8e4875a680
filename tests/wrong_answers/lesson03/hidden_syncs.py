"""Answers to "find the hidden waits": what is left in the loop, and what the epoch comes to."""

import numpy as np
import torch
from torch.nn import functional as F

from gpulab.check.lesson03.common import SECTIONS

from ..by_hand import Bank

BANK = Bank("hidden_syncs", SECTIONS)


def epoch(
    model,
    optimizer,
    batches,
    *,
    to=lambda t, device: t.to(device, non_blocking=True),
    each=lambda step, logits, losses, y: None,
    best=torch.minimum,
    hard=lambda losses: torch.where(losses > 1, losses, 0.0).sum(),
    correct=lambda logits, y: (logits.argmax(1) == y).sum(),
    weight=lambda loss, n: loss * n,
    read=lambda values: torch.stack(values).tolist(),
    train=True,
    detach=torch.Tensor.detach,
):
    """The right epoch, with one part of it replaced."""
    device = next(model.parameters()).device
    sums = [torch.zeros((), device=device) for _ in range(3)]
    smallest, samples = torch.full((), float("inf"), device=device), 0
    for step, (x, y) in enumerate(batches):
        x, y = to(x, device), to(y, device)
        logits = model(x)
        losses = F.cross_entropy(logits, y, reduction="none")
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        if train:
            optimizer.step()
        each(step, logits, losses, y)
        losses = detach(losses)
        sums[0] = sums[0] + weight(losses.mean(), len(x))
        smallest = best(smallest, losses.mean())
        sums[1] = sums[1] + hard(losses)
        sums[2] = sums[2] + correct(logits, y)
        samples += len(x)
    total, low, high, right = read([sums[0], smallest, sums[1], sums[2]])
    return {"loss": total / samples, "best": low, "hard": high, "correct": int(right)}


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def sums_on_the_gpu(model, optimizer, batches):
    return epoch(model, optimizer, batches)


@BANK.right
def keeps_all_losses(model, optimizer, batches):
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
    return {
        "loss": losses.mean().item(),
        "best": means.min().item(),
        "hard": losses[losses > 1].sum().item(),
        "correct": sum(hit.item() for hit in hits),
    }


@BANK.right
def multiplies_by_the_mask(model, optimizer, batches):
    return epoch(model, optimizer, batches, hard=lambda losses: (losses * (losses > 1)).sum())


@BANK.right
def reads_one_by_one_afterwards(model, optimizer, batches):
    return epoch(model, optimizer, batches, read=lambda values: [value.item() for value in values])


@BANK.right
def copies_back_and_waits_once(model, optimizer, batches, wait=torch.cuda.synchronize):
    kept = []

    def each(step, logits, losses, y):
        kept.append((losses.detach().to("cpu", non_blocking=True), (logits.argmax(1) == y).sum()))

    epoch(model, optimizer, batches, each=each, read=lambda values: [0.0] * 4)
    wait(next(model.parameters()).device)
    losses = torch.cat([losses for losses, _ in kept])
    return {
        "loss": float(losses.mean()),
        "best": min(float(losses.mean()) for losses, _ in kept),
        "hard": float(losses[losses > 1].sum()),
        "correct": sum(int(hits) for _, hits in kept),
    }


@BANK.right
def watches_with_the_debug_mode(model, optimizer, batches):
    torch.cuda.set_sync_debug_mode("error")
    try:
        return epoch(model, optimizer, batches, read=read_with_the_mode_off)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def read_with_the_mode_off(values):
    torch.cuda.set_sync_debug_mode("default")
    return torch.stack(values).tolist()


@BANK.right
def copies_back_and_waits_for_the_stream(model, optimizer, batches):
    return copies_back_and_waits_once(
        model, optimizer, batches, wait=lambda device: torch.cuda.current_stream(device).synchronize()
    )


@BANK.right
def copies_in_a_side_stream(model, optimizer, batches):
    return in_a_side_stream(model, optimizer, batches, waits=True)


def in_a_side_stream(model, optimizer, batches, *, waits):
    where = next(model.parameters()).device
    side = torch.cuda.Stream(where)

    def to(t, device):
        main = torch.cuda.current_stream(device)
        with torch.cuda.stream(side):
            t = t.to(device, non_blocking=True)
        if waits:
            main.wait_stream(side)
            t.record_stream(main)
        return t

    return epoch(model, optimizer, batches, to=to)


@BANK.right
def counts_in_numpy(model, optimizer, batches):
    out = epoch(model, optimizer, batches)
    return out | {"correct": np.int64(out["correct"])}


# --- wrong: waits --------------------------------------------------------------------------------------


@BANK.wrong("the host waits for a batch to be copied", "non_blocking=True does not")
def default_copies(model, optimizer, batches):
    return epoch(model, optimizer, batches, to=lambda t, device: t.to(device))


@BANK.wrong("the host waits for a copy from ordinary memory", "is no longer pinned")
def clones_the_batch(model, optimizer, batches):
    return epoch(model, optimizer, batches, to=lambda t, device: t.clone().to(device, non_blocking=True))


@BANK.wrong("the host waits for a copy from ordinary memory", "torch.full make it", same_as="clones_the_batch")
def begins_with_a_tensor_of_a_number(model, optimizer, batches):
    torch.tensor(float("inf"), device=next(model.parameters()).device)
    return epoch(model, optimizer, batches)


@BANK.wrong("the host waits for a value inside the loop", ".item() needs the value now")
def item_in_each_step(model, optimizer, batches):
    shown = []
    return epoch(model, optimizer, batches, each=lambda step, logits, losses, y: shown.append(losses.mean().item()))


@BANK.wrong("the host waits for a value inside the loop", ".item() needs the value now", same_as="item_in_each_step")
def item_in_every_second_step(model, optimizer, batches):
    def each(step, logits, losses, y):
        if step % 2 == 0:
            losses.mean().item()

    return epoch(model, optimizer, batches, each=each)


@BANK.wrong("the host waits for a value inside the loop", "torch.minimum and torch.where")
def branches(model, optimizer, batches):
    def best(smallest, loss):
        if loss < smallest:
            return loss
        return smallest

    return epoch(model, optimizer, batches, best=best)


@BANK.wrong("the host waits for a value inside the loop", "torch.minimum and torch.where", same_as="branches")
def pythons_min(model, optimizer, batches):
    return epoch(model, optimizer, batches, best=lambda smallest, loss: min(smallest, loss))


@BANK.wrong("the host waits for a value inside the loop", "has a fixed shape")
def indexes_with_a_mask(model, optimizer, batches):
    def hard(losses):
        return losses[losses > 1].sum()

    return epoch(model, optimizer, batches, hard=hard)


@BANK.wrong("the host waits for a value inside the loop", "are .item()")
def counts_with_int(model, optimizer, batches):
    def correct(logits, y):
        return int((logits.argmax(1) == y).sum())

    return epoch(model, optimizer, batches, correct=correct)


@BANK.wrong("the host waits for a value inside the loop", "bring all of it once")
def brings_losses_to_the_cpu(model, optimizer, batches):
    kept = []

    def each(step, logits, losses, y):
        kept.append(losses.detach().cpu())

    return epoch(model, optimizer, batches, each=each)


@BANK.wrong("the host waits for a value inside the loop", "Python needs a value")
def prints(model, optimizer, batches):
    def each(step, logits, losses, y):
        print(losses.detach())

    return epoch(model, optimizer, batches, each=each)


@BANK.wrong("the host is told to wait inside the loop", "belongs behind the loop")
def synchronizes(model, optimizer, batches):
    return epoch(model, optimizer, batches, each=lambda step, logits, losses, y: torch.cuda.synchronize())


@BANK.wrong("the numbers were read before they were there", "not yet the result")
def reads_too_early(model, optimizer, batches):
    return epoch(
        model, optimizer, batches, read=lambda values: torch.stack(values).to("cpu", non_blocking=True).tolist()
    )


# --- wrong: values -------------------------------------------------------------------------------------


@BANK.wrong("loss is not what noisy_epoch gives", "small last batch")
def mean_of_means(model, optimizer, batches):
    n = sum(len(x) for x, _ in batches) / len(batches)
    return epoch(model, optimizer, batches, weight=lambda loss, _: loss * n)


@BANK.wrong("best is not what noisy_epoch gives", "of the last batch")
def keeps_the_last(model, optimizer, batches):
    return epoch(model, optimizer, batches, best=lambda smallest, loss: loss)


@BANK.wrong("hard is not what noisy_epoch gives", "their sum is asked for")
def counts_the_hard(model, optimizer, batches):
    return epoch(model, optimizer, batches, hard=lambda losses: (losses > 1).sum())


@BANK.wrong("hard is not what noisy_epoch gives", "1 and below count 0")
def sums_all(model, optimizer, batches):
    return epoch(model, optimizer, batches, hard=lambda losses: losses.sum())


@BANK.wrong("best is not a number", "begins at infinity")
def starts_from_nan(model, optimizer, batches):
    return epoch(model, optimizer, batches, best=lambda smallest, loss: loss * float("nan"))


@BANK.wrong("correct is not what noisy_epoch gives", "the number is asked for")
def accuracy(model, optimizer, batches):
    out = epoch(model, optimizer, batches)
    return out | {"correct": out["correct"] / sum(len(x) for x, _ in batches)}


@BANK.wrong("correct is a float, not an int", "int(correct)")
def counts_as_a_float(model, optimizer, batches):
    out = epoch(model, optimizer, batches)
    return out | {"correct": float(out["correct"])}


@BANK.wrong("the graphs of earlier batches are kept", "losses = losses.detach()")
def keeps_the_graphs(model, optimizer, batches):
    return epoch(model, optimizer, batches, detach=lambda losses: losses)


@BANK.wrong("the graphs of earlier batches are kept", "losses = losses.detach()", same_as="keeps_the_graphs")
def keeps_the_graph_of_the_best(model, optimizer, batches):
    kept = []
    return epoch(model, optimizer, batches, each=lambda step, logits, losses, y: kept.append(losses.mean()))


@BANK.wrong("loss is a tensor, not a number", "with one wait")
def returns_tensors(model, optimizer, batches):
    out = epoch(model, optimizer, batches)
    return {name: torch.tensor(value) for name, value in out.items()}


@BANK.wrong("the result is not the dict that was asked for")
def returns_a_list(model, optimizer, batches):
    return list(epoch(model, optimizer, batches).values())


@BANK.wrong("the result is not the dict that was asked for", "without a return")
def returns_nothing(model, optimizer, batches):
    epoch(model, optimizer, batches)


@BANK.wrong("the optimizer did not step once for each batch", "the last batch is left out")
def leaves_out_the_last(model, optimizer, batches):
    return epoch(model, optimizer, batches[:-1])


@BANK.wrong(
    "the optimizer did not step once for each batch", "the last batch is left out", same_as="leaves_out_the_last"
)
def never_steps(model, optimizer, batches):
    return epoch(model, optimizer, batches, train=False)


@BANK.wrong("the model is not trained as noisy_epoch trains it", "runs on loss, the mean")
def goes_on_changing_the_weights(model, optimizer, batches):
    out = epoch(model, optimizer, batches)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.01)
    return out


@BANK.wrong("your function raised RuntimeError", "on the device of the model")
def leaves_the_batch_on_the_cpu(model, optimizer, batches):
    return epoch(model, optimizer, batches, to=lambda t, device: t)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your function left a setting changed", "use it as a context manager")
def leaves_the_debug_mode_on(model, optimizer, batches):
    torch.cuda.set_sync_debug_mode("warn")
    return epoch(model, optimizer, batches)


@BANK.wrong("your function changed its argument model: it is left in eval mode", "put it back in a finally")
def leaves_the_model_in_eval_mode(model, optimizer, batches):
    found = epoch(model, optimizer, batches)
    model.eval()
    return found


@BANK.wrong(
    "your function changed its argument model: layer 0 (Linear) has a hook that it did not have", "handle.remove()"
)
def leaves_a_hook(model, optimizer, batches):
    shapes = []
    model[0].register_forward_hook(lambda layer, given, out: shapes.append(out.shape))
    return epoch(model, optimizer, batches)


@BANK.wrong("your function changed its argument batches", "pop or sort of a list")
def uses_the_list_up(model, optimizer, batches):
    mine = list(batches)
    found = epoch(model, optimizer, mine)
    batches.clear()
    return found


# --- wrong: another GPU, and what has not arrived --------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "the current one")
def writes_cuda(model, optimizer, batches):
    return epoch(model, optimizer, batches, to=lambda t, device: t.to("cuda", non_blocking=True))


@BANK.wrong("the numbers were read before they were there", "pass its device")
def waits_for_the_current_gpu(model, optimizer, batches):
    return copies_back_and_waits_once(model, optimizer, batches, wait=lambda device: torch.cuda.synchronize())


@BANK.wrong("the numbers were read before they were there", "it comes too late")
def reads_three_of_four_too_early(model, optimizer, batches):
    def read(values):
        first = torch.stack(values[:3]).to("cpu", non_blocking=True).tolist()
        return [*first, values[3].item()]

    return epoch(model, optimizer, batches, read=read)


@BANK.wrong("a batch is read before it has arrived", "do not wait for each other by themselves")
def copies_in_a_side_stream_without_a_wait(model, optimizer, batches):
    return in_a_side_stream(model, optimizer, batches, waits=False)


@BANK.wrong("best is not what noisy_epoch gives", "begin at infinity")
def begins_at_ten(model, optimizer, batches):
    return epoch(model, optimizer, batches, best=lambda smallest, loss: torch.minimum(smallest.clamp(max=10.0), loss))
