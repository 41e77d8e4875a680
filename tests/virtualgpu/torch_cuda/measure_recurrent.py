"""What recurrent layers take on a real GPU: one row per layer, in the order in which they ran there.

    python tests/virtualgpu/torch_cuda/measure_recurrent.py > tests/virtualgpu/torch_cuda/recurrent_h200.json

It asks torch.cuda only, so that the same code runs on the virtual GPU, in test_recurrent_memory.py. A row:

kind, inputs, hidden, layers, both, projected, length, batch, dropout, dtype, lengths   the layer and its batch;
                `lengths` of packed sequences, null for others
forward, backward   bytes more than before at the end, and at the peak
"""

import json
import sys

import torch
from torch import nn

CELLS = "LSTM", "GRU", "RNN"
# inputs, hidden, layers, both directions, length, batch
SIZES = (
    (64, 128, 1, False, 20, 8),
    (64, 128, 2, False, 20, 8),
    (64, 128, 2, True, 20, 8),
    (256, 512, 2, False, 100, 64),
    (128, 256, 1, True, 300, 16),
    (512, 512, 3, False, 50, 32),
)


def warm_up():
    """Libraries take what they keep."""
    x = torch.zeros(1, device="cuda")
    x = x + 1
    a = torch.randn(512, 512, device="cuda")
    b = a.half()
    a @ a, b @ b
    layer = nn.Conv2d(64, 64, 3, device="cuda")
    y = layer(torch.randn(8, 64, 32, 32, device="cuda"))
    y.sum().backward()
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16)
    return x, a, b, layer, y, q


def falling(length, batch):
    """From the longest to half of it."""
    return [length - (i * length) // (2 * batch) for i in range(batch)]


def layers():
    for dtype in ("float32", "float16"):
        for kind in CELLS:
            for inputs, hidden, depth, both, length, batch in SIZES:
                mostly_short = [length] + [max(1, length // 4)] * (batch - 1)
                for lengths in (None, [length] * batch, falling(length, batch), mostly_short):
                    for dropout in (0.0, 0.2 if depth > 1 else 0.0):
                        yield kind, inputs, hidden, depth, both, 0, length, batch, dropout, dtype, lengths
        for both in (False, True):
            for projected in (32, 64):
                for depth in (1, 2):
                    for length, batch in ((20, 8), (100, 64)):
                        for lengths in (None, falling(length, batch)):
                            yield "LSTM", 64, 128, depth, both, projected, length, batch, 0.0, dtype, lengths


def measured(kind, inputs, hidden, depth, both, projected, length, batch, dropout, dtype, lengths):
    kind_of = torch.float32 if dtype == "float32" else torch.float16
    more = {"proj_size": projected} if projected else {}
    layer = getattr(nn, kind)(inputs, hidden, depth, bidirectional=both, dropout=dropout, **more).to("cuda", kind_of)
    x = torch.randn(length, batch, inputs, device="cuda", dtype=kind_of, requires_grad=True)
    row = {
        "kind": kind, "inputs": inputs, "hidden": hidden, "layers": depth, "both": both, "projected": projected,
        "length": length, "batch": batch, "dropout": dropout, "dtype": dtype, "lengths": lengths,
    }  # fmt: skip
    for _ in range(2):
        layer.zero_grad()
        x.grad = None
        given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths)) if lengths else x
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out, last = layer(given)
        data = out.data if lengths else out
        row["forward"] = [torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before]
        grad = torch.ones_like(data)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        data.backward(grad)
        row["backward"] = [torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before]
        del out, last, data, grad, given
    return row


def write(**tables):
    """One JSON object on standard output: which GPU, and the tables with one row per line."""
    head = {"what": "measured on a real GPU", "device": torch.cuda.get_device_name(0)}
    head |= {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]"
        for name, rows in tables.items()
    ]
    sys.stdout.write(json.dumps(head)[:-1] + ", " + ", ".join(parts) + "}\n")


def main():
    keep = warm_up()
    write(rows=[measured(*layer) for layer in layers()])
    del keep


if __name__ == "__main__":
    main()
