"""PyTorch's attention layers with every form of mask: what they allocate, with values and without, and their values.

torch_cuda/layers.json holds what record_layers.py saw of PyTorch's own CUDA code in evaluation, where a layer is one
operation and padding is taken away.
"""

import copy
import warnings
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpulab import VirtualGPU
from virtualgpu.operations import known_values
from virtualgpu.scope.refusals import NotMirrored

from .recorded import GPUS, of_this_torch, recorder, rows

causal = nn.Transformer.generate_square_subsequent_mask
B, T, D, H = 3, 8, 16, 2
LENGTHS = torch.tensor([8, 5, 2])


# -- what PyTorch's CUDA code allocates ------------------------------------------------------------------------------


def differences(capability, mode, *, compute):
    """name -> (theirs, mine) where results, change, peak or any allocation differ; their order may."""
    record_layers, found = recorder("record_layers"), {}
    theirs = {r["case"]: r for r in rows("layers") if capability in r["capability"] and mode in r["mode"]}
    table = record_layers.cases(record_layers.MODES[mode])
    assert set(table) == set(theirs)
    with VirtualGPU(GPUS[capability], compute=compute), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in table.items():
            if compute and "long" in name:
                continue
            mine = record_layers.record(make, warm_up=False)
            missing = Counter(theirs[name]["events"])
            missing.subtract(mine["events"])
            left = {size for size, count in missing.items() if count}
            if mode == "bf16":  # what CUB takes to select is not mirrored: 4 bytes, then about a byte for each block
                left = {size for size in left if abs(size) > 1 << 15}
            if left or any(mine[key] != theirs[name][key] for key in ("out", "forward")):
                found[name] = theirs[name], mine
    return found


@of_this_torch
@pytest.mark.parametrize("capability", GPUS)
@pytest.mark.parametrize("mode", ["fp32", "fp16", "bf16"])
def test_in_evaluation_they_allocate_what_they_do_on_cuda(capability, mode):
    if (capability, mode) != ("7.5", "bf16"):
        assert differences(capability, mode, compute=False) == {}


@of_this_torch
@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_they_allocate_the_same_where_values_are_computed(mode):
    assert differences("8.0", mode, compute=True) == {}


# -- with values and without -----------------------------------------------------------------------------------------


MASKS = {
    "none": lambda: None,
    "float, from the host": lambda: causal(T).cuda(),
    "float": lambda: causal(T, device="cuda"),
    "bool": lambda: torch.ones(T, T, dtype=torch.bool, device="cuda").triu(1),
    "not causal": lambda: torch.zeros(T, T, device="cuda"),
    "of each head": lambda: torch.zeros(B * H, T, T, dtype=torch.bool, device="cuda"),
}
PADDING = {
    "none": lambda: None,
    "bool": lambda: (torch.arange(T)[None] >= LENGTHS[:, None]).cuda(),
    "made on the GPU": lambda: torch.arange(T, device="cuda")[None] >= LENGTHS.cuda()[:, None],
    "float": lambda: torch.zeros(B, T).masked_fill(torch.arange(T)[None] >= LENGTHS[:, None], -torch.inf).cuda(),
    "at the start": lambda: (torch.arange(T)[None] < LENGTHS[:, None] - 1).cuda(),
    "by values": lambda: torch.randint(0, 5, (B, T), device="cuda") == 0,
}


def encoder(**options):
    torch.manual_seed(0)
    nested = options.pop("enable_nested_tensor", True)
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, **({"batch_first": True} | options))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)


def decoder(**options):
    torch.manual_seed(0)
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, 2 * D, **({"batch_first": True} | options)), 2)


def called(net, x, mask, padding, causal):
    if isinstance(net, nn.TransformerEncoder):
        return net(x, mask=mask, src_key_padding_mask=padding, is_causal=causal)
    return net(x, x, tgt_mask=mask, tgt_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=causal)


def peaks(make, train, cases, *, compute):
    """(mask, padding, hint) -> peak of a step, and what is left after it; kernels."""
    found = {}
    with VirtualGPU("A100-40", compute=compute) as gpu, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = make().cuda().train(train)
        x = torch.randn((B, T, D) if net.layers[0].self_attn.batch_first else (T, B, D), device="cuda")
        for case in cases:
            mask, padding = MASKS[case[0]](), PADDING[case[1]]()
            torch.cuda.reset_peak_memory_stats()
            before = gpu.clock.kernels()
            with torch.set_grad_enabled(train):
                out = called(net, x, mask, padding, case[2])
            if train:
                out.sum().backward()
            del out, mask, padding
            found[case] = (
                torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), gpu.clock.kernels() - before
            )  # fmt: skip
            net.zero_grad()
    return found


