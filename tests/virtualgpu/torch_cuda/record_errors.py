"""What PyTorch says to CUDA code that is wrong, or looks wrong and is not: one JSON row per line of
wrong_code.txt.

Runs inside a process that sees the stand-in with two devices; record.py starts it. Argument: the number of rows to
skip. A row has `ok` and, where it raises, `type` and `message`; where the code's value is short, `value`.
"""

import contextlib
import io
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F

WHERE_INSTALLED = re.compile(r"/\S*/site-packages/")  # said of a file of torch's; another on each machine


def cases():
    """(section, code) for each line of wrong_code.txt."""
    section = ""
    for line in (Path(__file__).parent / "wrong_code.txt").read_text().splitlines():
        if line.startswith("# "):
            section = line[2:]
        elif line:
            yield section, line


def namespace():
    """Names: g is on cuda:0, h on the CPU, d on cuda:1; 0 a scalar, 1 a vector, 3 and 4 that many axes, m a mask."""
    names = {"torch": torch, "nn": nn, "F": F, "np": numpy, "pickle": pickle, "io": io}
    names["sdpa"] = F.scaled_dot_product_attention
    shapes = {
        "": (4, 4), "0": (), "1": (4,), "one": (1,), "3": (4, 4, 4), "4": (2, 2, 4, 4), "i": (2, 3, 8, 8),
        "i2": (2, 3, 16, 16), "w": (3, 3, 3, 3), "b": (3,), "b3": (3,), "s": (1, 4, 4), "grid": (2, 8, 8, 2),
        "log": (6, 2, 5),
    }  # fmt: skip
    indices = {"ids": (2,), "ids4": (4,), "0l": (), "idx": (4, 4), "targets": (2, 3)}
    for letter, device in {"g": "cuda:0", "h": "cpu", "d": "cuda:1"}.items():
        names |= {letter + name: torch.zeros(shape, device=device) for name, shape in shapes.items()}
        names |= {letter + name: torch.zeros(s, device=device, dtype=torch.long) for name, s in indices.items()}
        names[letter + "m"] = torch.zeros(4, 4, device=device, dtype=torch.bool)
        names[letter + "lengths"] = torch.full((2,), 3, device=device)
    for prefix, device in (("", "cuda"), ("cpu_", "cpu")):
        made = {"linear": nn.Linear(4, 4), "conv": nn.Conv2d(3, 3, 3), "bn": nn.BatchNorm2d(3)}
        made |= {"lstm": nn.LSTM(4, 4), "gru": nn.GRU(4, 4), "lstm_cell": nn.LSTMCell(4, 4)}
        made |= {"embedding": nn.Embedding(4, 4), "attention": nn.MultiheadAttention(4, 1)}
        made["encoder"] = nn.TransformerEncoderLayer(4, 1, 4)
        names |= {prefix + name: module.to(device) for name, module in made.items()}
    names["gr"] = torch.zeros(4, 4, device="cuda", requires_grad=True)
    names["parameter"] = nn.Parameter(torch.zeros(4, 4, device="cuda"))
    names["parameter"].grad = torch.zeros(4, 4, device="cuda")
    names["cpu_generator"], names["gpu_generator"] = torch.Generator(), torch.Generator("cuda")
    return names | _situations(names)


def _situations(names):
    """What does not fit in one expression."""

    def mixed_parameters():
        mixed = [nn.Parameter(torch.zeros(4, device=device)) for device in ("cuda", "cpu")]
        for parameter in mixed:
            parameter.grad = torch.zeros_like(parameter)
        return mixed

    def optimizer_step(kind, **options):
        kind(mixed_parameters(), **options).step()

    def moved_after_optimizer():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(1, 4)).sum().backward()
        optimizer.step()
        model.cuda()
        model(torch.zeros(1, 4, device="cuda")).sum().backward()
        optimizer.step()

    def in_fork(code):
        here, there = multiprocessing.Pipe(False)
        if os.fork() == 0:
            there.send(outcome(code, names))
            os._exit(0)
        os.wait()
        return Told(here.recv())

    def without_gpu(code):
        plain = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
        command = [sys.executable, "-W", "ignore", __file__, "--without-gpu", code]
        done = subprocess.run(command, input=saved(names["g"]).getvalue(), env=plain, capture_output=True, check=True)
        return Told(json.loads(done.stdout))

    def saved(value):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return file

    def under_autocast(code):
        with torch.autocast("cuda", dtype=torch.float16):
            return eval(code, names)

    def plot_data(tensor):
        return numpy.atleast_1d(tensor)

    def scaled(times, step=True, dtype=torch.float32):
        parameter = nn.Parameter(torch.zeros(4, device="cuda", dtype=dtype))
        scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD([parameter], 0.1)
        scaler.scale(parameter.sum()).backward()
        for _ in range(times):
            scaler.unscale_(optimizer)
        if step:
            scaler.step(optimizer)
            scaler.step(optimizer)

    def scaler_without_backward():
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(4, device="cuda"))], 0.1)
        scaler.scale(torch.zeros((), device="cuda"))
        scaler.step(optimizer)

    def backward_twice():
        y = (names["gr"] ** 2).sum()
        y.backward()
        y.backward()

    def in_place_on_leaf():
        names["gr"].add_(1)

    def in_place_on_saved():
        y = names["gr"].exp()
        y.add_(1)
        y.sum().backward()

    own = dict(locals())
    own["unscaled_twice"], own["half_gradients_unscaled"] = lambda: scaled(2), lambda: scaled(1, False, torch.float16)
    own["set_attribute"] = setattr
    return {name: value for name, value in own.items() if callable(value)}


class Told(dict):
    """The outcome of code that ran in another process."""


def outcome(code, names):
    """Run `code`: {"ok": ...} with its value if that is short, or the exception's type and message."""
    try:
        value = eval(code, names)
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return {"ok": False, "type": kind.removeprefix("builtins."), "message": WHERE_INSTALLED.sub("", str(error))}
    if isinstance(value, Told):
        return dict(value)
    if isinstance(value, bool | int | float | str | tuple | list | torch.device | torch.dtype):
        return {"ok": True, "value": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"ok": True, "device": str(value.device), "dtype": str(value.dtype)}
    return {"ok": True}


def main(skip: int) -> None:
    print(json.dumps({"torch": torch.__version__, "numpy": numpy.__version__}), flush=True)
    for number, (section, code) in enumerate(cases()):
        if number < skip:
            continue
        row = {"section": section, "code": code}
        print(json.dumps(row | {"started": number}), flush=True)
        torch.set_default_device(None)
        names = namespace()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            row |= outcome(code, names)
        if said:
            row["warning"] = str(said[-1].message)
        with contextlib.suppress(Exception):
            torch.cuda.set_device(0)
        while torch.is_autocast_enabled("cuda"):
            torch.set_autocast_enabled("cuda", False)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--without-gpu":
        print(json.dumps(outcome(sys.argv[2], globals())))
    else:
        main(int(sys.argv[1]))
