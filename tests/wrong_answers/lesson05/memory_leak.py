"""Answers to "find the leak": a training loop that keeps losses, scores and rows, and must keep nothing else."""

import torch
from torch.nn import functional as F

from gpulab.check.lesson05.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("memory_leak", SECTIONS)


def hardest_row(x, y, output):
    return x[(output.detach() - y).square().sum(1).argmax()]


def score_of(model, held_out):
    model.eval()
    with torch.no_grad():
        score = F.l1_loss(model(held_out[0]), held_out[1])
    model.train()
    return score


def loop(
    model,
    optimizer,
    batches,
    held_out,
    keep_loss=lambda loss: loss.item(),
    keep_row=lambda row: row.cpu(),
    keep_score=lambda score: score.item(),
    score=score_of,
    after=lambda **step: None,
):
    """A right answer, but for the parts that are given."""
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(keep_loss(loss))
        hardest.append(keep_row(hardest_row(x, y, output)))
        scores.append(keep_score(score(model, held_out)))
        after(output=output, x=x, losses=losses)
    return losses, scores, hardest


def with_a_graph(model, held_out):
    model.eval()
    score = F.l1_loss(model(held_out[0]), held_out[1])
    model.train()
    return score


def as_is(tensor):
    return tensor


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def numbers_and_copies(model, optimizer, batches, held_out):
    return loop(model, optimizer, batches, held_out)


@BANK.right
def validates_some_rows_at_a_time(model, optimizer, batches, held_out):
    def score(model, held_out):
        model.eval()
        with torch.no_grad():
            parts = [(model(x) - y).abs().sum() for x, y in zip(*(t.split(64) for t in held_out), strict=True)]
        model.train()
        return sum(parts) / held_out[1].numel()

    return loop(model, optimizer, batches, held_out, score=score)


@BANK.right
def reads_the_numbers_at_the_end(model, optimizer, batches, held_out):
    losses, scores, hardest = loop(
        *(model, optimizer, batches, held_out),
        keep_loss=lambda loss: loss.detach().clone(),
        keep_score=lambda score: score.clone(),
    )
    return [loss.item() for loss in losses], torch.stack(scores).tolist(), hardest


