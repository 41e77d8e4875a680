"""Answers to "three times as fast"."""

import copy

import torch
from banks.bank import Bank
from banks.edits import add, change, drop
from torch.nn import functional as F

BANK = Bank("graphed_step")
BEFORE, AFTER = "side.wait_stream(torch.cuda.current_stream())", "torch.cuda.current_stream().wait_stream(side)"
FILLED = "        own_x.copy_(x)\n        own_y.copy_(y)\n"
FILLED_ASIDE = "        with torch.cuda.stream(side):\n            own_x.copy_(x)\n            own_y.copy_(y)\n"
WARM = "        for _ in range(3):\n            plain(x, y)"
PUT_BACK = (
    "            if value in before:\n                value.copy_(before[value])\n"
    "            else:\n                value.zero_()"
)
CAPTURED = "        own_loss = plain(own_x, own_y)"
RATES = (
    '    for group in optimizer.param_groups:\n'
    '        group["lr"] = torch.as_tensor(group["lr"], device=x.device)\n'
)
WITHOUT_STEP = (
    "        optimizer.zero_grad()\n        own_loss = F.cross_entropy(model(own_x), own_y)\n"
    "        own_loss.backward()\n        own_loss = own_loss.detach()"
)
OTHER_SHAPE = "        if x.shape != own_x.shape:\n            return plain(x, y)\n"
ALL = "return [*model.parameters(), *model.buffers(), *moments]"


@BANK.right
def a_graph_for_each_shape(model, optimizer, x, y):
    """Each shape is captured when it first comes; moments are made by a step, and zeroed or loaded back."""
    graphs = {}

    def one(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def capture(x, y):
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], torch.Tensor):
                group["lr"] = torch.tensor(group["lr"], device="cuda")
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        moments = copy.deepcopy([optimizer.state.get(p) for p in model.parameters()])
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            one(x, y)
        torch.cuda.synchronize()
        model.load_state_dict(weights)
        for p, old in zip(model.parameters(), moments, strict=True):
            for key, value in optimizer.state[p].items():
                value.copy_(old[key]) if old else value.zero_()
        graph, x, y = torch.cuda.CUDAGraph(), x.clone(), y.clone()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = one(x, y).detach()
        return graph, x, y, loss

    def step(x, y):
        if x.shape not in graphs:
            graphs[x.shape] = capture(x, y)
        graph, own_x, own_y, loss = graphs[x.shape]
        own_x.copy_(x, non_blocking=True)
        own_y.copy_(y, non_blocking=True)
        graph.replay()
        return loss.clone()

    graphs[x.shape] = capture(x, y)
    return step


BANK.right((change(BEFORE, "side.wait_event(torch.cuda.current_stream().record_event())"),
            change(AFTER, "while not side.query():\n        pass")))  # fmt: skip
