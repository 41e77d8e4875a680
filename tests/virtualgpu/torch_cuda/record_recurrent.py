"""What cuDNN says its recurrent layers need: one JSON row per layer, on standard output.

Runs inside a process that sees the stand-in, with cuDNN's plans; record.py starts it. It calls
cudnnGetRNNTempSpaceSizes as PyTorch does, through the stand-in (`plan_rnn` in cudnn_plans.c). A row:

cell, length, batch, inputs, hidden, layers, directions, itemsize, packed, dropout      the layer and its batch
algorithm       which of cuDNN's was asked for
reserve, training, inference    bytes: the reserve, the workspace with training and without
"""

import ctypes
import os
import random

import torch
from printing import print_rows

ALGORITHMS = {"standard": 0, "persist static": 1, "persist static, small hidden size": 3}
CELLS = {"rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
FLOAT, HALF = 0, 2  # cudnnDataType_t


def layers():
    """Drawn once and for all: every algorithm, cell, depth and layout, in sizes from one step to a thousand."""
    rng = random.Random(0)
    for algorithm in ALGORITHMS:
        small = algorithm.endswith("hidden size")
        for _ in range(160):
            layer = {
                "cell": rng.choice(list(CELLS)),
                "length": rng.choice((1, 2, 5, 30, 64, 128, 200, 300, 600, 900)),
                "batch": rng.choice((1, 3, 4, 16, 24, 32, 64, 128, 250)),
                "inputs": rng.choice((32, 96, 256, 512, 1024)),
                "hidden": rng.choice((32, 64, 96, 128, 160, 192) if small else (32, 64, 128, 256, 512, 1024)),
                "layers": rng.choice((1, 2, 3, 4)),
                "directions": rng.choice((1, 2)),
                "itemsize": rng.choice((2, 4)),
                "packed": rng.random() < 0.3,
                "dropout": rng.random() < 0.4,
            }
            if algorithm == "persist static":  # which PyTorch asks for only then
                layer |= {"layers": 1, "directions": 1, "itemsize": 2, "packed": False}
                layer |= {"batch": rng.choice((8, 16, 32, 64, 128)), "inputs": rng.choice((128, 256, 512, 1024))}
                layer |= {"hidden": rng.choice((128, 256, 512, 1024))}
            yield layer | {"algorithm": algorithm}


class Cudnn:
    """The stand-in's interface, whose answers are cuDNN's own."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._dropout_states = ctypes.create_string_buffer(1 << 24)

    def _make(self, name):
        descriptor = ctypes.c_void_p()
        assert getattr(self._library, f"cudnnCreate{name}Descriptor")(ctypes.byref(descriptor)) == 0
        return descriptor

    def sizes(self, layer, training):
        """Workspace and reserve in bytes."""
        rnn, data, dropout = self._make("RNN"), self._make("RNNData"), self._make("Dropout")
        states, rate = self._dropout_states, ctypes.c_float(0.25 if layer["dropout"] else 0.0)
        self._library.cudnnRestoreDropoutDescriptor(
            dropout, None, rate, states, ctypes.c_size_t(len(states)), ctypes.c_ulonglong(0)
        )
        kind = HALF if layer["itemsize"] == 2 else FLOAT
        widths = layer["inputs"], layer["hidden"], layer["hidden"], layer["layers"]
        self._library.cudnnSetRNNDescriptor_v8(
            rnn, ALGORITHMS[layer["algorithm"]], CELLS[layer["cell"]], 2, layer["directions"] - 1, 0, kind, FLOAT, 1,
            *widths, dropout, 0 if layer["packed"] else 1,
        )  # fmt: skip
        lengths = (ctypes.c_int * layer["batch"])(*[layer["length"]] * layer["batch"])
        self._library.cudnnSetRNNDataDescriptor(
            data, kind, 0, layer["length"], layer["batch"], layer["inputs"], lengths, None
        )
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.cudnnGetRNNTempSpaceSizes(
            None, rnn, int(training), data, ctypes.byref(workspace), ctypes.byref(reserve)
        )
        return workspace.value, reserve.value


def record(cudnn, layer):
    (training, reserve), (inference, _) = (cudnn.sizes(layer, training=way) for way in (True, False))
    return {"reserve": reserve, "training": training, "inference": inference}


if __name__ == "__main__":
    torch.cuda.init()
    cudnn = Cudnn()
    print_rows(((layer, (cudnn, layer)) for layer in layers()), record, cudnn=torch.backends.cudnn.version())
