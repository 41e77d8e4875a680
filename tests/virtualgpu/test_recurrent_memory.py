"""Reserve and workspaces of recurrent layers: as cuDNN says, and as an H100 had them."""

import copy
import dataclasses
import json
import random

import pytest
import torch

from gpulab import VirtualGPU
from virtualgpu import release
from virtualgpu.operations import recurrent_memory as memory

from .recorded import HERE, recorder, rows

measure_recurrent = recorder("measure_recurrent")
ROWS = rows("recurrent")
FIELDS = {field.name for field in dataclasses.fields(memory.Layer)}
H100 = (9, 0), 132


def layer_of(row):
    return memory.Layer(**{name: value for name, value in row.items() if name in FIELDS})


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_what_cudnn_asks_for_is_known_to_the_byte(capability):
    rows = [row for row in ROWS if "{}.{}".format(*capability) in row["capability"]]
    assert len(rows) > 450
    off = []
    for row in rows:
        layer = layer_of(row)
        found = (
            memory.reserve_bytes(layer),
            memory.workspace_bytes(layer, row["algorithm"], capability, training=True),
            memory.workspace_bytes(layer, row["algorithm"], capability, training=False),
        )
        if found != (row["reserve"], row["training"], row["inference"]):
            off.append((row, found))
    assert off == []


def test_the_recorded_layers_are_of_every_kind():
    for name in ("cell", "layers", "directions", "itemsize", "packed", "dropout", "algorithm"):
        values = {row[name] for row in ROWS}
        assert len(values) >= 2, name
        for value in values:
            assert sum(row[name] == value for row in ROWS) >= 30, (name, value)


@pytest.mark.parametrize(
    ("changes", "algorithm"),
    [
        ({}, memory.STANDARD),
        ({"itemsize": 2, "float16": True}, memory.PERSIST),
        ({"itemsize": 2}, memory.STANDARD),  # bfloat16
        ({"itemsize": 2, "float16": True, "batch": 12}, memory.STANDARD),
        ({"itemsize": 2, "float16": True, "layers": 2}, memory.STANDARD),
        ({"itemsize": 2, "float16": True, "cell": "gru"}, memory.STANDARD),
        ({"itemsize": 2, "float16": True, "cell": "rnn_tanh"}, memory.PERSIST),
        ({"itemsize": 2, "float16": True, "cell": "rnn_tanh", "batch": 96, "hidden": 896}, memory.STANDARD),
        ({"hidden": 192}, memory.SMALL),
        ({"hidden": 192, "packed": True}, memory.STANDARD),
        ({"hidden": 192, "projected": 64}, memory.STANDARD),
        ({"hidden": 192, "itemsize": 8}, memory.STANDARD),
    ],
)
def test_pytorch_asks_for_the_algorithm_that_its_source_says(changes, algorithm):
    layer = dataclasses.replace(memory.Layer("lstm", 128, 64, 256, 512), **changes)
    assert memory.algorithm(layer, *H100) == algorithm
    if algorithm == memory.PERSIST:  # not on GPUs of few multiprocessors, nor on those of 8.6
        assert memory.algorithm(layer, (8, 0), 54) == memory.algorithm(layer, (8, 6), 128) == memory.STANDARD
    if algorithm == memory.SMALL:  # backward begins to lose at smaller ones
        assert memory.algorithm(layer, *H100, backward=True) == memory.STANDARD


def test_random_layers_have_sizes_that_grow_with_what_they_hold():
    rng = random.Random(0)
    for _ in range(300):
        layer = layer_of(rng.choice(ROWS))
        for field in ("length", "batch", "inputs", "layers"):
            more = dataclasses.replace(layer, **{field: 2 * getattr(layer, field)})
            assert memory.reserve_bytes(more) >= memory.reserve_bytes(layer)
        training, inference = (
            memory.workspace_bytes(layer, memory.STANDARD, (9, 0), training=way) for way in (True, False)
        )
        assert training >= inference > 0


