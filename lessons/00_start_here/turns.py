"""Judges the turns of lesson 00: the device line, an evaluation that keeps nothing, and a model through a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulab.exercise.machines import on_the_cpu
from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief
from virtualgpu.observe import observe


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@turn("the model runs on the GPU, or on the CPU if there is no GPU, and the digits are returned on the CPU")
def read_on_any_device(answer: Any) -> None:
    """A function (model, images) that gives the digits read, an int64 tensor on the CPU, computed on any device."""
    model, images = _network(), torch.rand(7, 1, 8, 8)
    right, seen = model(images).argmax(1), []
    model.register_forward_hook(lambda module, args, output: seen.append(output.device.type))
    stopped: dict[str, Exception] = {}
    for name, machine in (("with", virtual_gpu), ("without", on_the_cpu)):
        with machine():
            try:
                got = answer(model.cpu(), images)
            except (RuntimeError, AssertionError) as error:
                if not any(words in str(error) for words in ("CUDA", "NVIDIA driver", "Expected all tensors")):
                    raise
                stopped[name] = error
                continue
            _check_digits(got, right)
            if name == "with" and seen[-1] != "cuda":
                raise NotYet(
                    "on a machine with a GPU, the model runs on the CPU",
                    expected="it computes on the accelerator",
                    likely="the device is always the CPU, or model and images were not moved",
                )
    if len(stopped) == 2:
        raise AsGiven("it fails on a machine without a GPU, and the images are not on the model's device")
    if "with" in stopped:
        raise NotYet(
            "on a machine with a GPU, the images are not on the model's device",
            expected="both on one device",
            likely="images.to(device) returns a copy and does not move `images`",
        )
    if stopped:
        raise NotYet(
            "it fails on a machine without a GPU",
            expected="it computes on the CPU there",
            likely="the code names a device; ask torch.accelerator which one is available",
        )


def _check_digits(got: Any, right: torch.Tensor) -> None:
    if not isinstance(got, torch.Tensor):
        raise NotYet(f"{brief(got)} came back", expected="the digits, a tensor", likely="the return is missing")
    if got.device.type != "cpu":
        raise NotYet(
            f"the digits are on {got.device}", expected="on the CPU", likely="the .cpu() after the return is missing"
        )
    if got.shape != right.shape or not torch.equal(got, right):
        raise NotYet(
            f"wrong digits came back: {brief(got)}",
            expected="for each image the class of its largest logit",
            likely="you changed more than the devices",
        )


@turn("eval mode, nothing kept for backward, and one wait for the GPU")
def evaluated(answer: Any) -> None:
    """A function (model, loader, device) that gives the share of samples read correctly, a number."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    images = torch.rand(23, 1, 8, 8)
    labels = model.eval()(images).argmax(1)
    labels[:5] = (labels[:5] + 1) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=5)
    modes: list[tuple[bool, bool]] = []
    model.register_forward_hook(lambda module, args, output: modes.append((module.training, output.requires_grad)))
    waits: list[str] = []
    with virtual_gpu() as gpu, observe(gpu, wait=lambda name, seconds: waits.append(name)):
        got = answer(model.to("cuda").train(), loader, torch.device("cuda"))
    if not isinstance(got, (float, int)) or isinstance(got, bool):
        raise NotYet(
            f"{brief(got)} came back", expected="the share, a number", likely="the .item() at the end is missing"
        )
    trains, keeps = (any(flags) for flags in zip(*modes, strict=True)) if modes else (True, True)
    reads = [name for name in waits if name.startswith("copy to host") and ":" not in name]
    if trains and keeps and len(reads) > 1:
        raise AsGiven("dropout is on, each forward pass keeps its activations, and the host waits for each batch")
    if trains:
        raise NotYet(
            "the model still drops activations at random",
            expected="model.eval() before the loop",
            likely="inference_mode keeps nothing for backward, but does not switch off dropout and BatchNorm's updates",
        )
    if keeps:
        raise NotYet(
            "each forward pass keeps what backward would need",
            expected="the loop under torch.inference_mode()",
            likely="eval() changes dropout and BatchNorm, but leaves autograd on",
        )
    if len(reads) > 1:
        raise NotYet(
            f"the host waits for the GPU {len(reads)} times in {len(loader)} batches",
            expected="once, at the end",
            likely="an .item() is still in the loop: sum in a tensor on the device",
        )
    if abs(got - 18 / 23) > 1e-6:
        raise NotYet(
            f"{got:.3f} came back",
            expected="18 of 23 samples, 0.783",
            likely="the last batch is smaller: divide by len(loader.dataset)",
        )


@turn("the file holds tensors by name, and a machine without a GPU can load it")
def through_a_file(answer: Any) -> None:
    """A function (model, copy, path, device) that saves the model's state and gives `copy` with it, on `device`."""
    model, copy = _network(), _network()
    x = torch.rand(3, 1, 8, 8)
    right = model(x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        with virtual_gpu():
            model.to("cuda")
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            got = answer(model, copy, path, torch.device("cpu"))
            on_gpu = torch.cuda.max_memory_allocated() - before
        if not path.exists():
            raise NotYet("there is no file at `path`", expected="torch.save to it", likely="the save is missing")
        try:
            state = torch.load(path, map_location="cpu")
        except Exception:  # what a pickled object raises is whatever its class does
            raise AsGiven(
                "the file holds a pickled object, which torch.load refuses unless weights_only=False"
            ) from None
    if not isinstance(got, nn.Module):
        raise NotYet(
            f"{brief(got)} came back",
            expected="the copy",
            likely="load_state_dict changes the copy in place and does not return it",
        )
    if not isinstance(state, dict) or set(state) != set(copy.state_dict()):
        raise NotYet(
            f"the file holds {brief(state)}",
            expected="the tensors of model.state_dict(), by name",
            likely="model.parameters() gives tensors without names",
        )
    if got is not copy:
        raise NotYet("another model came back", expected="`copy` itself", likely="the trained model was returned")
    if on_gpu:
        raise NotYet(
            f"loading takes {on_gpu:,} bytes of the GPU's memory, which the copy on the CPU does not need",
            expected="none: on a machine without a GPU this load would fail",
            likely="torch.load puts each tensor where it was saved, unless map_location says where",
        )
    if not torch.allclose(got(x), right, atol=1e-5):
        raise NotYet(
            "the copy's outputs differ from the model's",
            expected="the saved weights in the copy",
            likely="copy.load_state_dict was not called",
        )
