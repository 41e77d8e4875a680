"""Answers to "find the leak": a training loop that keeps losses, scores and rows, and must keep nothing else."""

from banks.bank import Bank
from banks.edits import add, change, drop, move

BANK = Bank("memory_leak", "train")
LOSS, ROW, RETURN = "loss.item())  #", "x[row].cpu())  #", "return losses, scores, hardest"
SCORE = "scores.append(F.l1_loss(model(held_out[0]), held_out[1]).item())"
SCORE_ON_GPU = change(SCORE, SCORE.replace(".item()", ""))
IN_CHUNKS = """parts = [(model(x) - y).abs().sum() for x, y in zip(*(t.split(64) for t in held_out))]
            scores.append(float(sum(parts) / held_out[1].numel()))"""
BEFORE_THE_STEP = f"""with torch.no_grad():
            model.eval(), {SCORE}, model.train()
        output = model(x)"""


def at_the_end(losses="[loss.item() for loss in losses]", scores="scores", hardest="hardest"):
    """These are returned: numbers and rows on the host, made of what was kept on the GPU."""
    return change(RETURN, f"return {losses}, {scores}, {hardest}")


SCORES, ROWS = "[score.item() for score in scores]", "[row.cpu() for row in hardest]"
AS_IT_WAS = (change("no_grad", "enable_grad"), SCORE_ON_GPU, change(LOSS, "loss.detach())  #"),
             change(ROW, "x[row])  #"), at_the_end(scores=SCORES, hardest=ROWS))  # fmt: skip

BANK.right(
    change(SCORE, IN_CHUNKS),
    (change(LOSS, "loss.detach().clone())  #"), SCORE_ON_GPU, at_the_end(scores=SCORES)),
    (drop("optimizer.zero_grad()"), add("optimizer.zero_grad()", before="output = model(x)"),
     change("no_grad", "inference_mode"), change("F.mse_loss(output, y)", "((output - y) ** 2).mean()")),
)  # fmt: skip
BANK.mistakes(
    # leaks
    ("the cache is emptied, and all three lists leak as before", "empty_cache() gives back only what no tensor holds",
     (*AS_IT_WAS, add("torch.cuda.empty_cache()", before="model.eval()"))),
    ("all three lists leak as before",
     "the scores keep a graph, the rows their batch, the losses the storage of all elements; gradients do not grow",
     AS_IT_WAS, (*AS_IT_WAS, add("model.zero_grad()", before="model.eval()"))),
    ("the graph of every validation stays alive",
     "no backward ever frees what it saved: use no_grad() around the validation, and keep a number in the list",
     (change("no_grad", "enable_grad"), SCORE_ON_GPU, at_the_end("losses", SCORES))),
    ("a whole batch stays alive with each step",
     "x[i] is a view, also after detach(), and keeps the batch: copy the row to the host. A graph keeps it too",
     (change(ROW, "x[row].detach())  #"), at_the_end("losses", hardest=ROWS))),
    ("something as large as the outputs stays alive with each step",
     "the storage of mse_loss's scalar has as many elements as the outputs, and detach() shares it: keep loss.item(). "
     "Outputs kept in a list take the same bytes",
     (change(LOSS, "loss.detach())  #"), at_the_end()), (change(LOSS, "loss)  #"), at_the_end()),
     (add("outputs = []", before="for x, y"), add("outputs.append(output.detach())", before="model.eval()"))),
    ("the hardest rows stay on the GPU", "a copy on the GPU takes GPU memory: .cpu() moves it to the host",
     (change(ROW, "x[row].clone())  #"), at_the_end("losses", hardest=ROWS))),
    ("the batches are made all at once", "list(batches) holds the whole epoch in memory",
     change("in batches", "in list(batches)")),
    ("each hardest row keeps a whole batch on the host", "x.cpu()[i] is a view of a copy of x: copy the row alone",
     change(ROW, "x.cpu()[row.item()])  #")),
    # the validation
    ("the validation builds a graph", "eval() changes dropout and BatchNorm, not autograd",
     change("no_grad", "enable_grad")),
    ("the validation runs in training mode", "no_grad() changes autograd, not dropout and BatchNorm",
     drop("model.eval()")),
    ("train() is missing after the validation", "eval() stays in effect until train() is called",
     drop("model.train()")),
    ("the model comes back in evaluation mode", "it was in training mode", add("model.eval()", before=RETURN)),
    ("the validation is done before the step", "the score is that of the weights after it",
     (change(SCORE, "pass"), change("output = model(x)", BEFORE_THE_STEP))),
    ("one score is given for all steps", "each step changes the model: validate after each",
     change(RETURN, "return losses, scores[-1:] * len(losses), hardest")),
    # the work, and what is returned
    ("the training step builds no graph", "no_grad() covers more than the validation",
     change("output = model(x)", "with torch.no_grad():\n            output = model(x)")),
    ("the gradients are never cleared", "each step uses the sum of all before: wrong, but not a leak",
     drop("optimizer.zero_grad()")),
    ("the optimizer does not step", "the loop must still train: repair what it keeps", drop("optimizer.step()")),
    ("the training is undone", "train the model that is passed in",
     (add("start = copy.deepcopy(model.state_dict())", before="for x, y"),
      add("model.load_state_dict(start)", before=RETURN))),
    ("the losses are sums", "mse_loss gives the mean", change(LOSS, "loss.item() * output.numel())  #")),
    ("the losses are tensors", "take .item()", change(LOSS, "loss.cpu())  #")),
    ("the scores are tensors", "take .item()", change(SCORE, SCORE.replace("item", "cpu"))),
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("the rows are those of the first sample", "take the row with the largest error of each batch",
     change(ROW, "x[0].cpu())  #")),
    ("the errors are not squared", "the sum of squares ranks rows in a different order", change("square()", "abs()")),
    ("the rows are chosen by other outputs", "use those that the loss is computed from, before the step",
     change("(output.detach()", "(copy.deepcopy(model).requires_grad_(False).eval()(x)")),
    ("nothing waits for the copy of the last row",
     "non_blocking=True returns before the values have come: .cpu() waits",
     (change(ROW, 'x[row].to("cpu", non_blocking=True))  #'), move("hardest.append", after="model.train()"))),
)  # fmt: skip
