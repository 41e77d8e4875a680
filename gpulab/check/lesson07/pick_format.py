"""The check of the choice of a format: every GPU, precision and range in turn, against a table of what hardware has."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import torch

from ..base import Trial, check
from ..wording import is_number, show
from .sections import FORMATS, GPUS, JOBS, SCALER, TF32, WEIGHTS

Plan = Mapping[str, Any]
Case = tuple[tuple[int, int], int, float, bool]  # capability, bits, largest, fp8
KEYS = ("weights", "products", "gradients", "scaler", "tf32", "kept_bytes")
CAPABILITIES = {(7, 0): "V100", (7, 5): "T4", (8, 0): "A100", (8, 6): "RTX 3060", (8, 9): "L4", (9, 0): "H100"}
CAPABILITIES |= {(10, 0): "B200", (12, 0): "RTX 5090"}
LARGEST = (1.0, 60_000.0, 65_504.0, 65_505.0, 65_535.0, 65_600.0, 1e6, 3e38)
BITS = (3, 4, 5, 8, 9, 11, 12, 24)
FP16_MAX = 65_504.0


def right(capability: tuple[int, int], bits: int, largest: float, fp8: bool) -> Plan:
    """The cheapest plan that the GPU has hardware for, and that keeps `bits` significant bits up to `largest`."""

    def plan(products: Any, gradients: Any, scaler: bool, tf32: bool, kept_bytes: int) -> Plan:
        return dict(zip(KEYS, (torch.float32, products, gradients, scaler, tf32, kept_bytes), strict=True))

    new = capability >= (8, 0)
    if fp8 and bits <= 4 and capability >= (8, 9):
        return plan(torch.float8_e4m3fn, torch.float8_e5m2, False, False, 1)
    if bits <= 8 and new:
        return plan(torch.bfloat16, torch.bfloat16, False, False, 2)
    if bits <= 11 and largest <= FP16_MAX:
        return plan(torch.float16, torch.float16, True, False, 2)
    return plan(torch.float32, torch.float32, False, bits <= 11 and new, 4)


@check(lesson=7, says="the cheapest format that the GPU has and the numbers fit, with float32 weights, for every job")
def pick_format(student: Any, trial: Trial) -> None:
    """Check a function of (capability, bits, largest, fp8): the plan of a training job as a dict of `weights`,
    `products`, `gradients`, `scaler`, `tf32` and `kept_bytes`."""
    trial.function(student, ("capability", "bits", "largest", "fp8"))
    others = [(8, 7), (10, 3), (random.randint(13, 20), random.randint(0, 9))]  # of which no list knows the last
    cases = list(itertools.product(CAPABILITIES, BITS, LARGEST, (False, True)))
    random.shuffle(cases)
    cases += itertools.product(others, BITS, LARGEST, (False, True))
    # first those that show one thought each, so that a message does not depend on the draw
    first: list[Case] = [
        ((7, 5), 8, 100.0, False),
        ((8, 0), 8, 100.0, False),
        ((8, 0), 11, 1e6, False),
        ((7, 5), 8, 1e6, False),
        ((8, 0), 11, 100.0, False),
        ((8, 0), 24, 100.0, False),
        ((9, 0), 4, 100.0, True),
        ((8, 9), 4, 1e6, True),
        ((8, 6), 4, 100.0, True),
        ((9, 0), 8, 100.0, True),
        ((9, 0), 4, 100.0, False),
    ]
    for case in first:
        _judge(trial, trial.call(student, *case, explain=_explain), case)

    def all_of_them() -> list[Any]:
        plans = (student(*case) for case in cases)
        return [dict(plan) if isinstance(plan, Mapping) else plan for plan in plans]  # it may hand out one, changed

    for case, got in zip(cases, trial.call(all_of_them, explain=_explain), strict=True):
        _judge(trial, got, case)


def _judge(trial: Trial, got: Any, case: Case) -> None:
    want = right(*case)
    trial.expect(
        isinstance(got, Mapping),
        "the plan is not a dict",
        expected=f"a dict with {', '.join(KEYS)}",
        got=show(got),
        likely="the function ends without a return" if got is None else "",
        read=JOBS,
    )
    missing = [key for key in KEYS if key not in got]
    trial.expect(
        not missing,
        "the plan lacks an entry",
        expected=f"a dict with {', '.join(KEYS)}",
        got=f"no {', '.join(missing)}",
        read=JOBS,
    )
    for key in KEYS:
        if not _same(got[key], want[key]):
            summary, likely, read = _why(key, got, want, case)
            rows = {"expected": f"{key} = {_text(want[key])} for {_given(*case)}", "got": _text(got[key])}
            trial.fail(summary, likely=likely, read=read, **rows)


def _given(capability: tuple[int, int], bits: int, largest: float, fp8: bool) -> str:
    allowed = ", fp8 allowed" if fp8 else ""
    name = CAPABILITIES.get(capability, "another GPU")
    return f"capability {capability} ({name}), {bits} bits, numbers up to {largest:.9g}{allowed}"


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, bool):
        return isinstance(got, bool) and got is want
    if isinstance(want, int):
        return is_number(got) and got == want
    return isinstance(got, torch.dtype) and got == want


def _text(value: Any) -> str:
    return str(value) if isinstance(value, torch.dtype | bool | int) else show(value)


def _why(key: str, got: Plan, want: Plan, case: Case) -> tuple[str, str, str]:
    """Summary, likely cause and section for a plan that differs in `key`."""
    capability, bits, largest, fp8 = case
    value, should = got[key], want[key]
    if capability not in CAPABILITIES:  # those that are in it are judged first
        return (
            "the plan for a GPU that is in no list of yours is another one",
            "“from 8.0” is capability >= (8, 0): a list of known GPUs leaves out the others, and those to come",
            GPUS,
        )
    if key == "weights":
        if isinstance(value, torch.dtype):
            return (
                f"the weights are {_text(value)}",
                "an update of a thousandth of a weight is rounded away in 16 bits, scaler or not: weights stay "
                "float32, and autocast casts copies of them",
                WEIGHTS,
            )
        return "the weights are no dtype", "give torch.float32 itself, not its name", WEIGHTS
    if key in ("products", "gradients"):
        if not isinstance(value, torch.dtype):
            return (
                f"{key} are no dtype",
                "give torch's dtype itself, not its name; torch.float32 where nothing is cast",
                JOBS,
            )
        eight = (torch.float8_e4m3fn, torch.float8_e5m2)
        if value in eight and should in eight:
            return (
                "e4m3 and e5m2 are swapped" if got["products"] != got["gradients"] else "one fp8 format for both ways",
                "e4m3 has the bits, for weights and activations; e5m2 has the range, for gradients",
                JOBS,
            )
        if value in eight:
            if capability < (8, 9):
                return "fp8 on a GPU that has none", "fp8 products came with compute capability 8.9 (Ada, Hopper)", JOBS
            if not fp8:
                return "fp8 where the job does not allow it", "it takes a library that scales every tensor", JOBS
            return "fp8 has too few bits for this job", "e4m3 has 4 significant bits", FORMATS
        if value is torch.bfloat16 and capability < (8, 0):
            return (
                "bf16 on a GPU without bf16",
                "is_bf16_supported() counts emulation; tensor cores multiply bf16 from capability 8.0 on",
                GPUS,
            )
        if value is torch.bfloat16 and bits > 8:
            return "bf16 has too few bits for this job", "bf16 has 8 significant bits, fp16 and TF32 have 11", FORMATS
        if value is torch.float16 and FP16_MAX < largest < 2**16:
            return (
                "fp16 for numbers just beyond 65504",
                "its largest number is torch.finfo(torch.float16).max, 65504: not 65535, nor what half() rounds to it",
                FORMATS,
            )
        if value is torch.float16 and largest > FP16_MAX:
            return (
                "fp16 for numbers beyond 65504",
                "they become inf in the forward pass, and no loss scale repairs that: it scales gradients",
                FORMATS,
            )
        if value is torch.float16 and bits > 11:
            return "fp16 has too few bits for this job", "fp16 has 11 significant bits, float32 has 24", FORMATS
        if value is torch.float16 and should is torch.bfloat16:
            return (
                "fp16 where bf16 would do",
                "both take two bytes; bf16 needs no scaler, and no number is too large for it",
                GPUS,
            )
        if should in eight:
            return "fp8 would do, and is cheaper", "the job allows fp8, the GPU has it, and 4 bits suffice", JOBS
        if value is torch.float32:
            return (
                "float32 where a cheaper format would do",
                "TF32 makes products faster and stores 4 bytes; a 16-bit format with enough bits and range stores 2"
                if bits > 8
                else "16 bits have enough bits and range here, and the GPU has them",
                GPUS,
            )
        return f"{_text(value)} is not the cheapest that fits", "bits first, then range, then hardware", JOBS
    if key == "scaler":
        if not isinstance(value, bool):
            return "scaler is not True or False", "", SCALER
        if should:
            return "fp16 without a scaler", "gradients below 3e-8 are 0 in fp16: fp16 always takes a scaler", SCALER
        what = {torch.bfloat16: "bf16 has the range of float32", torch.float32: "float32 loses no gradient"}
        return (
            "a scaler that nothing needs",
            what.get(want["products"], "fp8 has a scale for every tensor, made by the library"),
            SCALER,
        )
    if key == "tf32":
        if not isinstance(value, bool):
            return "tf32 is not True or False", "", TF32
        if should:
            return (
                "TF32 is not used where it would do",
                "float32 products that need no more than 11 bits run on tensor cores as TF32, from capability 8.0 on",
                TF32,
            )
        if capability < (8, 0):
            return "TF32 on a GPU without TF32", "TF32 came with capability 8.0 (Ampere)", TF32
        if bits > 11:
            return "TF32 has too few bits for this job", "TF32 keeps 11 of float32's 24 significant bits", TF32
        return "TF32 for products that are not float32", "TF32 is a way to multiply float32 numbers", TF32
    if value == 2 and want["products"] is torch.float32:
        return (
            "TF32 halves no storage" if want["tf32"] else "float32 takes 4 bytes",
            "TF32 is what tensor cores read of a float32 number; the number itself stays 4 bytes"
            if want["tf32"]
            else "nothing is cast here, so float32 is what is kept for backward",
            TF32 if want["tf32"] else FORMATS,
        )
    return "the bytes kept are those of another format", "a format's bytes are its bits / 8", FORMATS


def _explain(error: str) -> str:
    if "not supported between" in error:
        return "capability is a tuple such as (7, 5), to be compared with a tuple: capability >= (8, 0)"
    return ""
