"""Answers to "pick the format": what the hardware has, what the numbers need, and what is stored."""

from types import MappingProxyType

import torch

from gpulab.check.lesson07.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("pick_format", SECTIONS)

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def plan(products, gradients=None, scaler=False, tf32=False, kept=4, weights=FP32):
    return {
        "weights": weights,
        "products": products,
        "gradients": gradients or products,
        "scaler": scaler,
        "tf32": tf32,
        "kept_bytes": kept,
    }


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def goes_down_the_list(capability, bits, largest, fp8):
    if fp8 and bits <= 4 and capability >= (8, 9):
        return plan(E4M3, E5M2, kept=1)
    if bits <= 8 and capability >= (8, 0):
        return plan(BF16, kept=2)
    if bits <= 11 and largest <= 65504:
        return plan(FP16, scaler=True, kept=2)
    return plan(FP32, tf32=bits <= 11 and capability >= (8, 0))


@BANK.right
def hands_out_what_nobody_can_change(capability, bits, largest, fp8):
    return MappingProxyType(goes_down_the_list(capability, bits, largest, fp8))


@BANK.right
def searches_a_table(capability, bits, largest, fp8):
    rows = [
        ((8, 9), 4, float("inf"), fp8, (E4M3, E5M2, False, False)),
        ((8, 0), 8, float("inf"), True, (BF16, BF16, False, False)),
        ((7, 0), 11, torch.finfo(FP16).max, True, (FP16, FP16, True, False)),
        ((8, 0), 11, float("inf"), True, (FP32, FP32, False, True)),
        ((0, 0), 24, float("inf"), True, (FP32, FP32, False, False)),
    ]
    for needs, has, most, allowed, found in rows:
        if allowed and capability >= needs and bits <= has and largest <= most:
            products, gradients, scaler, tf32 = found
            return plan(products, gradients, scaler, tf32, torch.finfo(products).bits // 8)


@BANK.right
def compares_numbers(capability, bits, largest, fp8):
    version = capability[0] * 10 + capability[1]
    if version >= 89 and fp8 and bits < 5:
        return plan(E4M3, E5M2, kept=1.0)
    if version >= 80 and bits < 9:
        return plan(BF16, kept=BF16.itemsize)
    fits = not torch.tensor(float(largest)).half().isinf() and largest <= 65504
    if bits < 12 and bool(fits):
        return plan(FP16, scaler=True, kept=FP16.itemsize)
    return plan(FP32, tf32=version >= 80 and bits < 12, kept=FP32.itemsize)


# --- wrong: what the GPU has ---------------------------------------------------------------------------


def but(change):
    """The right plan, changed."""

    def answer(capability, bits, largest, fp8):
        found = goes_down_the_list(capability, bits, largest, fp8)
        return found | (change(found, capability, bits, largest, fp8) or {})

    return answer


@BANK.wrong("bf16 on a GPU without bf16", "is_bf16_supported() counts emulation")
def bf16_on_a_t4(capability, bits, largest, fp8):
    return plan(BF16, kept=2) if bits <= 8 else goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("TF32 on a GPU without TF32", "came with capability 8.0")
def tf32_on_a_t4(*job):
    return but(lambda found, *_: {"tf32": found["products"] is FP32 and job[1] <= 11})(*job)


@BANK.wrong("fp8 on a GPU that has none", "8.9 (Ada, Hopper)")
def fp8_from_ampere_on(capability, bits, largest, fp8):
    if fp8 and bits <= 4 and capability >= (8, 0):
        return plan(E4M3, E5M2, kept=1)
    return goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("fp8 would do, and is cheaper", "the job allows fp8")
def never_fp8(capability, bits, largest, fp8):
    return goes_down_the_list(capability, bits, largest, False)


@BANK.wrong("fp8 where the job does not allow it", "a library that scales every tensor")
def fp8_without_a_library(capability, bits, largest, fp8):
    return goes_down_the_list(capability, bits, largest, True)


@BANK.wrong("fp16 where bf16 would do", "no number is too large for it")
def always_fp16(capability, bits, largest, fp8):
    if bits <= 11 and largest <= 65504 and not (fp8 and bits <= 4):
        return plan(FP16, scaler=True, kept=2)
    return goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("float32 where a cheaper format would do", "16 bits have enough bits and range here")
def always_float32(capability, bits, largest, fp8):
    return plan(FP32)


@BANK.wrong("your function raised TypeError", "capability >= (8, 0)")
def compares_with_a_number(capability, bits, largest, fp8):
    return plan(BF16, kept=2) if capability >= 8.0 else plan(FP16, scaler=True, kept=2)


# --- wrong: what the numbers need ----------------------------------------------------------------------


@BANK.wrong("fp16 for numbers beyond 65504", "no loss scale repairs that")
def trusts_the_scaler(capability, bits, largest, fp8):
    found = goes_down_the_list(capability, bits, largest, fp8)
    return plan(FP16, scaler=True, kept=2) if found["products"] is FP32 and bits <= 11 else found


@BANK.wrong("bf16 has too few bits for this job", "8 significant bits")
def bf16_is_more_precise(capability, bits, largest, fp8):
    if capability >= (8, 0) and 8 < bits <= 11:
        return plan(BF16, kept=2)
    return goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("TF32 has too few bits for this job", "11 of float32's 24")
def tf32_is_float32(*job):
    return but(lambda found, capability, *_: {"tf32": found["products"] is FP32 and capability >= (8, 0)})(*job)


@BANK.wrong("fp16 has too few bits for this job", "float32 has 24")
def fp16_for_everything_small(capability, bits, largest, fp8):
    if bits > 11 and largest <= 65504:
        return plan(FP16, scaler=True, kept=2)
    return goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("fp8 has too few bits for this job", "e4m3 has 4")
def fp8_for_eight_bits(capability, bits, largest, fp8):
    if fp8 and bits <= 8 and capability >= (8, 9):
        return plan(E4M3, E5M2, kept=1)
    return goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("float32 where a cheaper format would do", "a 16-bit format with enough bits and range stores 2")
def tf32_before_fp16(capability, bits, largest, fp8):
    if 8 < bits <= 11 and capability >= (8, 0):
        return plan(FP32, tf32=True)
    return goes_down_the_list(capability, bits, largest, fp8)


def fp16_if(fits):
    """Like the right one, with this question in the place of “up to 65504”."""

    def answer(capability, bits, largest, fp8):
        found = goes_down_the_list(capability, bits, min(largest, 65504.0), fp8)
        if found["products"] is FP16 and not fits(largest):
            return plan(FP32, tf32=capability >= (8, 0))
        return found

    return answer


@BANK.wrong("fp16 for numbers just beyond 65504", "not 65535")
def up_to_two_to_the_sixteen(*job):
    return fp16_if(lambda largest: largest < 2**16)(*job)


@BANK.wrong("fp16 for numbers just beyond 65504", "what half() rounds to it", same_as="up_to_two_to_the_sixteen")
def up_to_what_half_makes_inf(*job):
    return fp16_if(lambda largest: not torch.tensor(largest).half().isinf())(*job)


@BANK.wrong("the plan for a GPU that is in no list of yours is another one", "a list of known GPUs")
def knows_some_gpus(capability, bits, largest, fp8):
    known = capability in ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
    return goes_down_the_list(capability if known else (7, 5), bits, largest, fp8)


# --- wrong: what is stored -----------------------------------------------------------------------------


@BANK.wrong("the weights are torch.bfloat16", "autocast casts copies of them")
def bf16_master_weights(*job):
    return but(lambda found, *_: {"weights": BF16} if found["products"] is BF16 else {})(*job)


@BANK.wrong("the weights are torch.float16", "autocast casts copies of them")
def weights_as_the_products(*job):
    return but(lambda found, *_: {"weights": found["products"]})(*job)


@BANK.wrong("TF32 halves no storage", "the number itself stays 4 bytes")
def tf32_halves_storage(*job):
    return but(lambda found, *_: {"kept_bytes": 2} if found["tf32"] else {})(*job)


@BANK.wrong("the bytes kept are those of another format", "its bits / 8")
def counts_bits(*job):
    return but(lambda found, *_: {"kept_bytes": 8 * found["kept_bytes"]})(*job)


@BANK.wrong("float32 takes 4 bytes", "nothing is cast here")
def all_activations_are_half(*job):
    return but(lambda found, *_: {"kept_bytes": min(2, found["kept_bytes"])} if not found["tf32"] else {})(*job)


# --- wrong: gradients and scaler -----------------------------------------------------------------------


@BANK.wrong("e4m3 and e5m2 are swapped", "e5m2 has the range, for gradients")
def swaps_the_eights(*job):
    return but(lambda found, *_: {"products": E5M2, "gradients": E4M3} if found["products"] is E4M3 else {})(*job)


@BANK.wrong("one fp8 format for both ways", "e5m2 has the range, for gradients")
def one_eight_for_all(*job):
    return but(lambda found, *_: {"gradients": found["products"]})(*job)


@BANK.wrong("a scaler that nothing needs", "bf16 has the range of float32")
def bf16_with_a_scaler(*job):
    return but(lambda found, *_: {"scaler": found["products"] in (FP16, BF16)})(*job)


@BANK.wrong("fp16 without a scaler", "3e-8")
def never_a_scaler(*job):
    return but(lambda found, *_: {"scaler": False})(*job)


@BANK.wrong("a scaler that nothing needs", "a scale for every tensor")
def fp8_with_a_scaler(*job):
    return but(lambda found, *_: {"scaler": found["products"] in (FP16, E4M3)})(*job)


# --- wrong: form ---------------------------------------------------------------------------------------


@BANK.wrong("the plan is not a dict", "without a return")
def returns_nothing(capability, bits, largest, fp8):
    goes_down_the_list(capability, bits, largest, fp8)


@BANK.wrong("the plan lacks an entry")
def forgets_the_bytes(*job):
    return {key: value for key, value in goes_down_the_list(*job).items() if key != "kept_bytes"}


@BANK.wrong("products are no dtype", "not its name")
def gives_names(*job):
    return but(lambda found, *_: {"products": str(found["products"])})(*job)


@BANK.wrong("TF32 is not used where it would do", "run on tensor cores as TF32")
def never_tf32(*job):
    return but(lambda found, *_: {"tf32": False})(*job)
