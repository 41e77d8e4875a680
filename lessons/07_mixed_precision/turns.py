"""Judges the turns of lesson 07: who saves a third, a loop in fp16, what a bf16 weight loses, a format for a job."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpulab.exercise.measure import virtual_gpu
from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief

SAVED = {"A": 37, "B": 0, "C": 30}  # % of the peak, virtual A100
_WHY_NOT = {  # MiB: the lecture's table, and lines through it
    "A": "each image adds (5,621 - 1,018) / 56 = 82 MiB in float32, 42 under autocast: about 1,676 and 1,065 at 16",
    "B": "16 images of 64 x 64 have the pixels of 1.3 of 224 x 224: the peak is weights, gradients and Adam's state",
    "C": "each text adds (13,504 - 3,321) / 7 = 1,455 MiB in float32, 951 under autocast: 25,142 and 17,478 at 16",
}


@turn("A saves 37 %, C 30 %, and B nothing: what is not an activation does not shrink (virtual)")
def save_a_third(answer: Any) -> None:
    """A function that returns the letters of the networks that save more than a third of their peak."""
    got = answer()
    if isinstance(got, str):
        got = list(got)
    if not isinstance(got, list | tuple | set) or not set(got) <= set(SAVED):
        raise NotYet(brief(got), expected="a list of some of the letters A, B, C", likely="the return is missing")
    if set(got) == set(SAVED):
        raise AsGiven("all three")
    for letter, saved in SAVED.items():
        if (letter in got) != (saved > 100 / 3):
            verb = "is" if letter in got else "is not"
            raise NotYet(
                f"{letter} {verb} in the list",
                expected=f"it saves {saved} % (virtual)",
                likely=_WHY_NOT[letter],
            )


class _Seen:
    """What happens in the reader's loop, a step after the other."""

    def __init__(self) -> None:
        self.outputs: list[torch.dtype] = []
        self.losses: list[torch.dtype] = []
        self.backward: list[bool] = []  # under autocast?
        self.stepped = self.updated = 0


class _Scaler(torch.amp.GradScaler):
    """A scaler that tells what it is asked for."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__("cuda")
        self.seen = seen

    def scale(self, outputs: Any) -> Any:
        self.seen.losses.append(outputs.dtype)
        return super().scale(outputs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.stepped += 1
        return super().step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.seen.updated += 1
        super().update(new_scale)


class _Net(nn.Module):
    """Two layers that tell in which dtype they ran, and whether backward ran under autocast."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self.first, self.second, self.seen = nn.Linear(8, 16), nn.Linear(16, 4), seen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x).relu())
        self.seen.outputs.append(out.dtype)
        out.register_hook(lambda _: self.seen.backward.append(torch.is_autocast_enabled("cuda")))
        return out


STEPS, LOUD = 4, 1  # batches, and which of them makes inf


@turn("fp16 in model and loss, the loss scaled, the batch with inf skipped, and the scale halved after it")
def train_fp16(answer: Any) -> None:
    """A function (model, optimizer, scaler, batches) that trains, one step for each batch, in fp16."""
    seen = _Seen()
    with virtual_gpu():
        model = _Net(seen).to("cuda")
        start = [p.detach().clone() for p in model.parameters()]
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.5), _Scaler(seen)
        batches = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(STEPS)]
        batches[LOUD] = batches[LOUD][0] * 1e5, batches[LOUD][1]
        on_gpu = [(x.to("cuda"), y.to("cuda")) for x, y in batches]
        right = _trained(start, on_gpu)
        try:
            answer(model, optimizer, scaler, iter(on_gpu))
        except RuntimeError as error:
            if "since the last update" not in str(error):
                raise
            raise _NO_UPDATE from None
        except AssertionError as error:
            if not seen.losses and "scale" in str(error):
                raise _NOT_SCALED from None
            raise
        got = [p.detach() for p in model.parameters()]
        away = max((mine - other).abs().max().item() for mine, other in zip(got, right, strict=True))
        broken = not all(bool(p.isfinite().all()) for p in got)
        scale = scaler.get_scale()
    _judge_loop(seen, away, broken, scale)


