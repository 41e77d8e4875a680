"""What PyTorch's CUDA code allocates for attention layers in evaluation, which it does in one operation each: one JSON
row per case and mode, on standard output.

Runs inside a process that sees the stand-in; record.py starts it. A row:

out             shape of the result
forward         [change, peak] of memory_allocated over the call, in bytes
events          every allocation (+) and free (-) in order, in bytes as requested
"""

import ctypes

import record_ops
import torch
from printing import of_this_gpu, print_rows
from torch import nn

MODES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
B, T, D, H = 4, 16, 64, 4
LENGTHS = {
    "ragged": (16, 10, 7, 3),
    "all short": (13, 10, 7, 3),
    "full": (16, 16, 16, 16),
    "one of one": (16, 10, 7, 1),
    "one of none": (16, 10, 7, 0),
}


def answer(*values):
    """What the stand-in gives for the next copies to the host of their sizes; elsewhere values are real."""
    tell = getattr(ctypes.CDLL(None), "stand_in_answer", None)
    if tell is not None:
        for value in (b"", *(t.numpy().tobytes() for t in values)):
            tell(value, ctypes.c_size_t(len(value)))


def cases(dtype):
    """name -> function that gives the call to record."""
    made = {}

    def x(width=D, length=T, batch=B):
        return torch.zeros(batch, length, width, device="cuda", dtype=dtype)

    def causal(length=T):
        return nn.Transformer.generate_square_subsequent_mask(length, device="cuda", dtype=dtype)

    def padding(lengths, length=T):
        return torch.arange(length)[None].ge(torch.tensor(lengths)[:, None]).to("cuda")

    def layer(width=D, heads=H, **options):
        module = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, **options)
        return module.to("cuda", dtype).eval()

    def attention(width=D, heads=H):
        return nn.MultiheadAttention(width, heads, batch_first=True).to("cuda", dtype).eval()

    def case(name, make):
        made[name] = make

    def call(module, *inputs, **named):
        return lambda: module(*inputs, **named)

    def own(name, make, width=D, heads=H, length=T, batch=B):
        """A layer with every mask that it takes."""
        masks = {
            "": lambda: {},
            ", mask": lambda: {"src_mask": causal(length)},
            ", padding": lambda: {"src_key_padding_mask": keys()},
            ", mask and padding": lambda: {"src_mask": causal(length), "src_key_padding_mask": keys()},
            ", mask of every head": lambda: {"src_mask": x(length, length, batch * heads)},
        }

        def keys():
            return padding([length] * (batch - 1) + [length - 2], length)

        for kind, named in masks.items():
            case(f"{name}{kind}", lambda named=named: call(make(), x(width, length, batch), **named()))

    own("layer", layer)
    own("layer, odd heads' width", lambda: layer(36, 6), 36, 6)
    own("layer, heads of 12", lambda: layer(24, 2), 24, 2)
    own("long layer", lambda: layer(16, 2), 16, 2, 1040, 2)
    own("layer, longer than a row of float32", lambda: layer(16, 2), 16, 2, 1100, 1)
    case("layer, norm first", lambda: call(layer(norm_first=True), x()))
    case("layer, gelu", lambda: call(layer(activation="gelu"), x()))
    case("layer, a batch of one", lambda: call(layer(), x(batch=1)))
    for name, (width, heads) in {"": (D, H), ", odd heads' width": (36, 6)}.items():
        for kind, named in {
            "no weights": {"need_weights": False},
            "weights": {},
            "weights of every head": {"average_attn_weights": False},
        }.items():
            for masked in (False, True):

                def make(w=width, h=heads, named=named, masked=masked):
                    masks = {"attn_mask": causal(), "key_padding_mask": padding(LENGTHS["ragged"])} if masked else {}
                    return call(attention(w, h), *[x(w)] * 3, **named, **masks)

                case(f"attention, {kind}{name}{', masks' if masked else ''}", make)

    def nested(name, make, lengths, width=D, aligned=True, checked=True, length=T):
        def prepare():
            module, inputs, mask = make(), x(width, length, len(lengths)), padding(lengths, length)
            if not aligned:
                mask = mask.flip(1)

            def run():
                sizes = torch.tensor([[length, width] for length in lengths])
                selected = [torch.tensor(sum(lengths) * width, dtype=torch.int32)] * 3  # in bf16, by their indices
                answer(*([torch.tensor(aligned)] if checked else []), *([sizes, *selected] if aligned else []))
                return module(inputs, src_key_padding_mask=mask)

            return run

        case(f"encoder, {name}", prepare)

    def encoder(width=D, heads=H, layers=1, norm=False, mask_check=True, hook=False, **options):
        last = nn.LayerNorm(width).to("cuda", dtype) if norm else None
        made = nn.TransformerEncoder(layer(width, heads, **options), layers, norm=last, mask_check=mask_check).eval()
        if hook:
            for part in made.layers:
                part.register_forward_hook(lambda *_: None)
        return made

    for name, lengths in LENGTHS.items():
        nested(name, encoder, lengths)
        nested(f"{name}, odd heads' width", lambda: encoder(36, 6), lengths, 36)
        nested(f"{name}, heads of 12", lambda: encoder(24, 2), lengths, 24)
    nested("long", lambda: encoder(16, 2), (1100, 600), 16, length=1200)
    nested("long, odd heads' width", lambda: encoder(12, 2), (1100, 600), 12, length=1200)
    nested("not aligned", encoder, LENGTHS["ragged"], aligned=False)
    nested("not checked", lambda: encoder(mask_check=False), LENGTHS["ragged"], checked=False)
    nested("norm", lambda: encoder(norm=True), LENGTHS["ragged"])
    nested("two layers", lambda: encoder(layers=2), LENGTHS["ragged"])
    nested("norm first, gelu", lambda: encoder(norm_first=True, activation="gelu"), LENGTHS["ragged"])
    nested("hooks", lambda: encoder(hook=True), LENGTHS["ragged"])
    nested("hooks, gelu", lambda: encoder(hook=True, activation="gelu"), LENGTHS["ragged"])
    return made


def record(make, warm_up=True):
    """One row: the call is run once to warm up, and once measured."""
    with torch.no_grad():
        run = make()
        if warm_up:
            run()
        with record_ops.Traced() as traced:
            result = run()
    shapes = [list(t.shape) for t in record_ops.tensors(result)]
    return {"out": shapes, "forward": [traced.delta, traced.peak], "events": traced.events}


def rows():
    for mode, dtype in of_this_gpu(MODES).items():
        for name, make in cases(dtype).items():
            yield {"case": name, "mode": mode}, (make,)


if __name__ == "__main__":
    print_rows(rows(), record, cuda=torch.version.cuda)