EVERY = [(mask, padding, None) for mask in MASKS for padding in PADDING]
HINTS = [("float", "none", True), ("bool", "bool", True), ("not causal", "none", False), ("of each head", "none", True)]
SOME = [("none", "none", None), ("bool", "none", None), ("float", "bool", None), ("none", "by values", None), *HINTS]
PLAIN = [("none", padding, None) for padding in ("none", "bool", "by values")]
NETS = {
    "encoder": (encoder, EVERY + HINTS),
    "encoder, sequence first": (lambda: encoder(batch_first=False), SOME[:4]),
    "encoder, norm first": (lambda: encoder(norm_first=True), PLAIN),
    "encoder, gelu": (lambda: encoder(activation="gelu"), PLAIN),
    "encoder, never nested": (lambda: encoder(enable_nested_tensor=False), PLAIN),
    "decoder": (decoder, SOME),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_memory_is_the_same_with_values_and_without(net, train):
    make, cases = NETS[net]
    with_values, shapes = (peaks(make, train, cases, compute=compute) for compute in (True, False))
    assert shapes == with_values


# -- values ----------------------------------------------------------------------------------------------------------


OPTIONS = {"plain": {}, "norm first": {"norm_first": True}, "gelu": {"activation": "gelu"}, "hooks": {}}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("dtype", "gpu"), [(torch.float32, "A100-40"), (torch.bfloat16, "A100-40"), (torch.float16, "T4")]
)
def test_values_are_those_of_the_cpu(options, dtype, gpu):
    net = encoder(**OPTIONS[options]).eval().to(dtype)
    if options == "hooks":
        net.layers[0].register_forward_hook(lambda *_: None)
    x = torch.randn(B, T, D).to(dtype)
    ends = torch.arange(T)[None] >= LENGTHS[:, None]
    given = [
        {}, {"mask": causal(T, dtype=dtype)}, {"src_key_padding_mask": ends}, {"src_key_padding_mask": ends.flip(1)},
        {"mask": causal(T, dtype=dtype).isinf(), "src_key_padding_mask": ends},
    ]  # fmt: skip
    tolerance = 1e-5 if dtype is torch.float32 else 0.08
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = [net(x, **named) for named in given]
        with VirtualGPU(gpu):
            there, x_there = copy.deepcopy(net).cuda(), x.cuda()
            for named, want in zip(given, wanted, strict=True):
                got = there(x_there, **{key: value.cuda() for key, value in named.items()})
                assert got.is_cuda
                torch.testing.assert_close(got.cpu(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("weights", [{"need_weights": False}, {}, {"average_attn_weights": False}])
@pytest.mark.parametrize("heads", [2, 4, 6])
def test_attention_gives_the_values_and_weights_of_the_cpu(weights, heads):
    torch.manual_seed(0)
    net, x = nn.MultiheadAttention(24, heads, batch_first=True).eval(), torch.randn(B, T, 24)
    ends = torch.arange(T)[None] >= LENGTHS[:, None]
    with torch.no_grad():
        for named in ({}, {"attn_mask": causal(T)}, {"key_padding_mask": ends}):
            wanted = net(x, x, x, **named, **weights)
            with VirtualGPU("A100-40"):
                there, x_there = copy.deepcopy(net).cuda(), x.cuda()
                got = there(x_there, x_there, x_there, **{key: value.cuda() for key, value in named.items()}, **weights)
                torch.testing.assert_close([t if t is None else t.cpu() for t in got], list(wanted))


def test_what_was_padding_is_zero_afterwards():
    with VirtualGPU("A100-40"), torch.no_grad():
        out = encoder().eval().cuda()(torch.randn(B, T, D, device="cuda"), src_key_padding_mask=PADDING["bool"]())
        assert (out[PADDING["bool"]()] == 0).all()
        with pytest.raises(RuntimeError, match="at least one constituent tensor"):
            encoder().eval().cuda()(
                torch.randn(B, T, D, device="cuda"),
                src_key_padding_mask=torch.ones(B, T, dtype=torch.bool, device="cuda"),
            )


# -- masks that nobody knows -----------------------------------------------------------------------------------------


def test_without_values_a_mask_that_depends_on_them_is_an_ordinary_one():
    known = pytest.warns(UserWarning, match="padding mask that depends on values")
    with VirtualGPU("A100-40", compute=False), torch.no_grad(), known:
        encoder().eval().cuda()(torch.randn(B, T, D, device="cuda"), src_key_padding_mask=PADDING["by values"]())


def test_without_values_unknown_lengths_are_the_longest():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True), 1, mask_check=False).eval()
    found = []
    for padding in (PADDING["by values"], lambda: torch.zeros(B, T, dtype=torch.bool, device="cuda")):
        with VirtualGPU("A100-40", compute=False) as gpu, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            there, x, mask = copy.deepcopy(net).cuda(), torch.randn(B, T, D, device="cuda"), padding()
            torch.cuda.reset_peak_memory_stats()
            start = torch.cuda.memory_allocated()
            there(x, src_key_padding_mask=mask)
            found.append(torch.cuda.max_memory_allocated() - start)
            told = [text for text in gpu.warned if "no sequence of the nested tensor" in text]
            assert len(told) == (padding is PADDING["by values"])
    assert found[0] == found[1]