_NO_UPDATE = NotYet(
    "the scaler is never updated",
    expected="one update after each step",
    likely="call `scaler.update()` at the end of every step: it adjusts the scale and clears the record of inf",
)
_NOT_SCALED = NotYet(
    "backward from the loss itself",
    expected="backward from the loss times the scale",
    likely="use `scaler.scale(loss).backward()`: otherwise small gradients are 0 in fp16",
)


def _judge_loop(seen: _Seen, away: float, broken: bool, scale: float) -> None:
    casts = set(seen.outputs)
    if casts == {torch.float32} and not seen.losses and not seen.stepped:
        raise AsGiven("float32 without a scaler")
    if casts != {torch.float16}:
        likely = "the model is called outside of `torch.autocast`, or not at all"
        if torch.bfloat16 in casts:
            likely = "the T4 of this turn has no bf16 in hardware: dtype=torch.float16"
        names = " and ".join(sorted(str(kind)[6:] for kind in casts)) or "nothing"
        raise NotYet(f"the model gives {names}", expected="float16, in each batch", likely=likely)
    if len(seen.outputs) != STEPS:
        raise NotYet(
            f"the model ran {len(seen.outputs)} times", expected=f"{STEPS}, once a batch", likely="it is called twice"
        )
    if not seen.losses:
        raise _NOT_SCALED
    if torch.float32 not in seen.losses:
        raise NotYet(
            "a loss in float16",
            expected="a loss in float32",
            likely="the loss is computed outside of the block: model and loss both belong in it",
        )
    if any(seen.backward):
        raise NotYet(
            "backward under autocast",
            expected="backward outside of the block",
            likely="`backward()` is indented too far: each operation's backward knows the dtype of its forward",
        )
    if seen.stepped != STEPS:
        raise NotYet(
            f"{seen.stepped} of {STEPS} steps go through the scaler",
            expected="all of them",
            likely="call `scaler.step(optimizer)`, not `optimizer.step()`: the gradients are still scaled",
        )
    if seen.updated != STEPS:
        raise _NO_UPDATE
    if scale < 2.0**15:
        raise NotYet(
            f"a scale of {scale:,.0f}: the scaler has skipped more than the one batch that has inf",
            expected="32,768: halved once",
            likely="gradients are not cleared, so that inf stays in them; or the loss is larger than the batch's mean",
        )
    if broken or away > 0.01:
        raise NotYet(
            "the weights are not finite" if broken else f"the weights are off by up to {away:.3g}",
            expected="those of the same steps in float32, without the one that has inf",
            likely="the loss is not that of the batch, or `optimizer.step()` is called as well",
        )
    if scale > 2.0**15:
        raise NotYet(f"a scale of {scale:,.0f}", expected="32,768: halved once", likely="the scale was set by hand")


