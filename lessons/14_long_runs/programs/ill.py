"""Five runs, each ill in another way, and what they wrote into their logs."""

import time

import job
import matplotlib.pyplot as plt
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter


def logged(name, fetch=job.batch, trouble=lambda step, parts, x: None):
    torch.cuda.reset_peak_memory_stats()
    parts = job.fresh(1)
    model, (group,), scaler = parts["model"], parts["optimizer"].param_groups, parts["scaler"]
    with SummaryWriter(f"logs/{name}") as writer:
        for step in range(60):
            begin = time.perf_counter()
            x, y = fetch(step)
            wait = time.perf_counter() - begin
            trouble(step, parts, x)
            loss = job.train_step(model, parts, x, y)
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            seconds = time.perf_counter() - begin
            writer.add_scalar("loss", loss, step)
            writer.add_scalar("lr", group["lr"], step)
            writer.add_scalar("scale", scaler.get_scale(), step)
            writer.add_scalar("norm", norm, step)
            writer.add_scalar("wait", 1e3 * wait, step)
            writer.add_scalar("memory", torch.cuda.max_memory_allocated() / 2**20, step)
            writer.add_scalar("rate", len(x) / seconds, step)


# A sleep plays a slow disk, and a hot GPU.


def slow(step, parts, x):
    time.sleep(0.04 * (step >= 30))


def infinite(step, parts, x):
    if step == 20:  # from here on a gradient is infinite, as that of sqrt is at 0
        parts["model"][-1].bias.register_hook(lambda grad: grad * float("inf"))


def starved(step):
    time.sleep(0.04)
    return job.batch(step)


def jump(step, parts, x):
    if step == 20:
        parts["optimizer"].param_groups[0]["lr"] *= 100


kept = []


def keep(step, parts, x):
    kept.append(parts["model"](x.to("cuda")))


def train_all():
    logged("A", trouble=slow)
    logged("B", trouble=infinite)
    logged("C", fetch=starved)
    logged("D", trouble=jump)
    logged("E", trouble=keep)
    kept.clear()


def read(name):
    """The curves of a log, by tag."""
    run = EventAccumulator(f"logs/{name}").Reload()
    return {tag: [event.value for event in run.Scalars(tag)] for tag in run.Tags()["scalars"]}


def picture(logs):
    """One row for each run: loss, scale, memory, and the time of a step with its wait."""
    figure, rows = plt.subplots(len(logs), 4, figsize=(9, 7), sharex=True)
    for (name, log), (loss, scale, memory, times) in zip(logs.items(), rows, strict=True):
        loss.set_ylabel(name, rotation=0, labelpad=12, fontsize=14)
        loss.plot(log["loss"], color="#0072B2")
        scale.plot(log["scale"], color="#0072B2")
        scale.set_yscale("log", base=2)
        memory.plot([peak - log["memory"][0] for peak in log["memory"]], color="#0072B2")
        memory.set_ylim(-1, 12)
        times.plot([1e5 / rate for rate in log["rate"]], color="#0072B2")  # ms for 100 samples
        times.plot(log["wait"], color="#E69F00")
        times.set_ylim(0, 100)
    titles = ("loss", "scale", "peak: MiB since step 0", "ms a step; its wait")
    for axes, title in zip(rows[0], titles, strict=True):
        axes.set_title(title, fontsize=10)
    return figure
