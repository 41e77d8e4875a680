"""Memory of cuDNN's recurrent layers: the reserve that backward needs, and the workspace.

NVIDIA does not publish either. The rules are read off what cuDNN 9.26 answers when it is asked for sizes
(cudnnGetRNNTempSpaceSizes; tests/virtualgpu/torch_cuda/recurrent.json), and 9.19, 9.22 and 9.24, whose algorithm for
small hidden sizes wants more. An H100 and an H200 with 9.19 took these bytes; what packed sequences and projections
both ways take is read off the H200 (recurrent_h200.json).
PyTorch 2.15 chooses the algorithm in aten/src/ATen/native/cudnn/RNN.cpp, get_algo.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..units import MIB
from .reductions import THREADS_PER_SM

STANDARD, PERSIST, SMALL = "standard", "persist static", "persist static, small hidden size"
# By cell, for one layer and one step: gates that are computed, and what is kept of it in multiples of the hidden state.
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True)
class Layer:
    """A recurrent layer and its batch: `inputs` and `hidden` are widths, `itemsize` the bytes of a number.

    `float16` is whether it is that, and not bfloat16, where a number has two bytes. `packed` is whether the sequences
    are a PackedSequence, which cuDNN takes as they are; others it packs itself. `dropout` is whether any is at work.
    `length` is the longest sequence's; `sizes` is how many sequences are left at each step, where they are packed.
    """

    cell: str
    length: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    directions: int = 1
    itemsize: int = 4
    float16: bool = False
    packed: bool = False
    projected: int = 0
    dropout: bool = False
    sizes: tuple[int, ...] = ()

    @property
    def steps(self) -> int | Fraction:
        """Steps of all sequences, as a number of steps of the full batch."""
        return self.first(self.length)

    def first(self, steps: int) -> int | Fraction:
        """Return the first `steps` steps, or all if there are fewer, as a number of steps of the full batch."""
        return Fraction(sum(self.sizes[:steps]), self.batch) if self.sizes else min(steps, self.length)

    @property
    def row(self) -> int:
        """Bytes of a state: `hidden` numbers for each sequence."""
        return self.batch * self.hidden * self.itemsize

    @property
    def outputs(self) -> int:
        """The width of a step's result in one direction."""
        return self.projected or self.hidden


def algorithm(layer: Layer, capability: tuple[int, int], sms: int, *, backward: bool = False) -> str:
    """Return the algorithm that PyTorch chooses by its heuristics."""
    if layer.projected or layer.packed or layer.itemsize == 8:
        return STANDARD
    lstm, gru = layer.cell == "lstm", layer.cell == "gru"
    least = (128 if lstm or gru else 256) if backward else (192 if lstm or gru else 384)
    if layer.hidden <= least:
        return SMALL
    return STANDARD if gru or not _persists(layer, capability, sms) else PERSIST


def _persists(layer: Layer, capability: tuple[int, int], sms: int) -> bool:
    one = layer.layers == layer.directions == 1
    if not one or not layer.float16 or layer.hidden > 1024 or layer.hidden % 128 or layer.inputs % 128:
        return False
    if capability[0] < 8 or capability[1] == 6 or sms < 98 or layer.batch % 8 or layer.batch > 128:
        return False
    return layer.cell == "lstm" or layer.batch < 96 or layer.hidden < 896


