"""Answers to "token-weighted loss": the gradient of a window of padded texts, and the count that is returned."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.nn import functional as F

BANK = Bank("token_weighting", "accumulate_tokens")
COUNT = "sum(int((labels != -100).sum()) for _, labels in micro_batches)"
POSITIONS = "sum(labels.numel() for _, labels in micro_batches)"
LOSS = 'F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")'
MEAN = "F.cross_entropy(logits, labels.flatten(), ignore_index=-100)"
MEAN_OR_0 = MEAN + " if (labels != -100).any() else 0 * logits.sum()"
DIVIDED, BACKWARD = "loss / max(tokens, 1)", "(loss / max(tokens, 1)).backward()"
LOOP, MODEL, WANTED, RETURN = "for ids, labels in micro_batches:", "model(ids)", "labels.flatten()", "return tokens"


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def picks_the_labelled_positions(model, micro_batches):
    tokens = sum(int(labels.ne(-100).sum()) for _, labels in micro_batches)
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
def row_by_row_in_double_precision_and_divided_at_the_end(model, micro_batches):
    tokens = 0
    for ids, labels in reversed(micro_batches):
        for row, wanted in zip(ids.split(1), labels.split(1), strict=True):
            F.cross_entropy(model(row).double().transpose(1, 2), wanted, reduction="sum").backward()
            tokens += (wanted != -100).sum().item()
    for p in model.parameters():
        p.grad /= max(tokens, 1)
    return tokens


# the loss over no token is 0/0, and its gradient is zero: cross_entropy passes nothing on from what it ignores
BANK.right((change(LOSS, MEAN), change(DIVIDED, "loss * (labels >= 0).sum() / max(tokens, 1)")))

# --- wrong: what the loss is divided by ----------------------------------------------------------------
BANK.mistakes(
    ("micro-batches count the same, however many tokens they hold",
     "F.cross_entropy's default is the mean over the micro-batch's own tokens: sum, and divide once by the tokens of "
     "the window",
     (change(LOSS, MEAN), change(DIVIDED, "loss / len(micro_batches)"))),
    ("the means of the micro-batches are added up",
     "each is already divided by its own tokens; the window needs the sum of losses over the sum of tokens",
     (change(LOSS, MEAN), change(DIVIDED, "loss"))),
    ("the means of the micro-batches are divided by the tokens once more",
     "reduction='sum' is missing: the default is a mean already", change(LOSS, MEAN)),
    ("the means are averaged over the micro-batches that have a label",
     "those with a label still count the same, however many tokens they hold", (change(LOSS, MEAN_OR_0),
     change(DIVIDED, "loss / max(sum(bool((labels != -100).any()) for _, labels in micro_batches), 1)"))),
    ("each micro-batch is weighted by its positions, padding too",
     "its mean is over its labelled tokens, so that is its weight: count the labels that are not -100",
     (change(LOSS, MEAN_OR_0), change(DIVIDED, f"loss * labels.numel() / {POSITIONS}"))),
    ("each micro-batch is weighted by its sequences",
     "its mean is over its labelled tokens, so that is its weight, however many texts they come from",
     (change(LOSS, MEAN_OR_0), change(DIVIDED, "loss * len(ids) / sum(len(ids) for ids, _ in micro_batches)"))),
    ("padding is counted in the number of tokens",
     "labels.numel() counts every position of the padded rectangle; count the labels that are not -100",
     change(DIVIDED, f"loss / {POSITIONS}")),
    ("each micro-batch is divided by the tokens counted so far",
     "the tokens of the whole window are needed before its first backward: count them first, in a loop of their own",
     (change(COUNT, "0"), add("tokens += int((labels != -100).sum())", before="logits = "))),
    ("sequences are counted, not tokens",
     "len(ids) is the number of rows; a long text weighs more than a short one: count the labels that are not -100",
     change(DIVIDED, "loss / sum(len(ids) for ids, _ in micro_batches)")),
    ("the summed losses are divided by the number of micro-batches",
     "reduction='sum' adds over tokens, so divide by tokens: those of the whole window",
     change(DIVIDED, "loss / len(micro_batches)")),
    ("the summed loss is never divided by the tokens", "the update would grow with the length of the texts",
     change(DIVIDED, "loss")),
    ("the gradient is divided by the tokens twice", "divide each loss, or the gradients once at the end, not both",
     add("[p.grad.div_(max(tokens, 1)) for p in model.parameters()]", before=RETURN)),
    ("what has come together is divided after every micro-batch",
     "the first micro-batch is divided most often: divide each loss, or the gradients once, after the loop",
     change(BACKWARD, "loss.backward(); [p.grad.div_(max(tokens, 1)) for p in model.parameters()]")),
    ("the sum is divided by one token too many", "+ 1 keeps the divisor from 0, and is wrong elsewhere: max(tokens, 1)",
     change("max(tokens, 1)", "(tokens + 1)")),
    ("a window of one label is divided by two", "max(tokens, 1) is for a window without a label",
     change("max(tokens, 1)", "max(tokens, 2)")),
    ("labels of class 0 are taken for padding", "0 is a class like the others: count labels != -100, or labels >= 0",
     change("labels != -100", "labels > 0")),
)  # fmt: skip

# --- wrong: padding, logits and labels -----------------------------------------------------------------
SHIFT = change("model(ids).flatten", "model(ids)[:, :-1].flatten"), change("labels.flatten", "labels[:, 1:].flatten")
SHIFTED_COUNT = change("(labels != -100)", "(labels[:, 1:] != -100)")
CLASS_0 = change(WANTED, "labels.clamp(min=0).flatten()")
BANK.mistakes(
    ("padded positions add to the loss",
     "labels of -100 mean “no target here”; replaced by a class they teach the model to predict it", CLASS_0),
    ("padding is a class in the loss, and a token in the count", "labels of -100 mean “no target here”",
     (CLASS_0, change(DIVIDED, f"loss / {POSITIONS}"))),
    ("tokens of class 0 are left out of the loss", "0 is a class like the others: only -100 is padding",
     change(WANTED, "labels.masked_fill(labels == 0, -100).flatten()")),
    ("another label than -100 is ignored", "-100 is the default of ignore_index: another value there makes it a class",
     change("ignore_index=-100", "ignore_index=0")),
    ("labels after the first -100 of a text are left out",
     "padding may stand anywhere, as before the answer to a question: ask of each position whether its label is -100",
     change(WANTED, "labels.masked_fill((labels == -100).cummax(1).values, -100).flatten()")),
    ("columns are cut off by the number of labels",
     "labels need not stand at the beginning, and what the model sees changes its logits: give it the ids as they are",
     (add("    longest = max(1, int((labels != -100).sum(1).max()))", before="logits = "),
      add("    ids, labels = ids[:, :longest], labels[:, :longest]", before="logits = "))),
    ("the model does not see the positions without a label",
     "they are context for the others: leave them out of the loss, not of the input",
     (change(MODEL, "model(ids[labels != -100].unsqueeze(0))"), change(WANTED, "labels[labels != -100]"))),
    ("the window ends at the first micro-batch without a label", "break loses those that follow: continue",
     add("    if not (labels != -100).any(): break", before="logits = ")),
    ("the mean over no tokens is taken", "it is NaN, and NaN times 0 is NaN: sum, and divide by the window's tokens",
     (change(LOSS, "-logits.log_softmax(-1).gather(1, labels.clamp(min=0).view(-1, 1)).view_as(labels)"),
      add("    mask = labels != -100", before="loss = "),
      change(DIVIDED, "(loss * mask).sum() / mask.sum() * (mask.sum() / max(tokens, 1))"))),
    ("it divides by the tokens of a window that has none", "it may hold no labelled token: leave no gradient then",
     change(DIVIDED, "loss * (1 / tokens)")),
    ("a window of nothing but padding is learned from", "there is nothing to learn: no gradient, or zeros",
     change(WANTED, "(labels if tokens else labels.clamp(min=0)).flatten()")),
    ("the labels are shifted by one position",
     "labels[b, t] is already what is wanted at position t; shifted, they teach the model the token after next", SHIFT),
    ("the labels are shifted by one position, and the first of each text is not counted",
     "labels[b, t] is already what is wanted at position t", (*SHIFT, SHIFTED_COUNT)),
    ("the first label of each sequence is not counted", "labels[:, 1:] leaves out a position: count all but -100",
     SHIFTED_COUNT),
    ("softmax runs before the cross-entropy", "F.cross_entropy takes logits: a second softmax flattens the gradient",
     change("model(ids).flatten", "model(ids).softmax(-1).flatten")),
    ("nll_loss was given logits", "it takes logarithms of probabilities: F.cross_entropy is log_softmax and nll_loss",
     change("F.cross_entropy", "F.nll_loss")),
    ("the logits keep three dimensions, with the classes last",
     "F.cross_entropy wants the classes in dimension 1: flatten logits to (B·T, classes) and labels to (B·T,)",
     (change(".flatten(0, 1)", ""), change(WANTED, "labels"))),
    ("the first micro-batch is left out", "micro_batches[1:] begins with the second: the loop runs over all",
     change(LOOP, "for ids, labels in micro_batches[1:] or micro_batches:")),
    ("the last micro-batch is left out", "micro_batches[:-1] ends before it: the loop runs over all",
     change(LOOP, "for ids, labels in micro_batches[:-1] or micro_batches:")),
    ("the loss is computed in 16 bits", "logits.bfloat16() keeps three digits: keep the model's dtype, or a wider one",
     change("model(ids).flatten", "model(ids).bfloat16().flatten")),
)  # fmt: skip

# --- wrong: gradients, memory and the model ------------------------------------------------------------
BANK.mistakes(
    ("only the last micro-batch is in .grad", "the caller clears the gradients, once before the window",
     add("    model.zero_grad()", before="logits = ")),
    ("there is no gradient in .grad", "backward did not run, or the gradients were cleared after it",
     add("model.zero_grad()", before=RETURN), change(".backward()", "")),
    ("the model runs in another mode than the caller's",
     "eval() switches dropout off, also where it is put back at the end: the mode is the caller's choice",
     (add("modes, _ = model.training, model.eval()", before=LOOP), add("model.train(modes)", before=RETURN))),
    ("the model is put into training mode",
     "train() switches dropout on, also where it is put back at the end: the mode is the caller's choice",
     (add("modes, _ = model.training, model.train()", before=LOOP), add("model.train(modes)", before=RETURN))),
    ("the activations of several micro-batches are kept at once",
     "losses are added up and backward runs once for all of them: call backward for each micro-batch",
     (change(BACKWARD, "total = total + loss"), add("total = 0", before=LOOP),
      add("(total / max(tokens, 1)).backward()", before=RETURN))),
    ("the graphs of all micro-batches stay",
     "retain_graph keeps what backward would free, as long as anything refers to the loss, such as a list of losses",
     (change(".backward()", ".backward(retain_graph=True); losses.append(loss)"), add("losses = []", before=LOOP))),
    ("the model's results of all micro-batches are kept", "a list of them grows on the GPU: let them go after backward",
     (add("kept = []", before=LOOP), add("kept.append(logits)", before="loss = "))),
    ("a micro-batch without a label goes through the model, and its graph stays while the next one runs",
     "only backward, or the end of the last reference to it, frees a graph: ask for labels before the forward pass",
     change("        (loss", "        if (labels != -100).any(): (loss")),
    ("the gradients hold on to a graph", "create_graph is for a gradient of the gradient: leave it out",
     change(".backward()", ".backward(create_graph=True)")),
    ("the model runs a second time for what the labels tell", "the number of labels needs no forward pass",
     add("    with torch.no_grad(): model(ids)", before="logits = ")),
    ("several micro-batches went through the model at once", "that must not fit, and padding changes the texts",
     change(LOOP, "for ids, labels in [[torch.cat([F.pad(t, (0, max(a.shape[1] for a in ts) - t.shape[1]), value=v) "
            "for t in ts]) for ts, v in zip(zip(*micro_batches), (0, -100))]]:")),
    ("the model was moved to another device",
     "the caller's own model, whose optimizer steps next: micro-batches go to where the model is",
     (change(MODEL, 'model.to("cuda:0")(ids.to("cuda:0"))'), change(WANTED, 'labels.to("cuda:0").flatten()'))),
    ("the data are moved to another device than the model's", "they are already on the model's device: move nothing",
     change(MODEL, 'model(ids.to("cuda:0"))')),
    ("the model came back in another dtype",
     "double() and half() change the caller's own model; for more digits convert the logits",
     change(MODEL, "model.double()(ids)")),
    ("your function changed its argument micro_batches", "a method that ends in _",
     add("labels[labels == -100] = 0", before="logits = ")),
)  # fmt: skip

# --- wrong: what is returned ---------------------------------------------------------------------------
BANK.mistakes(
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("the number of tokens is returned as a tensor", "a sum of a tensor is a tensor, on its device: call .item()",
     change(RETURN, "return torch.tensor(tokens)")),
    ("the number of tokens is returned as a float", "a count is an int", change(RETURN, "return float(tokens)")),
    ("the positions of the padded rectangle are returned", "return the number of labels that are not -100",
     change(RETURN, f"return {POSITIONS}")),
    ("the divisor is returned, not the count", "a number that is kept from 0 for the division is not the count",
     change(RETURN, "return max(tokens, 1)")),
    ("only the tokens of the last micro-batch are returned", "the number of the whole window is asked for",
     change(RETURN, "return int((labels != -100).sum())")),
)  # fmt: skip