@pytest.mark.parametrize("length", [8, 300, 600])
def test_causal_masks_are_known_without_values(length):
    with VirtualGPU("A100-40", compute=False):
        masks = [
            causal(length, device="cuda"),
            causal(length).cuda(),
            torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1),
            torch.ones(length, length, dtype=torch.bool).triu(1).cuda(),
            torch.zeros(length, length, device="cuda").masked_fill(torch.ones_like(causal(length)).triu(1).cuda() == 1,
                                                                   -torch.inf),
        ]  # fmt: skip
        for mask in masks:
            canonical = F._canonical_mask(mask, "mask", None, "", torch.float32, False)
            assert nn.modules.transformer._detect_is_causal_mask(canonical, None, length)
        assert not nn.modules.transformer._detect_is_causal_mask(masks[0].T, None, length)


def test_weights_data_and_what_is_computed_are_not_followed():
    with VirtualGPU("A100-40", compute=False):
        mask = torch.zeros(4, 4, device="cuda")
        assert known_values.value(mask) is not None
        x = torch.randn(4, 4, device="cuda")
        written = torch.zeros(4, 4, device="cuda")
        written[1] = x[0]
        leaf = torch.zeros(9, 4, device="cuda").requires_grad_()
        leaf[torch.tensor([1, 2]).cuda()].sum().backward()
        unknown = {
            "drawn": x,
            "of the host": torch.randn(4, 4).cuda(),
            "added": mask + x,
            "weight": nn.Linear(4, 4).cuda().weight,
            "masked": x.masked_fill(mask == 0, 0.0),
            "written": written,
            "gradient": leaf.grad,
            "state": torch.zeros_like(x),
            "a row": torch.zeros(4, device="cuda"),
            "large": torch.zeros(300, 400, device="cuda"),
        }
        assert [name for name, tensor in unknown.items() if known_values.value(tensor) is not None] == []


# -- nested tensors --------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def nested(request):
    """What a layer of an encoder gives where padding was taken away."""
    with VirtualGPU("A100-40", compute=request.param) as gpu, torch.no_grad():
        net, seen = encoder().eval().cuda(), []
        net.layers[0].register_forward_hook(lambda module, given, out: seen.append(out))
        net(torch.randn(B, T, D, device="cuda"), src_key_padding_mask=PADDING["bool"]())
        (found,) = seen
        yield gpu, found


def test_a_nested_tensor_is_on_the_gpu_and_holds_no_padding(nested):
    gpu, tensor = nested
    assert tensor.is_nested
    assert tensor.is_cuda
    assert tensor.device == torch.device("cuda", 0)
    assert tensor.numel() == int(LENGTHS.sum()) * D
    assert "cuda:0" in repr(tensor) or gpu.compute
    assert [tuple(one.shape) for one in tensor.unbind()] == [(length, D) for length in LENGTHS.tolist()]
    before = torch.cuda.memory_allocated()
    copied = tensor.clone()
    assert torch.cuda.memory_allocated() - before == -(-tensor.numel() * 4 // 512) * 512
    assert copied.to_padded_tensor(0.0).shape == (B, T, D)


def test_a_nested_tensor_stays_where_it_is(nested):
    _, tensor = nested
    for move in (tensor.cpu, lambda: tensor.to("cpu")):
        with pytest.raises(NotMirrored, match="nested"):
            move()
    assert tensor.cuda() is tensor


def test_operations_that_are_not_mirrored_say_so(nested):
    gpu, tensor = nested
    if gpu.compute:
        with pytest.warns(UserWarning, match="its result is counted"):
            assert (tensor * 2).is_cuda
    else:
        with pytest.raises(NotMirrored, match="nested tensor is not mirrored in shapes-only mode"):
            tensor * 2
