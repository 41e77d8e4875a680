"""Answers to "token-weighted loss": the gradient of a window of padded texts, and the count that is returned."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from gpulab.check.lesson08.misconceptions import SECTIONS

from ..bank import Bank

BANK = Bank("token_weighting", SECTIONS)


def count(micro_batches):
    return sum(int((labels != -100).sum()) for _, labels in micro_batches)


def summed(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")


def averaged(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def sums_over_all_tokens(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


@BANK.right
def sums_and_divides_at_the_end(model, micro_batches):
    tokens = 0
    for ids, labels in micro_batches:
        summed(model, ids, labels).backward()
        tokens += int(labels.ne(-100).sum())
    for p in model.parameters():
        p.grad /= max(tokens, 1)
    return tokens


@BANK.right
def counts_with_numpy(model, micro_batches):
    return np.int64(sums_over_all_tokens(model, micro_batches))


@BANK.right
def skips_what_has_no_label(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        here = (labels != -100).sum().item()
        if here:
            (averaged(model, ids, labels) * (here / tokens)).backward()
    return tokens


@BANK.right
def picks_the_labelled_positions(model, micro_batches):
    tokens = count(micro_batches)
    if not tokens:
        return 0
    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for ids, labels in micro_batches:
        real = labels != -100
        log_p = model(ids)[real].log_softmax(-1).gather(1, labels[real].unsqueeze(1))
        for total, g in zip(sums, torch.autograd.grad(-log_p.sum(), parameters), strict=True):
            total += g / tokens
    for p, total in zip(parameters, sums, strict=True):
        p.grad = total
    return tokens


@BANK.right
def weighs_each_mean(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:  # the mean over no token is NaN as a number, and its gradient is zero
        (averaged(model, ids, labels) * count([(ids, labels)]) / max(tokens, 1)).backward()
    return tokens


@BANK.right
def puts_the_classes_second(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (F.cross_entropy(model(ids).transpose(1, 2), labels, reduction="sum") / max(tokens, 1)).backward()
    return tokens


# --- wrong: what the loss is divided by ----------------------------------------------------------------


@BANK.wrong("micro-batches count the same, however many tokens they hold", "F.cross_entropy's default")
def means_of_the_micro_batches(model, micro_batches):
    for ids, labels in micro_batches:
        (averaged(model, ids, labels) / len(micro_batches)).backward()
    return count(micro_batches)


@BANK.wrong("the means of the micro-batches are added up", "already divided by its own tokens")
def adds_the_means(model, micro_batches):
    for ids, labels in micro_batches:
        averaged(model, ids, labels).backward()
    return count(micro_batches)


@BANK.wrong("padding is counted in the number of tokens", "labels.numel()")
def divides_by_positions(model, micro_batches):
    positions = sum(labels.numel() for _, labels in micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / positions).backward()
    return count(micro_batches)


@BANK.wrong("each micro-batch is divided by the tokens counted so far", "count them first")
def counts_on_the_way(model, micro_batches):
    tokens = 0
    for ids, labels in micro_batches:
        tokens += count([(ids, labels)])
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("sequences are counted, not tokens", "the number of rows")
def divides_by_sequences(model, micro_batches):
    rows = sum(len(ids) for ids, _ in micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / rows).backward()
    return count(micro_batches)


@BANK.wrong("the summed losses are divided by the number of micro-batches", "so divide by tokens")
def divides_by_micro_batches(model, micro_batches):
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / len(micro_batches)).backward()
    return count(micro_batches)


@BANK.wrong("the summed loss is never divided by the tokens", "reduction='sum' gives the sum")
def never_divides(model, micro_batches):
    for ids, labels in micro_batches:
        summed(model, ids, labels).backward()
    return count(micro_batches)


@BANK.wrong("the gradient of step 1 is 0.05882 times the right one", "divided by the wrong number")
def divides_twice(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    for p in model.parameters():
        p.grad /= max(tokens, 1)
    return tokens


@BANK.wrong("each micro-batch is weighted by its positions, padding too", "over its labelled tokens")
def weighs_by_positions(model, micro_batches):
    positions = sum(labels.numel() for _, labels in micro_batches)
    for ids, labels in micro_batches:
        if count([(ids, labels)]):
            (averaged(model, ids, labels) * labels.numel() / positions).backward()
    return count(micro_batches)


@BANK.wrong("labels of class 0 are taken for padding", "0 is a class like the others")
def counts_labels_above_zero(model, micro_batches):
    tokens = sum(int((labels > 0).sum()) for _, labels in micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


# --- wrong: padding ------------------------------------------------------------------------------------


@BANK.wrong("padded positions add to the loss", "replaced by a class")
def takes_padding_for_a_class(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels.clamp(min=0)) / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("padded positions add to the loss", "replaced by a class")
def takes_padding_for_a_class_and_counts_it(model, micro_batches):
    positions = sum(labels.numel() for _, labels in micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels.clamp(min=0)) / positions).backward()
    return count(micro_batches)


@BANK.wrong("the gradient is NaN", "the mean over no tokens is 0/0")
def masks_by_hand(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        mask = labels != -100
        nll = -model(ids).log_softmax(-1).gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        ((nll * mask).sum() / mask.sum() * (mask.sum() / max(tokens, 1))).backward()
    return tokens


@BANK.wrong("your function raised ZeroDivisionError", "no labelled token at all")
def divides_by_no_tokens(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) * (1 / tokens)).backward()
    return tokens


@BANK.wrong("a window of nothing but padding leaves a gradient")
def learns_from_nothing(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        loss = summed(model, ids, labels) / tokens if tokens else summed(model, ids, labels.clamp(min=0))
        loss.backward()
    return tokens


@BANK.wrong("your function changed its argument micro_batches", "a method that ends in _")
def rewrites_the_labels(model, micro_batches):
    for _, labels in micro_batches:
        labels[labels == -100] = 0
    return sums_over_all_tokens(model, micro_batches)


@BANK.wrong("your function raised IndexError", "the default of ignore_index")
def ignores_class_zero(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=0, reduction="sum")
        (loss / max(tokens, 1)).backward()
    return tokens


# --- wrong: logits and labels --------------------------------------------------------------------------


@BANK.wrong("the labels are shifted by one position", "already what is wanted at position t")
def shifts_the_labels(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        logits = model(ids)[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        (loss / max(tokens, 1)).backward()
    return tokens


@BANK.wrong(
    "the labels are shifted by one position",
    "already what is wanted at position t",
    also="the first label of each sequence is not counted",
)
def shifts_the_labels_and_counts_them(model, micro_batches):
    tokens = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro_batches)
    for ids, labels in micro_batches:
        logits = model(ids)[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        (loss / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("the first label of each sequence is not counted", "count all that are not -100")
def counts_the_labels_without_the_first(model, micro_batches):
    tokens = sum(int((labels[:, 1:] != -100).sum()) for _, labels in micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("softmax runs before the cross-entropy", "has a softmax inside")
def takes_the_softmax_first(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        probabilities = model(ids).softmax(-1).flatten(0, 1)
        loss = F.cross_entropy(probabilities, labels.flatten(), reduction="sum")
        (loss / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("your function raised RuntimeError", "wants the classes in dimension 1")
def does_not_flatten(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (F.cross_entropy(model(ids), labels, reduction="sum") / max(tokens, 1)).backward()
    return tokens


# --- wrong: gradients and memory -----------------------------------------------------------------------


@BANK.wrong("only the last micro-batch is in .grad", "cleared between micro-batches")
def clears_between(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        model.zero_grad()
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("there is no gradient in .grad", "backward did not run")
def never_runs_backward(model, micro_batches):
    for ids, labels in micro_batches:
        summed(model, ids, labels)
    return count(micro_batches)


@BANK.wrong("your function raised RuntimeError", "the loss has no graph")
def detaches_the_loss(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        (summed(model, ids, labels).detach() / tokens).backward()
    return tokens


@BANK.wrong("several micro-batches went through the model at once", "which is what must not fit")
def pads_and_concatenates(model, micro_batches):
    width = max(ids.shape[1] for ids, _ in micro_batches)
    ids = torch.cat([F.pad(ids, (0, width - ids.shape[1])) for ids, _ in micro_batches])
    labels = torch.cat([F.pad(labels, (0, width - labels.shape[1]), value=-100) for _, labels in micro_batches])
    return sums_over_all_tokens(model, [(ids, labels)])


@BANK.wrong("the activations of several micro-batches are kept at once", "backward runs once for all of them")
def one_backward_for_all(model, micro_batches):
    tokens = count(micro_batches)
    (sum(summed(model, ids, labels) for ids, labels in micro_batches) / max(tokens, 1)).backward()
    return tokens


@BANK.wrong("the gradient of step 1 is another one than the full batch's", "compare that window by hand")
def forgets_the_first(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches[1:] or micro_batches:
        (summed(model, ids, labels) / max(tokens, 1)).backward()
    return tokens


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("the number of tokens is not what was returned", "ends without a return")
def returns_nothing(model, micro_batches):
    sums_over_all_tokens(model, micro_batches)


@BANK.wrong("the number of tokens is not what was returned", "call .item()")
def returns_a_tensor(model, micro_batches):
    return torch.tensor(sums_over_all_tokens(model, micro_batches))


@BANK.wrong("the number of tokens is not what was returned", "every position of the padded rectangle")
def returns_the_positions(model, micro_batches):
    sums_over_all_tokens(model, micro_batches)
    return sum(labels.numel() for _, labels in micro_batches)


@BANK.wrong("the number of tokens is not what was returned", "return the count itself")
def returns_the_divisor(model, micro_batches):
    return max(sums_over_all_tokens(model, micro_batches), 1)


@BANK.wrong("the number of tokens is not what was returned")
def returns_the_gradient_norm(model, micro_batches):
    sums_over_all_tokens(model, micro_batches)
    return float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))


# --- with a GPU ----------------------------------------------------------------------------------------


def to_gpu(micro_batches):
    return [(ids.to("cuda"), labels.to("cuda")) for ids, labels in micro_batches]


@BANK.right_with_a_gpu
def goes_to_the_gpu_and_back(model, micro_batches):
    tokens = sums_over_all_tokens(model.to("cuda"), to_gpu(micro_batches))
    model.to("cpu")
    return tokens


@BANK.wrong("the model was moved to another device", "the caller's own model", on_gpu=True)
def leaves_the_model_on_the_gpu(model, micro_batches):
    return sums_over_all_tokens(model.to("cuda"), to_gpu(micro_batches))


@BANK.wrong("your function raised RuntimeError", "where the model is", on_gpu=True)
def moves_the_data_and_not_the_model(model, micro_batches):
    return sums_over_all_tokens(model, to_gpu(micro_batches))


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong(
    "your function changed its argument model: model.0.weight has a hook that it did not have", "handle.remove()"
)
def divides_in_hooks(model, micro_batches):
    """The gradients are right, and in the next window they are divided twice."""
    tokens = count(micro_batches)
    for p in model.parameters():
        p.register_hook(lambda g: g / max(tokens, 1))
    for ids, labels in micro_batches:
        summed(model, ids, labels).backward()
    return tokens


@BANK.wrong("your function changed its argument model: it is left in eval mode", "put it back in a finally")
def leaves_the_model_in_eval_mode(model, micro_batches):
    model.eval()
    return sums_over_all_tokens(model, micro_batches)
