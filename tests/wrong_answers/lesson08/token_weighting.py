"""Answers to "token-weighted loss": the gradient of a window of padded texts, and the count that is returned."""

import numpy as np
import torch
from torch.nn import functional as F

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("token_weighting", "accumulate_tokens")
COUNT = "sum(int((labels != -100).sum()) for _, labels in micro_batches)"
LOSS = 'F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")'
MEAN = "F.cross_entropy(logits, labels.flatten(), ignore_index=-100)"
DIVIDED = "loss / max(tokens, 1)"
LOOP = "for ids, labels in micro_batches:"


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


@BANK.right
def gathers_log_probabilities_and_masks_them(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        log_p = torch.log(torch.softmax(model(ids), -1))
        rows, columns = (labels != -100).nonzero(as_tuple=True)
        chosen = log_p[rows, columns][torch.arange(len(rows), device=ids.device), labels[rows, columns]]
        (-chosen.sum() / max(tokens, 1)).backward()
    return tokens


@BANK.right
def row_by_row_and_in_double_precision(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in micro_batches:
        for row, wanted in zip(ids.split(1), labels.split(1), strict=True):
            logits = model(row).double().flatten(0, 1)
            F.cross_entropy(logits, wanted.flatten(), reduction="sum").div(max(tokens, 1)).backward()
    return tokens


@BANK.right
def one_loss_for_each_position(model, micro_batches):
    tokens = count(micro_batches)
    for ids, labels in reversed(micro_batches):
        if (labels >= 0).any():
            losses = F.cross_entropy(model(ids).movedim(-1, 1), labels, reduction="none")
            losses.backward(torch.full_like(losses, 1 / tokens))
    return tokens


# the loss over no token is 0/0, and its gradient is zero: cross_entropy passes nothing on from what it ignores
BANK.right(change(DIVIDED, "loss / tokens"))


@BANK.right
def goes_to_another_gpu_and_back(model, micro_batches):
    home = next(model.parameters()).device
    tokens = sums_over_all_tokens(model.to("cuda:1"), [(ids.to("cuda:1"), y.to("cuda:1")) for ids, y in micro_batches])
    model.to(home)
    return tokens


# --- wrong: what the loss is divided by ----------------------------------------------------------------
BANK.mistakes(
    ("micro-batches count the same, however many tokens they hold",
     "F.cross_entropy's default is the mean over the micro-batch's own tokens. Sum the loss, and divide "
     "once by the tokens of the whole window", (change(LOSS, MEAN), change(DIVIDED, "loss / len(micro_batches)"))),
    ("the means of the micro-batches are added up",
     "each mean is already divided by its own tokens; the window needs the sum of losses over the sum " "of tokens",
     (change(LOSS, MEAN), change(DIVIDED, "loss"))),
    ("the means of the micro-batches are divided by the tokens once more",
     "reduction='sum' is missing: the default is a mean already", change(LOSS, MEAN)),
    ("padding is counted in the number of tokens",
     "labels.numel() counts every position of the padded rectangle; count the labels that are not -100",
     change(DIVIDED, "loss / sum(labels.numel() for _, labels in micro_batches)")),
    ("each micro-batch is divided by the tokens counted so far",
     "the number of tokens of the whole window is needed before its first backward: count them first, "
     "in a loop of their own", (change(COUNT, "0"), add("tokens += int((labels != -100).sum())", before="logits = "))),
    ("sequences are counted, not tokens",
     "len(ids) is the number of rows; a long text weighs more than a short one: count the labels that " "are not -100",
     change(DIVIDED, "loss / sum(len(ids) for ids, _ in micro_batches)")),
    ("the summed losses are divided by the number of micro-batches",
     "reduction='sum' adds over tokens, so divide by tokens: those of the whole window",
     change(DIVIDED, "loss / len(micro_batches)")),
    ("the summed loss is never divided by the tokens",
     "reduction='sum' gives the sum; the update would grow with the length of the texts", change(DIVIDED, "loss")),
    ("the gradient is divided by the tokens twice",
     "divide each loss before its backward, or the gradients once at the end, not both",
     add("[p.grad.div_(max(tokens, 1)) for p in model.parameters()]", before="return")),
    ("what has come together is divided after every micro-batch",
     "the first micro-batch is divided most often: divide each loss, or the gradients once, after the loop",
     (change(DIVIDED, "loss"),
     add("        [p.grad.div_(max(tokens, 1)) for p in model.parameters()]", before="return"),
     change("\n    [p.grad", "\n        [p.grad"))),
    ("the sum is divided by one token too many",
     "+ 1 keeps the divisor from 0, and makes every other gradient a little too small: max(tokens, 1)",
     change("max(tokens, 1)", "(tokens + 1)")),
    ("each micro-batch is weighted by its positions, padding too",
     "its mean is over its labelled tokens, so that is its weight: count the labels that are not -100",
     (change(LOSS, MEAN + ' if (labels != -100).any() else 0 * logits.sum()'),
     change(DIVIDED, "loss * labels.numel() / sum(labels.numel() for _, labels in micro_batches)"))),
    ("each micro-batch is weighted by its sequences",
     "its mean is over its labelled tokens, so that is its weight, however many texts they come from",
     (change(LOSS, MEAN + ' if (labels != -100).any() else 0 * logits.sum()'),
     change(DIVIDED, "loss * len(ids) / sum(len(ids) for ids, _ in micro_batches)"))),
    ("labels of class 0 are taken for padding",
     "0 is a class like the others; padding is -100, so count labels != -100 or labels >= 0",
     change("labels != -100", "labels > 0")),
    ("the means are averaged over the micro-batches that have a label",
     "those without one no longer count, but the others still count the same, however many tokens they hold",
     (change(LOSS, MEAN + ' if (labels != -100).any() else 0 * logits.sum()'),
     change(DIVIDED, "loss / max(sum(bool((labels != -100).any()) for _, labels in micro_batches), 1)"))),
)  # fmt: skip

# --- wrong: padding ------------------------------------------------------------------------------------
BANK.mistakes(
    ("padded positions add to the loss",
     "labels of -100 mean “no target here”; replaced by a class they teach the model to predict it",
     change("labels.flatten()", "labels.clamp(min=0).flatten()")),
    ("padding is a class in the loss, and a token in the count",
     "labels of -100 mean “no target here”: they belong into neither",
     (change("labels.flatten()", "labels.clamp(min=0).flatten()"),
     change(DIVIDED, "loss / sum(labels.numel() for _, labels in micro_batches)"))),
    ("tokens of class 0 are left out of the loss", "0 is a class like the others: only -100 is padding",
     change("labels.flatten()", "labels.masked_fill(labels == 0, -100).flatten()")),
    ("labels after the first -100 of a text are left out",
     "padding may stand anywhere, as before the answer to a question: ask of each position whether its "
     "label is -100",
     change("labels.flatten()", "labels.masked_fill((labels == -100).cummax(1).values, -100).flatten()")),
    ("columns are cut off by the number of labels",
     "the labels need not stand at the beginning of a text, and what the model sees of it changes its "
     "logits: give it the ids as they are",
     (add("    longest = max(1, int((labels != -100).sum(1).max()))", before="logits = "),
     add("    ids, labels = ids[:, :longest], labels[:, :longest]", before="logits = "))),
    ("the model does not see the positions without a label",
     "they are context for the others: leave them out of the loss, not of the input",
     (change("model(ids)", "model(ids[labels != -100].unsqueeze(0))"),
     change("labels.flatten()", "labels[labels != -100]"))),
    ("the window ends at the first micro-batch without a label",
     "break leaves the loop, and the micro-batches that follow are lost: continue",
     add("    if not (labels != -100).any(): break", before="logits = ")),
    ("the mean over no tokens is taken",
     "it is 0/0, NaN, and NaN times 0 is NaN: sum, and divide by the tokens of the window",
     (change(LOSS, "-logits.log_softmax(-1).gather(1, labels.clamp(min=0).view(-1, 1)).view_as(labels)"),
     add("    mask = labels != -100", before="loss = "),
     change(DIVIDED, "(loss * mask).sum() / mask.sum() * (mask.sum() / max(tokens, 1))"))),
    ("it divides by the tokens of a window that has none",
     "the window may hold no labelled token at all: leave no gradient then", change(DIVIDED, "loss * (1 / tokens)")),
    ("a window of nothing but padding is learned from", "there is nothing to learn: no gradient, or zeros",
     change("labels.flatten()", "(labels if tokens else labels.clamp(min=0)).flatten()")),
    ("another label than -100 is ignored",
     "padding is labelled -100, which is the default of ignore_index: another value there makes it a class",
     change("ignore_index=-100", "ignore_index=0")),
)  # fmt: skip


@BANK.wrong("your function changed its argument micro_batches", "a method that ends in _")
def rewrites_the_labels(model, micro_batches):
    for _, labels in micro_batches:
        labels[labels == -100] = 0
    return sums_over_all_tokens(model, micro_batches)


@BANK.wrong("your function changed its argument micro_batches")
def uses_the_list_up(model, micro_batches):
    tokens = count(micro_batches)
    while micro_batches:
        (summed(model, *micro_batches.pop()) / max(tokens, 1)).backward()
    return tokens


# --- wrong: logits and labels --------------------------------------------------------------------------

SHIFT = change("model(ids).flatten", "model(ids)[:, :-1].flatten"), change("labels.flatten", "labels[:, 1:].flatten")
SHIFTED_COUNT = change("(labels != -100)", "(labels[:, 1:] != -100)")
BANK.mistakes(
    ("the labels are shifted by one position",
     "labels[b, t] is already what is wanted at position t. Some libraries shift the labels inside the "
     "model; here that would teach it the token after next", SHIFT),
    ("the labels are shifted by one position, and the first of each text is not counted",
     "labels[b, t] is already what is wanted at position t", (*SHIFT, SHIFTED_COUNT)),
    ("the first label of each sequence is not counted",
     "labels[:, 1:] leaves out a position that has a label: count all that are not -100", SHIFTED_COUNT),
    ("softmax runs before the cross-entropy",
     "F.cross_entropy takes logits, and has a softmax inside: a second one before it flattens the gradient",
     change("model(ids).flatten", "model(ids).softmax(-1).flatten")),
    ("nll_loss was given logits", "it takes logarithms of probabilities: F.cross_entropy is log_softmax and nll_loss",
     change("F.cross_entropy", "F.nll_loss")),
    ("the logits keep three dimensions, with the classes last",
     "F.cross_entropy wants the classes in dimension 1. Flatten logits of (B, T, classes) to (B·T, "
     "classes) and labels of (B, T) to (B·T,)", (change(".flatten(0, 1)", ""), change("labels.flatten()", "labels"))),
)  # fmt: skip

# --- wrong: gradients and memory -----------------------------------------------------------------------
BANK.mistakes(
    ("only the last micro-batch is in .grad",
     "gradients are cleared between micro-batches; the caller clears them once before the window",
     add("    model.zero_grad()", before="logits = ")),
    ("there is no gradient in .grad", "the gradients were cleared after backward: the caller needs them for its step",
     add("model.zero_grad()", before="return")),
    ("there is no gradient in .grad", "backward did not run: it adds to the gradients", change(".backward()", "")),
    ("the model runs in another mode than the caller's",
     "eval() switches dropout off, also where it is put back at the end: the mode is the caller's choice",
     (add("modes, _ = model.training, model.eval()", before=LOOP), add("model.train(modes)", before="return"))),
    ("the model is put into training mode",
     "train() switches dropout on, also where it is put back at the end: the mode is the caller's choice",
     (add("modes, _ = model.training, model.train()", before=LOOP), add("model.train(modes)", before="return"))),
    ("the loss has no graph",
     "its forward pass ran under no_grad or inference_mode, or it was detached before backward",
     change("loss / max", "loss.detach() / max")),
    ("the activations of several micro-batches are kept at once",
     "losses are added up and backward runs once for all of them: call backward for each micro-batch, "
     "and let its graph go",
     (change(f'({DIVIDED}).backward()', "total = total + loss"), add("total = 0", before=LOOP),
     add("(total / max(tokens, 1)).backward()", before="return"))),
    ("the graphs of all micro-batches stay",
     "retain_graph keeps what backward would free, as long as anything refers to the loss, such as a " "list of losses",
     (change(".backward()", ".backward(retain_graph=True); losses.append(loss)"), add("losses = []", before=LOOP))),
    ("the model's results of all micro-batches are kept",
     "a list of them grows with the window, on the GPU: let them go after backward",
     (add("kept = []", before=LOOP), add("kept.append(logits)", before="loss = "))),
    ("a window of one label is divided by two",
     "max(tokens, 1) is for a window without a label; one label is divided by one",
     change("max(tokens, 1)", "max(tokens, 2)")),
    ("a micro-batch without a label goes through the model, and its graph stays while the next one runs",
     "only backward, or the end of the last reference to it, frees a graph: ask for labels before the " "forward pass",
     change("        (loss", "        if (labels != -100).any(): (loss")),
    ("the gradients hold on to a graph",
     "create_graph is for a gradient of the gradient: leave it out, or the activations stay until the " "next window",
     change(".backward()", ".backward(create_graph=True)")),
    ("the model runs a second time for what the labels tell", "the number of labels needs no forward pass",
     add("    with torch.no_grad(): model(ids)", before="logits = ")),
)  # fmt: skip


@BANK.wrong(
    "several micro-batches went through the model at once", "which is what must not fit, and padding changes the texts"
)
def pads_and_concatenates(model, micro_batches):
    width = max(ids.shape[1] for ids, _ in micro_batches)
    ids = torch.cat([F.pad(ids, (0, width - ids.shape[1])) for ids, _ in micro_batches])
    labels = torch.cat([F.pad(labels, (0, width - labels.shape[1]), value=-100) for _, labels in micro_batches])
    return sums_over_all_tokens(model, [(ids, labels)])


BANK.mistakes(
    ("the first micro-batch is left out", "micro_batches[1:] begins with the second: the loop runs over all",
     change(LOOP, "for ids, labels in micro_batches[1:] or micro_batches:")),
    ("the last micro-batch is left out", "micro_batches[:-1] ends before it: the loop runs over all",
     change(LOOP, "for ids, labels in micro_batches[:-1] or micro_batches:")),
    ("the model was moved to another device",
     "the caller's own model, whose optimizer steps next: micro-batches go to where the model is",
     (change("model(ids)", 'model.to("cuda:0")(ids.to("cuda:0"))'),
     change("labels.flatten()", 'labels.to("cuda:0").flatten()'))),
    ("the data are moved to another device than the model's", "they are where the model is: nothing need be moved",
     change("model(ids)", 'model(ids.to("cuda:0"))')),
    ("the model came back in another dtype",
     "double() and half() change the caller's own model; for more digits convert the logits",
     change("model(ids)", "model.double()(ids)")),
    ("the loss is computed in 16 bits", "logits.bfloat16() keeps three digits: keep the model's dtype, or a wider one",
     change("model(ids).flatten", "model(ids).bfloat16().flatten")),
)  # fmt: skip

# --- wrong: what is returned ---------------------------------------------------------------------------
BANK.mistakes(
    ("nothing is returned", "the function ends without a return", drop("return tokens")),
    ("the number of tokens is returned as a tensor",
     "a sum of a tensor is a tensor, which lives on its device: call .item()",
     change("return tokens", "return torch.tensor(tokens)")),
    ("the number of tokens is returned as a float", "a count is an int",
     change("return tokens", "return float(tokens)")),
    ("the positions of the padded rectangle are returned",
     "labels.numel() counts every position of the padded rectangle: return the number of labels that " "are not -100",
     change("return tokens", "return sum(labels.numel() for _, labels in micro_batches)")),
    ("the divisor is returned, not the count",
     "a number that is kept from 0 for the division is not the count: return the count itself",
     change("return tokens", "return max(tokens, 1)")),
    ("only the tokens of the last micro-batch are returned", "the number of the whole window is asked for",
     change("return tokens", "return int((labels != -100).sum())")),
    ("another number than the count is returned", "the tokens are asked for, not the norm of the gradient or the loss",
     change("return tokens", "return float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))")),
)  # fmt: skip

# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong(
    "your function changed its argument model: model.embedding.weight has a hook that it did not have",
    "handle.remove()",
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


@BANK.wrong("your function changed its argument model: model.embedding.weight has other values", "an optimizer's step")
def steps_by_hand(model, micro_batches):
    tokens = sums_over_all_tokens(model, micro_batches)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return tokens