@BANK.right
def clears_before_and_infers(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        optimizer.zero_grad()
        output = model(x)
        loss = ((output - y) ** 2).mean()
        loss.backward()
        with torch.inference_mode():
            worst = int(((output - y) ** 2).sum(1).argmax())
            hardest.append(x[worst].to("cpu"))
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            scores.append(float((model(held_out[0]) - held_out[1]).abs().mean()))
        model.train()
        losses.append(float(loss.detach()))
    optimizer.zero_grad()
    return losses, scores, hardest


@BANK.right
def copies_the_row_first(model, optimizer, batches, held_out):
    return loop(model, optimizer, batches, held_out, keep_row=lambda row: row.clone().cpu())


# --- wrong: leaks --------------------------------------------------------------------------------------


@BANK.wrong(
    "the graph of every validation stays alive",
    "no_grad() around the validation",
    also="each hardest row keeps its whole batch alive; something as large as the outputs stays alive with each step",
)
def changes_nothing(model, optimizer, batches, held_out):
    return loop(
        *(model, optimizer, batches, held_out),
        keep_loss=lambda loss: loss.detach(),
        keep_row=as_is,
        keep_score=as_is,
        score=with_a_graph,
    )


@BANK.wrong(
    "the graph of every validation stays alive",
    also="each hardest row keeps its whole batch alive; something as large as the outputs stays alive with each step; "
    "zero_grad() is called again: gradients lie in one buffer, and are not what grows",
)
def blames_zero_grad(model, optimizer, batches, held_out):
    def after(**step):
        optimizer.zero_grad(set_to_none=True)
        model.zero_grad(set_to_none=True)

    return loop(
        *(model, optimizer, batches, held_out),
        keep_loss=lambda loss: loss.detach(),
        keep_row=as_is,
        keep_score=as_is,
        score=with_a_graph,
        after=after,
    )


@BANK.wrong(
    "the graph of every validation stays alive",
    also="each hardest row keeps its whole batch alive; something as large as the outputs stays alive with each step; "
    "empty_cache() is called, and gives back only what no tensor holds: it cannot end a leak",
)
def adds_empty_cache(model, optimizer, batches, held_out):
    return loop(
        *(model, optimizer, batches, held_out),
        keep_loss=lambda loss: loss.detach(),
        keep_row=as_is,
        keep_score=as_is,
        score=with_a_graph,
        after=lambda **step: torch.cuda.empty_cache(),
    )


@BANK.wrong("something as large as the outputs stays alive with each step", "detach() shares it")
def deletes_the_name_of_a_loss_in_a_list(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        hardest.append(hardest_row(x, y, output).cpu())
        del loss, output
        scores.append(score_of(model, held_out).item())
    return [loss.item() for loss in losses], scores, hardest


@BANK.wrong(
    "something as large as the outputs stays alive with each step",
    same_as="deletes_the_name_of_a_loss_in_a_list",
)
def detaches_the_losses(model, optimizer, batches, held_out):
    losses, *rest = loop(model, optimizer, batches, held_out, keep_loss=lambda loss: loss.detach())
    return [loss.item() for loss in losses], *rest


@BANK.wrong("each hardest row keeps its whole batch alive", "a view, also after detach()")
def detaches_the_row(model, optimizer, batches, held_out):
    losses, scores, hardest = loop(model, optimizer, batches, held_out, keep_row=lambda row: row.detach())
    return losses, scores, [row.cpu() for row in hardest]


@BANK.wrong("the hardest rows stay on the GPU", "a detached copy on the GPU")
def copies_the_row_on_the_gpu(model, optimizer, batches, held_out):
    losses, scores, hardest = loop(model, optimizer, batches, held_out, keep_row=lambda row: row.clone())
    return losses, scores, [row.cpu() for row in hardest]


@BANK.wrong(
    "something as large as the outputs stays alive with each step",
    also="the hardest rows stay on the GPU",
)
def detaches_all_and_keeps_it_on_the_gpu(model, optimizer, batches, held_out):
    def copy(tensor):
        return tensor.detach().clone()

    return loop(
        model, optimizer, batches, held_out, keep_loss=lambda loss: loss.detach(), keep_row=copy, keep_score=copy
    )


@BANK.wrong("the graph of every validation stays alive", "and no backward ever frees")
def keeps_the_scores_with_their_graph(model, optimizer, batches, held_out):
    losses, scores, hardest = loop(model, optimizer, batches, held_out, keep_score=as_is, score=with_a_graph)
    return losses, [score.item() for score in scores], hardest


@BANK.wrong(
    "something as large as the outputs stays alive with each step",
    "Kept outputs take the same bytes",
    same_as="deletes_the_name_of_a_loss_in_a_list",
)
def keeps_the_outputs(model, optimizer, batches, held_out):
    kept = []
    return loop(model, optimizer, batches, held_out, after=lambda **step: kept.append(step["output"].detach()))


@BANK.wrong("live memory grows with every step", "outputs, losses with their graph")
def keeps_half_of_each_batch(model, optimizer, batches, held_out):
    kept = []
    return loop(model, optimizer, batches, held_out, after=lambda **step: kept.append(step["x"][::2].clone()))


@BANK.wrong("several batches are on the GPU at once", "list(batches)")
def makes_a_list_of_the_batches(model, optimizer, batches, held_out):
    return loop(model, optimizer, list(batches), held_out)


@BANK.wrong("each hardest row keeps a whole batch on the host", "copy the row, x[i].cpu()")
def copies_the_batch_and_keeps_a_view(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        worst = (output.detach() - y).square().sum(1).argmax().item()
        hardest.append(x.cpu()[worst])
        scores.append(score_of(model, held_out).item())
    return losses, scores, hardest


# --- wrong: validation ---------------------------------------------------------------------------------


@BANK.wrong("the validation builds a graph", "eval() changes dropout and BatchNorm, not autograd")
def takes_eval_for_no_grad(model, optimizer, batches, held_out):
    return loop(model, optimizer, batches, held_out, score=with_a_graph)


@BANK.wrong("the validation runs in training mode", "not dropout and BatchNorm")
def validates_in_training_mode(model, optimizer, batches, held_out):
    def score(model, held_out):
        with torch.no_grad():
            return F.l1_loss(model(held_out[0]), held_out[1])

    return loop(model, optimizer, batches, held_out, score=score)


@BANK.wrong("the training steps run in evaluation mode", "train() is missing")
def stays_in_evaluation_mode(model, optimizer, batches, held_out):
    def score(model, held_out):
        model.eval()
        with torch.no_grad():
            return F.l1_loss(model(held_out[0]), held_out[1])

    return loop(model, optimizer, batches, held_out, score=score)


@BANK.wrong("the model came back in evaluation mode", "train() after it")
def ends_in_evaluation_mode(model, optimizer, batches, held_out):
    found = loop(model, optimizer, batches, held_out)
    model.eval()
    return found


@BANK.wrong("the held-out rows are not scored once for each batch", "repair what it keeps")
def validates_once(model, optimizer, batches, held_out):
    losses, _, hardest = loop(model, optimizer, batches, held_out, score=lambda *_: torch.zeros(()))
    return losses, [score_of(model, held_out).item()], hardest


@BANK.wrong("the scores are not those of the loop as it was", "validate after the step")
def validates_before_the_step(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        scores.append(score_of(model, held_out).item())
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        hardest.append(hardest_row(x, y, output).cpu())
    return losses, scores, hardest


# --- wrong: the work, and what is returned --------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "no_grad() reaches further than the validation")
def trains_under_no_grad(model, optimizer, batches, held_out):
    with torch.no_grad():
        return loop(model, optimizer, batches, held_out)


@BANK.wrong("the losses are not those of the loop as it was", "and no leak")
def never_clears_the_gradients(model, optimizer, batches, held_out):
    optimizer.zero_grad = lambda: None
    return loop(model, optimizer, batches, held_out)


@BANK.wrong("the optimizer that was passed in does not step once for each batch", "must still train")
def stops_training(model, optimizer, batches, held_out):
    optimizer.step = lambda: None
    return loop(model, optimizer, batches, held_out)


@BANK.wrong("the losses are not numbers of Python", "take .item()")
def returns_tensors(model, optimizer, batches, held_out):
    return loop(model, optimizer, batches, held_out, keep_loss=lambda loss: loss.detach().clone())


@BANK.wrong("the scores are not numbers of Python", "take .item()")
def returns_tensors_on_the_host(model, optimizer, batches, held_out):
    return loop(model, optimizer, batches, held_out, keep_score=lambda score: score.cpu())


@BANK.wrong("what came back is not three lists with one entry for each batch", "ends without a return")
def returns_nothing(model, optimizer, batches, held_out):
    loop(model, optimizer, batches, held_out)


@BANK.wrong("the hardest rows are not those of the loop as it was, on the host", "by the outputs from before the step")
def takes_the_first_row(model, optimizer, batches, held_out):
    losses, scores, hardest = loop(
        model, optimizer, batches, held_out, keep_row=lambda row: torch.zeros_like(row).cpu()
    )
    return losses, scores, hardest


@BANK.wrong("a row is still on its way to the host when the function returns", ".cpu() waits")
def does_not_wait_for_the_last_row(model, optimizer, batches, held_out):
    losses, scores, hardest = [], [], []
    for x, y in batches:
        output = model(x)
        loss = F.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        scores.append(score_of(model, held_out).item())
        hardest.append(hardest_row(x, y, output).to("cpu", non_blocking=True))
    return losses, scores, hardest