def _trained(start: list[torch.Tensor], batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """The weights after plain float32 steps over all batches but the loud one."""
    model = _Net(_Seen()).to("cuda")
    with torch.no_grad():
        for p, first in zip(model.parameters(), start, strict=True):
            p.copy_(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number, (x, y) in enumerate(batches):
        if number != LOUD:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()]


UPDATES = 1000


@turn("a thousand small updates take effect: a second bf16 number keeps what the first loses")
def update_bf16(answer: Any) -> None:
    """A function (weight, lost, update) of bf16 tensors that returns the next weight and what is lost."""
    weight = torch.cat([torch.ones(2), 0.5 + torch.rand(6)]).bfloat16()
    update = (-0.001 * (0.2 + 0.3 * torch.rand(8))).bfloat16()
    given = update.clone()
    lost, exact, stuck, kept = torch.zeros_like(weight), weight.double(), weight.clone(), False
    for _ in range(UPDATES):
        got = answer(weight, lost, update)
        if not isinstance(got, list | tuple) or len(got) != 2 or not all(isinstance(t, torch.Tensor) for t in got):
            raise NotYet(brief(got), expected="two tensors: new, lost", likely="the return is missing, or one tensor")
        weight, lost = got
        if weight.dtype is not torch.bfloat16:
            raise NotYet(
                f"a weight in {str(weight.dtype)[6:]}",
                expected="a weight in bf16",
                likely="the sum was made in another dtype: round it with `.bfloat16()`, and put the rest into `lost`",
            )
        if not torch.equal(update, given):
            raise NotYet(
                "the caller's update was changed",
                expected="a new tensor",
                likely="`update += lost` writes into it; `update = update + lost` does not",
            )
        exact += update.double()
        kept = kept or bool((lost != 0).any())
    miss = (weight.double() - exact).abs().max().item()
    if torch.equal(weight, stuck):
        if not kept:
            raise AsGiven("the weights stand still")
        raise NotYet(
            "the weights stand still, although lost is not zero",
            expected="weights that move",
            likely="what was lost before is not added to the update, or has the wrong sign: `update - (new - weight)`",
        )
    if not miss < 0.02:
        raise NotYet(
            f"the weights are off by up to {miss:.2f} after {UPDATES} updates",
            expected="the exact sums, rounded to bf16",
            likely="lost is the intended change minus the actual one: `update - (new - weight)`, after `update + lost`",
        )


FORMATS = {"bf16": torch.bfloat16, "fp16 with scaler": torch.float16, "TF32": torch.float32, "float32": torch.float32}
JOBS = {  # the GPU, the significant bits that are needed, the largest activation
    "T4, 8 bits, activations up to 900": ("T4", 8, 900.0),
    "H100, 8 bits, activations up to 80,000": ("H100", 8, 8e4),
    "A100, 10 bits, activations up to 200,000": ("A100-80", 10, 2e5),
    "T4, 8 bits, activations up to 80,000": ("T4", 8, 8e4),
}


def _fault(format: str, gpu: str, bits: int, largest: float) -> str:
    """Why the products of this job cannot run in this format; nothing if they can."""
    with virtual_gpu(gpu, compute=False):
        has = torch.cuda.is_bf16_supported(including_emulation=False)  # and TF32: both came with Ampere
    if format in ("bf16", "TF32") and not has:
        return f"a {gpu} has no {format} in hardware: it came with Ampere"
    if torch.tensor(largest).to(FORMATS[format]).isinf():
        return "activations beyond 65504 become inf in fp16, and the scaler does not help: it scales gradients"
    if format == "bf16" and bits > 8:
        return "bf16 keeps 8 significant bits; fp16 and TF32 keep 11"
    return ""


_DEARER = {
    "fp16 with scaler": "bf16 fits too, and needs no scaler",
    "TF32": "it fits, but stores 4 bytes for each number; a 16-bit format fits too, and stores 2",
    "float32": "it fits, but does not use the tensor cores: a cheaper format fits too",
}


@turn("fp16 with a scaler on the T4, bf16 on the H100, and TF32 or float32 where neither fits")
def format_for(answer: Any) -> None:
    """A function that returns {job: one of FORMATS}: the first that the GPU has, and that the numbers fit."""
    got = answer()
    if not isinstance(got, dict) or set(got) != set(JOBS):
        raise NotYet(
            brief(got), expected="the dict of the four jobs", likely="a key was changed, or the return is missing"
        )
    if all(format is None for format in got.values()):
        raise AsGiven("all four are None")
    for job, format in got.items():
        right = next(name for name in FORMATS if not _fault(name, *JOBS[job]))
        if format == right:
            continue
        if format not in FORMATS:
            likely = f"the four words are {', '.join(FORMATS)}"
        else:
            likely = _fault(format, *JOBS[job]) or _DEARER[format]
        raise NotYet(f"{brief(format)} for {job}", expected=right, likely=likely)
