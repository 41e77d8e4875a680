"""Probes `train`: precision, waits, memory, the gradient of an update, the optimizer."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.nn import functional as F

from .bench import (
    WORDS,
    Finding,
    Toy,
    Training,
    batches_of,
    busy,
    clock,
    found,
    gradient_of,
    held,
    mib,
    products,
    shapes_only,
    sound_module,
    waits,
)


def precision(script: ModuleType) -> Finding:
    modes: list[torch.dtype | None] = []

    def note(toy: Toy) -> None:
        modes.append(torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None)

    with shapes_only():
        rates = []
        for each in (script, sound_module()):
            toy = Toy(note, width=1024, layers=2)
            batches = batches_of(4, length=256)
            rates.append(products(lambda each=each, toy=toy, batches=batches: Training(toy).run(each, batches))[0])  # type: ignore[misc]
            rates.append(products(lambda each=each, toy=toy, batches=batches: each.evaluate(toy, batches))[0])  # type: ignore[misc]
            if each is script:
                halved = any(p.dtype is not torch.float32 for p in toy.parameters())
                loss = script.loss_of(toy.float(), *batches[0])[0].dtype
    trained, evaluated = rates[0] / rates[2], rates[1] / rates[3]
    slow = min(trained, evaluated) < 0.9
    return found(
        f"products of train() at {rates[0]:.1f} TFLOP/s",
        (halved, "the weights themselves have become 16-bit numbers",
         "autocast casts what a product reads; weights and updates stay float32"),
        (slow and torch.bfloat16 in modes, "products run in bfloat16, for which a T4 has no tensor cores",
         "use float16 with a scaler on a T4"),
        (trained < 0.9, "products of a training step run in float32", "autocast around the forward pass"),
        (slow, "products of the evaluation run in float32", "autocast in loss_of serves both"),
        (loss is not torch.float32, "the loss is summed in 16 bits",
         "the loss belongs in the autocast block, which computes it in float32"),
    )  # fmt: skip


def waits_of(script: ModuleType) -> Finding:
    counts = []
    for n in (2, 8):
        batches, training = batches_of(*[2] * n), Training(Toy(lambda toy: busy()))
        with waits() as seen:
            training.run(script, batches, accumulate=n)
        counts.append(len(seen))
    each = (counts[1] - counts[0]) / 6
    return found(
        f"waits for each batch: {each:.2g}",
        (each >= 1, "the host waits for the GPU at each batch", "the inner loop reads a value, or compares one"),
        (each > 0.3, "the host waits for the GPU at every other batch",
         "read it less often: every hundredth batch, or after the pass"),
    )  # fmt: skip


def history(script: ModuleType) -> Finding:
    at: list[int] = []
    training = Training(Toy(lambda toy: at.append(held()), width=64, layers=4))
    training.run(script, batches_of(*[8] * 8, length=32), accumulate=2)
    growth = (at[7] - at[3]) / 4
    return found(
        f"{mib(growth)} more on the GPU with each batch",
        (growth > 2**17, "the graph of every batch stays alive",
         "a sum or a list refers to the graph, or the graph is kept after backward"),
        (growth > 1024, "something of every batch stays on the GPU", "scores or rows in a list"),
    )  # fmt: skip


def cache(script: ModuleType) -> Finding:
    training, batches = Training(Toy(width=64, layers=2)), batches_of(*[8] * 4, length=32)
    freed = torch.cuda.memory_stats()["num_device_free"]
    training.run(script, batches)
    freed = torch.cuda.memory_stats()["num_device_free"] - freed
    return found(
        f"memory returned to the driver {freed} times in 4 updates",
        (freed, "memory is returned to the driver and allocated again",
         "empty_cache frees nothing that is in use; what it returns must be allocated again"),
    )  # fmt: skip


def clipping(script: ModuleType) -> Finding:
    norms = []
    for sharp in (50.0, 0.05):
        training, batches = Training(Toy(sharp=sharp), scale=1024.0), batches_of(4)
        training.run(script, batches)
        if len(training.gradients) != 1:
            return found(
                "no update", (True, "the optimizer gets no gradient", "one window is one step of the optimizer")
            )
        training.optimizer.zero_grad()
        tokens, targets = batches[0]
        F.cross_entropy(training.model(tokens).flatten(0, 1), targets.flatten()).backward()
        norms.append((training.gradients[0].norm().item(), gradient_of(training.model).norm().item()))
    (long, true_long), (short, true_short) = norms
    near = 0.05
    return found(
        f"a gradient of norm {true_long:.3g} reaches the optimizer with norm {long:.3g}",
        (long < 0.01, "the gradient is clipped while it is still scaled",
         "its norm of 1 is divided by the scale afterwards"),
        (long > 1.5 * true_long, "the optimizer is given scaled gradients",
         "call unscale_ before the step, or scaler.step"),
        (abs(long - true_long) < near * true_long, "the gradient is not clipped",
         "clip between unscale_ and the step"),
        (abs(long - 1) > near, "the gradient is clipped to another norm", "max_norm is 1.0"),
        (abs(short - true_short) > near * true_short, "small gradients are changed too",
         "clipping must not enlarge a gradient"),
    )  # fmt: skip


def overflow(script: ModuleType) -> Finding:
    weights: list[torch.Tensor] = []
    toy = Toy(lambda toy: weights.append(toy.head.weight.detach().clone()))
    toy.overflows = (0,)
    training = Training(toy, scale=1024.0, rate=0.1)
    training.run(script, batches_of(4, 4, 4))
    scale, counted = training.scaler.get_scale(), training.schedule.last_epoch
    finite = bool(torch.isfinite(toy.head.weight).all())
    moved = not torch.equal(weights[1], weights[2])
    return found(
        f"3 updates, the first overflows: weights {'finite' if finite else 'nan'}, schedule at {counted}",
        (not finite, "the optimizer steps with infinite gradients",
         "scaler.step checks whether they are finite, optimizer.step does not"),
        (not torch.equal(weights[0], weights[1]), "the weights change in an update that overflows",
         "scaler.step leaves them unchanged"),
        (not moved, "the weights no longer change after an overflow",
         "only the update that overflows is skipped"),
        (scale != 512, "the scale is not lowered by one overflow", "call scaler.update() once an update"),
        (counted > 2, "the schedule advances for an update that was skipped",
         "a skipped update lowers the scale: compare it before and after"),
        (counted < 2, "the schedule does not count the updates that were made",
         "one step of the schedule for each step of the optimizer"),
    )  # fmt: skip


def window(script: ModuleType) -> Finding:
    training = Training(Toy(sharp=0.5))
    batches = batches_of(4, 4, 4, 4, 4)
    training.run(script, batches, accumulate=2)
    training.optimizer.zero_grad()
    wanted = []
    for start in (0, 2, 4):
        parts = batches[start : start + 2]
        tokens, targets = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        F.cross_entropy(training.model(tokens).flatten(0, 1), targets.flatten()).backward()
        wanted.append(gradient_of(training.model))
        training.model.zero_grad()
    got = training.gradients
    ratios = [float(g.norm() / w.norm()) for g, w in zip(got, wanted, strict=False)]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)

    def alike(number: int, factor: float = 1.0) -> bool:
        return bool((got[number] - factor * wanted[number]).norm() < 0.05 * factor * wanted[number].norm())

    n = len(got)
    again, uneven = Training(Toy(sharp=4.0)), batches_of(7, 1)
    summed = [float(each.loss_of(again.model, *uneven[0])[0].detach()) for each in (script, sound_module())]
    returned = again.run(script, uneven)
    tokens, targets = (torch.cat([batch[i] for batch in uneven]) for i in (0, 1))
    with torch.no_grad():
        mean = F.cross_entropy(again.model(tokens).flatten(0, 1), targets.flatten()).item()
    numbers = isinstance(returned, int | float | torch.Tensor) and torch.as_tensor(returned).numel() == 1
    return found(
        f"5 batches in windows of 2: {n} updates, with {told} times the right norm",
        (n < 3, "the last window, which is not full, makes no update", "two, two and one batch: three updates"),
        (n > 3, "there is an update for each batch", "the optimizer steps once per window"),
        (n == 3 and alike(0, 2.0), "the gradients of a window are added up, not averaged",
         "weight each batch by its share of the window"),
        (n == 3 and alike(0) and alike(1) and not alike(2), "the last window is divided by the size of a full one",
         "divide by the size of this window"),
        (n == 3 and alike(0) and not alike(1), "an update has gradients of the previous one",
         "call zero_grad once an update, after the step"),
        (n == 3 and not alike(0), "an update does not have the gradient of its window",
         "all batches of it, and nothing else"),
        (abs(summed[0] - summed[1]) > 0.05 * summed[1],
         "loss_of returns another number than the sum over the words of a batch",
         "its docstring says sum, which is right: train and evaluate divide by the number of words"),
        (not numbers, "train does not return a number", "the mean loss of a word"),
        (numbers and abs(float(returned) - mean) > 0.05 * mean,
         "train returns another number than the mean loss of a word",
         "divide the sum of all losses by the number of words in all batches"),
    )  # fmt: skip


def modes(script: ModuleType) -> Finding:
    seen: list[bool] = []
    training, batches = Training(Toy(lambda toy: seen.append(toy.training))), batches_of(2, 2)
    for start in (True, False):
        training.model.train(start)
        script.evaluate(training.model, batches)
    evaluated = list(seen)
    seen.clear()
    for start in (False, True):
        training.model.train(start)
        training.run(script, batches)
    return found(
        f"training mode in {sum(evaluated)} of 4 batches of evaluate(), {sum(seen)} of 4 of train()",
        (any(evaluated), "the evaluation runs in training mode", "dropout stays on: model.eval()"),
        (not all(seen), "training continues in evaluation mode",
         "call model.train() after an evaluation"),
    )  # fmt: skip


def optimizer(script: ModuleType) -> Finding:
    with shapes_only():
        model = script.GPT(WORDS, 64, 4, 2, 16).cuda()
        made = script.make_optimizer(model)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        made.step()
        before = clock().kernels(0)
        made.step()
        each = (clock().kernels(0) - before) / sum(len(group["params"]) for group in made.param_groups)
    return found(
        f"{each:.1f} kernels for each tensor of a step",
        (each > 1.5, "the optimizer launches kernels tensor by tensor",
         "foreach takes many tensors at once, fused does a whole update in one kernel"),
    )  # fmt: skip


def parameters(script: ModuleType) -> Finding:
    def stepped(maker: ModuleType) -> dict[str, torch.Tensor]:
        model.load_state_dict(start)
        made = maker.make_optimizer(model)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        made.step()
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    model = script.GPT(WORDS, 32, 1, 1, 8).cuda()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    got, wanted = stepped(script), stepped(sound_module())
    rates = {group["lr"] for group in script.make_optimizer(model, rate=0.0123).param_groups}
    still = [name for name, value in got.items() if torch.equal(value, start[name])]
    other = [name for name, value in got.items() if not torch.allclose(value, wanted[name], atol=1e-6)]
    return found(
        f"{len(got) - len(still)} of {len(got)} parameters change in an update",
        (still, "some parameters never change", "each parameter belongs to a group of the optimizer"),
        (other, "the update is wrong", "AdamW, a decay of 0.1 for matrices and of 0 for norms and biases"),
        (rates != {0.0123}, "the optimizer does not have the learning rate asked for", "lr=rate"),
    )  # fmt: skip