def bytes_of(call):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    return torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before, kept


@pytest.mark.parametrize(
    ("dtype", "autocast", "change", "peak"),
    [
        (torch.float32, None, 25199104, 71549952),
        (torch.float32, torch.float16, 18899456, 79832064),
        (torch.float32, torch.bfloat16, 18899456, 79832064),
        (torch.float16, None, 12599808, 73499648),
        (torch.bfloat16, None, 16802304, 44172288),
    ],
)
def test_an_lstm_takes_what_it_took_on_an_h100(dtype, autocast, change, peak):
    """lstm in virtualgpu/recordings/NVIDIA-H100-80GB-HBM3.json: in bfloat16 its weights lie apart."""
    with VirtualGPU("H100", compute=False) as gpu:
        gpu.keeps_workspaces = True
        lstm = torch.nn.LSTM(512, 512, batch_first=True).to("cuda", dtype)
        if dtype is torch.float16:
            lstm.flatten_parameters()
        x = torch.randn(8, 256, 512, device="cuda", dtype=dtype, requires_grad=True)

        def call():
            with torch.autocast("cuda", autocast, enabled=autocast is not None):
                return lstm(x)[0]

        call().sum().backward()
        lstm.zero_grad()
        x.grad = None
        found = bytes_of(call)
        assert found[:2] == (change, peak)
        assert found[2].dtype is (torch.float16 if autocast else dtype)


def test_an_input_whose_time_comes_first_is_not_turned():
    with VirtualGPU("H100", compute=False):
        lstm, turned = (torch.nn.LSTM(512, 512, batch_first=first).to("cuda") for first in (False, True))
        x = torch.randn(256, 8, 512, device="cuda")
        peaks = []
        for layer, given in ((lstm, x), (turned, x.transpose(0, 1).contiguous())):
            with torch.no_grad():
                peaks.append(bytes_of(lambda layer=layer, given=given: layer(given)[0])[1])
        assert peaks[1] - peaks[0] == x.nbytes


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("made", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_under_autocast_are_computed_in_float16_whatever_its_dtype(made, packed):
    def data(out):
        return out[0].data if packed else out[0]

    with VirtualGPU("T4"):
        torch.manual_seed(0)
        layer = made(8, 16, 2).to("cuda")
        x = torch.randn(5, 3, 8, device="cuda", requires_grad=True)
        given = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2]) if packed else x
        whole = data(layer(given))
        with torch.autocast("cuda", torch.bfloat16):
            out = data(layer(given))
        assert out.dtype is torch.float16
        assert (out - whole).abs().max() < 0.01
        out.float().square().sum().backward()
        assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}
        assert all(p.grad.abs().max() > 0 for p in layer.parameters())
        assert x.grad.dtype is torch.float32


def test_the_first_dropout_between_layers_takes_a_generator_for_every_thread_and_keeps_it():
    with VirtualGPU("H100", compute=False):
        lstm = torch.nn.LSTM(64, 64, 2, dropout=0.5).to("cuda")
        x = torch.randn(8, 4, 64, device="cuda")
        plain = torch.nn.LSTM(64, 64, 2).to("cuda")
        with torch.no_grad():
            assert bytes_of(lambda: plain(x) and None)[0] == 0
            lstm.eval()
            assert bytes_of(lambda: lstm(x) and None)[0] == 0
            lstm.train()
            assert bytes_of(lambda: lstm(x) and None)[0] == 6_488_064  # as an H100 kept after its first
            assert bytes_of(lambda: lstm(x) and None)[0] == 0


MEASURED = json.loads((HERE / "recurrent_h200.json").read_text())
# Rows in which a block of the cache was chosen that another process's history left: kept bytes differ by its rest.
OTHER_BLOCKS = 8


