"""Which kernel PyTorch's CUDA code chooses for an attention: a JSON row for each case and dtype, on standard output.

Runs inside a process that sees the stand-in; record.py starts it.
"""

import torch
from printing import of_this_gpu, print_rows

KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def cases(dtype):
    """name -> query, key, value, mask, dropout, causal, enable_gqa."""
    made = {}

    def zeros(*shape, dtype=dtype, grad=False):
        return torch.zeros(shape, device="cuda", dtype=dtype, requires_grad=grad)

    def case(name, q=(8, 32, 64), k=None, v=None, mask=None, p=0.0, causal=False, gqa=False, grad=True):
        k = q if k is None else k
        tensors = [zeros(2, *t, grad=grad) if isinstance(t, tuple) else t for t in (q, k, k if v is None else v)]
        made[name] = (*tensors, mask, p, causal, gqa)

    case("plain")
    case("causal", causal=True)
    case("dropout of a tenth", p=0.1)
    case("dropout of an eighth", p=0.125)
    for width in (1, 12, 20, 128, 192, 224, 256, 264):
        case(f"width {width}", (8, 32, width))
        case(f"width {width}, without a gradient", (8, 32, width), grad=False)
    case("narrower values", v=(8, 32, 40))
    case("wide, narrower values", (8, 32, 192), v=(8, 32, 128))
    for queries, keys in ((1, 32), (32, 1), (1, 1), (32, 40)):
        case(f"{queries} queries, {keys} keys", (8, queries, 64), (8, keys, 64))
        case(f"{queries} queries, {keys} keys, causal", (8, queries, 64), (8, keys, 64), causal=True)
        case(f"{queries} queries, {keys} keys, dropout", (8, queries, 64), (8, keys, 64), p=0.125)
    case("keys of one head", k=(1, 32, 64))
    case("keys of two heads", k=(2, 32, 64))
    for keys, values in ((1, 1), (2, 2), (2, 4), (3, 3)):
        case(f"groups: {keys} and {values} heads", k=(keys, 32, 64), v=(values, 32, 64), gqa=True)
    masks = {
        "of scores": zeros(32, 32),
        "of truth values": zeros(32, 32, dtype=torch.bool),
        "of images": zeros(2, 1, 32, 32),
        "of keys": zeros(2, 1, 1, 32),
        "of heads": zeros(8, 32, 32),
        "of one head": zeros(1, 32, 32),
        "learned": zeros(1, 8, 32, 32, grad=True),
        "permuted": zeros(32, 32, 8).permute(2, 0, 1)[None],
        "learned and permuted": zeros(32, 32, 8, grad=True).permute(2, 0, 1)[None],
        "expanded": zeros(32, 1).expand(32, 32),
        "of queries": zeros(2, 1, 32, 1),
    }
    for name, mask in masks.items():
        case(f"mask {name}", mask=mask)
    case("mask of keys, keys of one head", k=(1, 32, 64), mask=masks["of keys"])
    for offset in (1, 4, 8):
        from_there = zeros(2 * 8 * 32 * 64 + offset)[offset:].view(2, 8, 32, 64)
        case(f"query from element {offset} on", from_there)
        case(f"query from element {offset} on, mask", from_there, mask=masks["of scores"])
    case("query transposed", zeros(2, 8, 64, 32).mT)
    return made


def rows():
    for mode, dtype in of_this_gpu(DTYPES).items():
        for name, case in cases(dtype).items():
            yield {"case": name, "mode": mode}, case


def chosen(q, k, v, mask, p, causal, gqa):
    return {"kernel": KERNELS[torch._fused_sdp_choice(q, k, v, mask, p, causal, enable_gqa=gqa)]}


if __name__ == "__main__":
    print_rows(rows(), chosen, cuda=torch.version.cuda)