BANK.right(change(FILLED, f"        {BEFORE}\n{FILLED_ASIDE}        {AFTER}\n"))
BANK.mistakes(
    ("step is called, and its loss is returned", "return step, without calling it",
     change("    return step", "    return step(x, y)")),
    ("the graph is returned, not a function", "a function step(x, y) that fills x and y, replays, and returns the loss",
     change("    return step", "    return graph")),
    ("step returns nothing", "return a clone of the graph's loss", change("return own_loss.clone()", "return None")),
    ("the loss of a batch of another shape still holds its autograd graph",
     "loss.detach(): a loss with a graph keeps all activations alive",
     (change("return loss.detach()", "return loss"),
     change("        own_loss = plain(own_x, own_y)", "        own_loss = plain(own_x, own_y).detach()"))),
    ("all losses are one tensor, which each replay overwrites", "return a clone of it",
     change("own_loss.clone()", "own_loss")),
    ("every step trains on the batch of the capture",
     "own_x = x gives the name to another tensor; own_x.copy_(x) fills the memory that the graph reads",
     (change("own_x.copy_(x)", "kept_x = x"), change("own_y.copy_(y)", "kept_y = y"))),
    ("the labels are those of the capture", "both have to be filled: own_y.copy_(y)", drop("own_y.copy_(y)")),
    ("every step trains on the batch before", "fill x and y, then replay",
     (drop("graph.replay()"), change("        own_x.copy_(x)", "        graph.replay()\n        own_x.copy_(x)"))),
    ("your function changed its argument x", "", change("x.clone(), y.clone()\n", "x, y\n")),
    ("there is no warm-up: moments are created within the capture, and again in each replay",
     "a few steps in a side stream first, so that the optimizer's moments exist", change(WARM, "        pass")),
    ("the warm-up may begin before the caller's stream has finished",
     "it changes parameters that are still being cloned: side.wait_stream(torch.cuda.current_stream()) first",
     drop(BEFORE)),
    ("parameters are copied back while the warm-up may still be at work",
     "torch.cuda.current_stream().wait_stream(side) after it", drop(AFTER),
     (change(WARM, f'        done = side.record_event()\n{WARM}'),
     change(AFTER, "torch.cuda.current_stream().wait_event(done)"))),
    ("a batch is copied in while the previous replay may still read it, and replayed before it has arrived",
     "in step, too: side.wait_stream(current) before the copies, current.wait_stream(side) after them",
     change(FILLED, FILLED_ASIDE)),
    ("the warm-up has trained the model", "clone parameters, buffers and moments before it, and copy them back",
     change(PUT_BACK, "            value = before.get(value, torch.zeros_like(value))")),
    ("moments and buffers of the warm-up stay",
     "buffers, such as BatchNorm's means, and the optimizer's state are trained as well",
     change(ALL, "return [*model.parameters()]")),
    ("BatchNorm's means and variances have seen the warm-up", "model.buffers() too", change("*model.buffers(), ", "")),
    ("the optimizer's moments and step counts have seen the warm-up",
     "the tensors in optimizer.state too; those that the warm-up made go back to zero",
     change("*model.buffers(), *moments]", "*model.buffers()]")),
    ("moments that existed before are zeroed", "zero only those that did not exist; the others are copied back",
     change("if value in before:",
     "if value in before and not any(value is m for s in optimizer.state.values() for m in s.values()):")),
    ("moments that the warm-up made are left as they are",
     "zero what did not exist before, the step count too",
     change("            else:\n                value.zero_()", "")),
    ("the optimizer's step counts continue from the warm-up",
     "optimizer.state holds three tensors for each parameter; bias correction depends on step",
     change("for value in state.values()]", 'for key, value in state.items() if key != "step"]')),
    ("the optimizer's step is not in the graph, and nothing is trained",
     "zero_grad, forward, backward and optimizer.step() are the step", change(CAPTURED, WITHOUT_STEP)),
    ("gradients add up from step to step", "optimizer.zero_grad() belongs in the step, and so in the graph",
     change("        optimizer.zero_grad()\n", "")),
    ("the optimizer's step is launched kernel by kernel", "it makes most of the launches: capture it too",
     (change(CAPTURED, WITHOUT_STEP),
     change("        graph.replay()", "        graph.replay()\n        optimizer.step()"))),
    ("the step is launched kernel by kernel: no graph is replayed", "capture it once, then graph.replay()",
     change("        if x.shape != own_x.shape:\n            return plain(x, y)", "        return plain(x, y)")),
    ("step waits for the loss and returns a number",
     "return a tensor: only a caller that needs the number should wait for it",
     change("own_loss.clone()", "own_loss.item()")),
    ("a batch of another shape does not fit into the graph's own",
     "compare the shapes, and train such a batch with the plain step",
     change("        if x.shape != own_x.shape:\n            return plain(x, y)\n", "")),
    ("a larger batch is treated as one of the graph's shape",
     "it does not fit into the graph's own x: compare the shapes, not which is shorter",
     change("x.shape != own_x.shape", "x.numel() < own_x.numel()")),
    ("a batch of one sample is trained as one of many equal samples",
     "copy_ repeats one row for all rows, and raises nothing: compare the shapes",
     change(f'{OTHER_SHAPE}{FILLED}',
     "        try:\n            own_x.copy_(x)\n            own_y.copy_(y)\n        except "
     "RuntimeError:\n            return plain(x, y)\n")),
    ("a batch of another shape is not trained", "plain(x, y) for it",
     change("            return plain(x, y)", "            return own_loss.clone()")),
    ("a smaller batch is filled up with rows of the previous batch, and a larger one truncated",
     "another shape is another computation: plain(x, y) for it",
     change(f'{OTHER_SHAPE}        own_x.copy_(x)\n        own_y.copy_(y)',
     "        own_x[: len(x)] = x[: len(own_x)]\n        own_y[: len(y)] = y[: len(own_y)]")),
    ("a second step has the graph of the first",
     "keep the graph in the function that is returned: another model needs its own graph",
     add("global graph, own_x, own_y, own_loss", before="def plain(x, y)")),
    ("each step captures a graph of its own", "capture once: a capture costs all launches, and more",
     change("        own_x.copy_(x)\n",
     "        graph = torch.cuda.CUDAGraph()\n        with torch.cuda.graph(graph):\n            "
     "own_loss = plain(own_x, own_y)\n        own_x.copy_(x)\n")),
    ("the model is put into eval()", "a step trains: BatchNorm has to use the batch's own statistics",
     change("    before = {", "    model.eval()\n    before = {")),
    ("the learning rate is frozen at its value in the capture",
     "a number is captured as a constant: make each group's lr a tensor on the GPU, before the capture",
     change(RATES, ""),
     (change(RATES, ""), change("    def step(x, y):", f"{RATES}    def step(x, y):"))),
)  # fmt: skip