def test_layers_take_what_they_took_on_an_h200():
    """Packed or not, with projections, both ways: bytes kept and at the peak, forward and backward."""
    gpu = VirtualGPU("H200", compute=False)
    gpu.keeps_workspaces = True
    gpu.release = release.parse_release(MEASURED["torch"])
    off = []
    with gpu:
        keep = measure_recurrent.warm_up()
        for layer, row in zip(measure_recurrent.layers(), MEASURED["rows"], strict=True):
            found = measure_recurrent.measured(*layer)
            assert {k: v for k, v in found.items() if k not in ("forward", "backward")} == {
                k: v for k, v in row.items() if k not in ("forward", "backward")
            }
            if found != row:
                off.append((row, found))
        del keep
    assert len(off) <= OTHER_BLOCKS, off
    for row, found in off:
        for way in ("forward", "backward"):
            at_work = [one[way][1] - one[way][0] for one in (row, found)]  # the peak without what is kept
            assert abs(row[way][0] - found[way][0]) < 1 << 20, (row, found)
            assert abs(at_work[0] - at_work[1]) < 1 << 20, (row, found)


def test_up_to_torch_2_14_small_hidden_sizes_want_more():
    layer = memory.Layer("lstm", 20, 8, 64, 128)
    more, less = (
        memory.workspace_bytes(layer, memory.SMALL, (9, 0), training=True, more_where_small=older)
        for older in (True, False)
    )
    assert more == 10_576_192  # which an H200 rounded up to 10,576,384
    assert less < more
    standard = [
        memory.workspace_bytes(layer, memory.STANDARD, (9, 0), training=True, more_where_small=older)
        for older in (True, False)
    ]
    assert standard[0] == standard[1]


@pytest.mark.parametrize("made", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_packed_sequences_have_the_values_and_gradients_of_the_cpu(made):
    torch.manual_seed(0)
    layer = made(8, 16, 2, bidirectional=True)
    x = torch.randn(5, 3, 8)
    answers = []
    for device in ("cpu", "cuda"):
        with VirtualGPU("T4"):
            there = copy.deepcopy(layer).to(device)
            given = x.detach().clone().to(device).requires_grad_()
            packed = torch.nn.utils.rnn.pack_padded_sequence(given, [2, 5, 3], enforce_sorted=False)
            out, last = there(packed)
            padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(out)
            padded.square().sum().backward()
            h, *_ = last if isinstance(last, tuple) else (last,)
            answers.append([t.detach().cpu() for t in (padded, lengths, h, given.grad, there.weight_hh_l0.grad)])
    for here, there in zip(*answers, strict=True):
        torch.testing.assert_close(there, here)


def test_the_dropout_of_packed_sequences_is_the_same_in_backward():
    with VirtualGPU("T4"):
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(4, 4, 2, dropout=0.5).to("cuda").double()
        x = torch.randn(6, 2, 4, device="cuda", dtype=torch.float64, requires_grad=True)
        state = torch.cuda.get_rng_state()

        def total(given):
            torch.cuda.set_rng_state(state)
            return lstm(torch.nn.utils.rnn.pack_padded_sequence(given, [6, 4]))[0].data.sum()

        total(x).backward()
        step = torch.zeros_like(x)
        step[1, 0, 2] = 1e-6
        slope = (total(x + step) - total(x - step)).item() / 2e-6
        assert slope == pytest.approx(x.grad[1, 0, 2].item(), rel=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_has_no_backward_of_evaluation(packed):
    """Of the GPU alone: on the CPU, and without cuDNN, there is one."""
    with VirtualGPU("T4"):
        lstm = torch.nn.LSTM(4, 4).eval()
        x = torch.randn(3, 2, 4)

        def backward(layer, given):
            given = torch.nn.utils.rnn.pack_padded_sequence(given, [3, 1]) if packed else given
            out = layer(given)[0]
            (out.data if packed else out).sum().backward()

        backward(lstm, x)
        lstm.cuda()
        with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
            backward(lstm, x.cuda())
        with torch.backends.cudnn.flags(enabled=False):
            backward(lstm, x.cuda())