def reserve_bytes(layer: Layer) -> int:
    """Return the bytes that forward saves for backward: every step's gates and states, and the layers' outputs."""
    step = (layer.layers * _KEPT[layer.cell] + layer.layers - 1) * layer.row
    if layer.projected:
        step += layer.layers * (layer.row + layer.batch * layer.projected * layer.itemsize)
    mask = -(-layer.length * layer.batch * layer.hidden * layer.directions // 256) * 32  # a bit for each number
    masks = mask * (layer.layers - 1) if layer.dropout else 0
    return 256 + layer.directions * (int(layer.steps * step) + masks)


def dropout_state_bytes(capability: tuple[int, int], sms: int) -> int:
    """Return the bytes of a random generator for every resident thread: 6,488,064 on an H100, measured."""
    return 24 * THREADS_PER_SM[capability] * sms


def workspace_bytes(
    layer: Layer, algorithm: str, capability: tuple[int, int], *, training: bool, more_where_small: bool = False
) -> int:
    """Return the bytes of a call's workspace. In training, forward takes backward's size where that is larger.

    With a projection only forward's need is exact. `more_where_small`: as cuDNN up to 9.24 (PyTorch's up to 2.14).
    """
    forward, backward = _needs(layer, algorithm, capability)
    if algorithm == SMALL and more_where_small:  # on top, what persistent kernels have that do not say "small"
        steps = layer.steps * layer.row
        forward += 4 * _GATES[layer.cell] * steps
        backward += {"lstm": 12, "gru": 14}.get(layer.cell, 9) * steps
    needs = [forward, backward] if training else [forward]
    lengths = 0
    if not layer.packed:  # input, output and states as cuDNN packs them, in backward their gradients too
        width = layer.inputs + layer.directions * layer.outputs
        packed = layer.length * layer.batch * width * layer.itemsize + 2 * _states(layer) * layer.directions
        needs = [need + (times + 1) * packed for times, need in enumerate(needs)]
        lengths = -(-8 * layer.batch // 32) * 32
    # cuBLAS's, for each layer and direction. On Ampere and Ada layers one above the other have none.
    alone = layer.layers == 1 or layer.directions == 2
    products = layer.layers * layer.directions if alone or capability[0] != 8 else 0
    return 256 + lengths + 8 * MIB * products + _weights(layer) + int(max(needs))


def _weights(layer: Layer) -> int:
    """Return the bytes of the weight matrices."""
    above = layer.outputs * layer.directions
    widths = layer.inputs + (layer.layers - 1) * above + layer.layers * layer.outputs
    numbers = _GATES[layer.cell] * layer.hidden * widths + layer.layers * layer.projected * layer.hidden
    return layer.directions * numbers * layer.itemsize


def _states(layer: Layer) -> int:
    """Return the bytes of h, and of an LSTM's c, of all layers."""
    one = layer.batch * layer.outputs * layer.itemsize
    return layer.layers * (one + layer.row if layer.cell == "lstm" else one)


def _wide(layer: Layer) -> int | Fraction:
    return layer.steps * layer.batch * max(layer.inputs, layer.hidden) * layer.itemsize


def _needs(layer: Layer, algorithm: str, capability: tuple[int, int]) -> tuple[int | Fraction, int | Fraction]:
    """Return the needs of forward and backward, without weights and packed tensors.

    On Blackwell persistent ones need what standard ones do.
    """
    if layer.directions == 2:
        return _both_ways(layer, small=algorithm == SMALL)
    if algorithm == SMALL:
        return _small(layer)
    if algorithm == PERSIST and capability < (10, 0):
        return _persistent(layer)
    return _standard(layer, capability)


def _both_ways(layer: Layer, *, small: bool) -> tuple[int | Fraction, int | Fraction]:
    ends = {"lstm": 10, "gru": 6} if small else {"lstm": 16, "gru": 10}
    each = 2 * _GATES[layer.cell] + 4 + 2 * bool(layer.projected)
    forward = each * layer.steps + ends.get(layer.cell, 6) * layer.layers
    backward = (2 if layer.layers == 1 else 4) * layer.steps + (10 if layer.cell == "lstm" else 6) * layer.layers
    return forward * layer.row, 4 * _wide(layer) + backward * layer.row


def _standard(layer: Layer, capability: tuple[int, int]) -> tuple[int | Fraction, int | Fraction]:
    steps = _GATES[layer.cell] * layer.first(256) + layer.steps * (bool(layer.projected) + layer.dropout)
    forward = steps + {"lstm": 6, "gru": 3}.get(layer.cell, 1) * layer.layers
    steps = layer.steps if layer.layers == 1 else layer.first(_steps_in_waves(layer, capability))
    backward = steps + (3 if layer.cell == "lstm" else 1) * layer.layers
    return forward * layer.row, _wide(layer) + backward * layer.row


def _steps_in_waves(layer: Layer, capability: tuple[int, int]) -> int:
    """Return the number of steps on which stacked layers work at the same time: fewer for larger batches."""
    waves = layer.layers + 1
    if layer.batch < 16:
        return (32 if layer.batch == 1 else 16) * waves
    if layer.batch < 24 or (layer.length >= 128 and capability >= (8, 0)):
        return 8 * waves
    return 4 * (layer.layers + 2) if layer.batch <= 64 else 8 + 2 * layer.layers


def _small(layer: Layer) -> tuple[int | Fraction, int | Fraction]:
    forward = (_GATES[layer.cell] + layer.dropout) * layer.steps * layer.row
    backward = _wide(layer) + (1 if layer.layers == 1 else 2) * layer.steps * layer.row
    return forward + _ends(layer), backward + _ends(layer)


def _persistent(layer: Layer) -> tuple[int | Fraction, int | Fraction]:
    steps = layer.steps * layer.row
    forward = (5 * _GATES[layer.cell] + layer.dropout) * steps
    sums = max(8 * steps, 19 * 256 * layer.hidden + layer.row)
    backward = _wide(layer) + {"lstm": 5, "gru": 7}.get(layer.cell, 2) * steps + sums
    return forward + _ends(layer), backward + _ends(layer)


def _ends(layer: Layer) -> int:
    return (4 if layer.cell == "lstm" else 2) * layer.layers * layer.row
