"""The operators that record_ops.py runs: a name, its inputs and parameters in a given dtype, and the call.

Nothing here measures. Names shared with the recorder for real GPUs (linear, conv3x3, sdpa, ...) have the same shapes.
"""

# ruff: noqa: E501, E731
# fmt: off
# (a table: one operator, one line)

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda:0"
B, T, D, H = 8, 256, 512, 8


class Case:
    """`call(*inputs)`; `module` holds the parameters and buffers, if it has any."""

    def __init__(self, inputs, call):
        self.inputs, self.call = inputs, call
        self.module = call if isinstance(call, nn.Module) else None


def operators(dtype: torch.dtype):
    """name -> function that makes the Case, parameters and floating-point inputs in `dtype`."""

    def rand(*shape, grad=True):
        return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_(grad)

    def ints(high, *shape):
        return torch.randint(0, high, shape, device=DEVICE)

    def x3():
        return (rand(B, T, D),)

    def image(c=64, side=56):
        return lambda: (rand(B, c, side, side),)

    table = {}

    def function(name, inputs, call):
        table[name] = lambda: Case(inputs(), call)

    def module(name, inputs, make, call=None):
        def case():
            made = make().to(DEVICE, dtype)
            result = Case(inputs(), made if call is None else lambda *args: call(made, *args))
            result.module = made
            return result

        table[name] = case

    _products(function, module, rand, x3)
    _convolutions(module, rand, image)
    _norms(module, function, rand, x3, image)
    _elementwise(module, function, rand, x3, image)
    _attention(module, function, rand, x3)
    _losses(function, rand, ints, x3)
    _reductions(function, rand, ints, x3)
    _indexing(function, module, rand, ints, x3, image)
    _recurrent(module, x3)
    return table


def _products(function, module, rand, x3):
    def square():
        return rand(1024, 1024), rand(1024, 1024)

    module("linear", x3, lambda: nn.Linear(D, 4 * D))
    module("linear_no_bias", x3, lambda: nn.Linear(D, 4 * D, bias=False))
    module("linear_2d", lambda: (rand(B * T, D),), lambda: nn.Linear(D, 4 * D))
    module("linear_one_output", x3, lambda: nn.Linear(D, 1))
    module("linear_odd_sized", lambda: (rand(5, 7),), lambda: nn.Linear(7, 3))
    module("bilinear", lambda: (rand(64, 32), rand(64, 48)), lambda: nn.Bilinear(32, 48, 16))
    function("matmul", x3, lambda x: x @ x.transpose(-1, -2))
    function("matmul_2d", square, torch.matmul)
    function("mm", square, torch.mm)
    function("bmm", lambda: (rand(B, T, D), rand(B, D, T)), torch.bmm)
    function("baddbmm", lambda: (rand(B, T, T), rand(B, T, D), rand(B, D, T)), torch.baddbmm)
    function("addmm", lambda: (rand(1024, 1024), *square()), torch.addmm)
    function("addmm_bias", lambda: (rand(1024), *square()), torch.addmm)
    function("mv", lambda: (rand(1024, 1024), rand(1024)), torch.mv)
    function("dot", lambda: (rand(1024), rand(1024)), torch.dot)
    function("outer", lambda: (rand(1024), rand(1024)), torch.outer)
    function("einsum_bmm", lambda: (rand(B, T, D), rand(B, D, T)), lambda a, b: torch.einsum("bij,bjk->bik", a, b))
    function("einsum_heads", lambda: (rand(B, T, H, 64), rand(B, T, H, 64)), lambda q, k: torch.einsum("bthd,bshd->bhts", q, k))
    function("cdist", lambda: (rand(64, 32), rand(48, 32)), torch.cdist)


def _convolutions(module, rand, image):
    sound, solid = (lambda: (rand(B, 64, 256),)), (lambda: (rand(2, 16, 8, 28, 28),))
    module("conv3x3", image(), lambda: nn.Conv2d(64, 64, 3, padding=1))
    module("conv3x3_no_bias", image(), lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False))
    module("conv1x1", image(), lambda: nn.Conv2d(64, 256, 1))
    module("conv_stride2", image(), lambda: nn.Conv2d(64, 128, 3, stride=2, padding=1))
    module("conv_depthwise", image(), lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64))
    module("conv_grouped", image(), lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4))
    module("conv_dilated", image(), lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2))
    module("conv_stem", lambda: (rand(B, 3, 224, 224, grad=False),), lambda: nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False))
    module("conv_patches", lambda: (rand(B, 3, 224, 224, grad=False),), lambda: nn.Conv2d(3, 768, 16, stride=16))
    module("conv_channels_last", lambda: (rand(B, 64, 56, 56).detach().to(memory_format=torch.channels_last).requires_grad_(),),
           lambda: nn.Conv2d(64, 64, 3, padding=1).to(memory_format=torch.channels_last))
    module("conv1d", sound, lambda: nn.Conv1d(64, 64, 3, padding=1))
    module("conv3d", solid, lambda: nn.Conv3d(16, 32, 3, padding=1))
    module("conv_transpose1d", sound, lambda: nn.ConvTranspose1d(64, 32, 4, stride=2, padding=1))
    module("conv_transpose2d", image(), lambda: nn.ConvTranspose2d(64, 32, 2, stride=2))
    module("conv_transpose3d", solid, lambda: nn.ConvTranspose3d(16, 8, 2, stride=2))


def _norms(module, function, rand, x3, image):
    module("batch_norm", image(), lambda: nn.BatchNorm2d(64))
    module("batch_norm_eval", image(), lambda: nn.BatchNorm2d(64).eval())
    module("batch_norm_no_affine", image(), lambda: nn.BatchNorm2d(64, affine=False))
    module("batch_norm_no_stats", image(), lambda: nn.BatchNorm2d(64, track_running_stats=False))
    module("batch_norm_channels_last", lambda: (rand(B, 64, 56, 56).detach().to(memory_format=torch.channels_last).requires_grad_(),), lambda: nn.BatchNorm2d(64))
    module("batch_norm1d", lambda: (rand(B * T, D),), lambda: nn.BatchNorm1d(D))
    module("batch_norm1d_3d", lambda: (rand(B, D, T),), lambda: nn.BatchNorm1d(D))
    module("batch_norm3d", lambda: (rand(2, 16, 8, 28, 28),), lambda: nn.BatchNorm3d(16))
    module("instance_norm", image(), lambda: nn.InstanceNorm2d(64))
    module("instance_norm_affine", image(), lambda: nn.InstanceNorm2d(64, affine=True))
    module("layer_norm", x3, lambda: nn.LayerNorm(D))
    module("layer_norm_no_affine", x3, lambda: nn.LayerNorm(D, elementwise_affine=False))
    module("group_norm", image(), lambda: nn.GroupNorm(8, 64))
    module("rms_norm", x3, lambda: nn.RMSNorm(D))
    module("local_response_norm", image(), lambda: nn.LocalResponseNorm(5))
    function("normalize", x3, lambda x: F.normalize(x, dim=-1))


def _elementwise(module, function, rand, x3, image):
    calls = {
        "relu": F.relu, "relu_inplace": lambda x: F.relu_(x * 2), "relu6": F.relu6, "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "silu_inplace": lambda x: F.silu(x * 2, inplace=True),
        "mish": F.mish, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "celu": F.celu, "hardswish": F.hardswish,
        "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh, "softplus": F.softplus, "softsign": F.softsign,
        "logsigmoid": F.logsigmoid, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "softmax": lambda x: F.softmax(x, -1),
        "softmax_float32": lambda x: F.softmax(x, -1, dtype=torch.float32), "softmax_dim1": lambda x: F.softmax(x, 1),
        "log_softmax": lambda x: F.log_softmax(x, -1), "dropout": lambda x: F.dropout(x, 0.1, True),
        "dropout_eval": lambda x: F.dropout(x, 0.1, False), "dropout_zero": lambda x: F.dropout(x, 0.0, True),
        "dropout_one": lambda x: F.dropout(x, 1.0, True),
        "dropout_inplace": lambda x: F.dropout(x * 2, 0.1, True, inplace=True),
        "alpha_dropout": lambda x: F.alpha_dropout(x, 0.1, True), "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.1, True),
        "dropout1d": lambda x: F.dropout1d(x, 0.1, True), "mul_add": lambda x: x * x + x, "add_scalar": lambda x: x + 1.0,
        "mul_scalar": lambda x: x * 2.0, "div_scalar": lambda x: x / 2.0, "rsub": lambda x: 1 - x, "neg": torch.neg, "abs": torch.abs,
        "exp": torch.exp, "log": torch.log, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin,
        "square": torch.square, "reciprocal": torch.reciprocal, "pow2": lambda x: x**2, "pow3": lambda x: x**3,
        "pow_float": lambda x: x**0.5, "erf": torch.erf, "clamp": lambda x: x.clamp(0, 1), "cumsum": lambda x: x.cumsum(-1),
        "cumprod": lambda x: x.cumprod(-1), "logcumsumexp": lambda x: x.logcumsumexp(-1), "glu": F.glu,
        "to_float16": lambda x: x.to(torch.float16), "to_float32": lambda x: x.float(), "contiguous_transposed": lambda x: x.transpose(1, 2).contiguous(),
        "clone": torch.clone, "flatten_transposed": lambda x: x.transpose(1, 2).flatten(1), "tril": lambda x: x.tril(), "flip": lambda x: x.flip(1),
        "roll": lambda x: x.roll(3, 1), "repeat": lambda x: x.repeat(1, 2, 1), "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
        "expand_add": lambda x: x + x[:, :1], "sign": torch.sign, "round": torch.round,
    }
    for name, call in calls.items():
        function(name, x3, call)
    pair = lambda: (rand(B, T, D), rand(B, T, D))
    bias = lambda: (rand(B, T, D), rand(D))
    for name, call in {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
                       "minimum": torch.minimum, "atan2": torch.atan2, "lerp": lambda a, b: torch.lerp(a, b, 0.5)}.items():
        function(name, pair, call)
        if name in ("add", "mul", "div"):
            function(name + "_broadcast", bias, call)
    function("pow_tensor", pair, torch.pow)
    function("add_mixed_float32", lambda: (rand(B, T, D), torch.randn(B, T, D, device=DEVICE, requires_grad=True)), torch.add)
    function("addcmul", lambda: (rand(B, T, D), rand(B, T, D), rand(B, T, D)), lambda a, b, c: torch.addcmul(a, b, c))
    function("add_inplace", pair, lambda a, b: (a * 2).add_(b))
    function("mul_inplace", pair, lambda a, b: (a * 2).mul_(b))
    function("masked_fill", lambda: (rand(B, T, D), torch.zeros(B, T, D, dtype=torch.bool, device=DEVICE)), lambda x, m: x.masked_fill(m, 0.0))
    function("where", lambda: (rand(B, T, D), rand(B, T, D)), lambda a, b: torch.where(a > b, a, b))
    function("where_scalar", x3, lambda x: torch.where(x > 0, x, 0.0))
    module("prelu", image(), nn.PReLU)
    module("prelu_channels", image(), lambda: nn.PReLU(64))
    function("dropout2d", image(), lambda x: F.dropout2d(x, 0.1, True))
    for name, call in {
        "max_pool": lambda x: F.max_pool2d(x, 2), "max_pool_3x3": lambda x: F.max_pool2d(x, 3, 2, 1), "avg_pool": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 7), "adaptive_avg_pool1": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, 7), "lp_pool": lambda x: F.lp_pool2d(x, 2, 2),
        "max_pool_indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
        "interpolate_nearest": lambda x: F.interpolate(x, scale_factor=2), "interpolate_bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "interpolate_bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "interpolate_area": lambda x: F.interpolate(x, size=28, mode="area"), "pad_zero": lambda x: F.pad(x, (1, 1, 1, 1)),
        "pad_reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "pad_replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2), "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3), "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
    }.items():
        function(name, image(), call)
    function("max_pool1d", lambda: (rand(B, 64, 256),), lambda x: F.max_pool1d(x, 2))
    function("avg_pool1d", lambda: (rand(B, 64, 256),), lambda x: F.avg_pool1d(x, 2))
    function("max_pool3d", lambda: (rand(2, 16, 8, 28, 28),), lambda x: F.max_pool3d(x, 2))
    function("grid_sample", lambda: (rand(B, 16, 28, 28), rand(B, 28, 28, 2)), lambda x, g: F.grid_sample(x, g, align_corners=False))
    function("affine_grid", lambda: (rand(B, 2, 3),), lambda t: F.affine_grid(t, [B, 3, 28, 28], align_corners=False))


def _attention(module, function, rand, x3):
    sdpa = F.scaled_dot_product_attention

    def qkv(dim=64, queries=T, keys=T, kv_heads=H, grad=True):
        return lambda: (rand(B, H, queries, dim, grad=grad), rand(B, kv_heads, keys, dim, grad=grad), rand(B, kv_heads, keys, dim, grad=grad))

    def bool_mask(q):
        return torch.zeros(T, T, dtype=torch.bool, device=DEVICE)

    def variants(name, inputs, **options):
        function(name, inputs, lambda q, k, v: sdpa(q, k, v, **options))

    variants("sdpa", qkv())
    variants("sdpa_causal", qkv(), is_causal=True)
    variants("sdpa_dropout", qkv(), dropout_p=0.1)
    variants("sdpa_causal_dropout", qkv(), is_causal=True, dropout_p=0.1)
    variants("sdpa_scale", qkv(), scale=0.5)
    variants("sdpa_no_grad_inputs", qkv(grad=False))
    for dim in (8, 32, 40, 63, 72, 80, 96, 100, 128, 160, 192, 256, 288):
        variants(f"sdpa_head{dim}", qkv(dim))
    variants("sdpa_head128_causal", qkv(128), is_causal=True)
    variants("sdpa_head128_dropout", qkv(128), dropout_p=0.1)
    variants("sdpa_cross", qkv(keys=77))
    variants("sdpa_cross_causal", qkv(keys=128), is_causal=True)
    variants("sdpa_length_200", qkv(queries=200, keys=200))
    variants("sdpa_length_197", qkv(queries=197, keys=197))
    variants("sdpa_one_query", qkv(queries=1), )
    variants("sdpa_gqa", qkv(kv_heads=2), enable_gqa=True)
    variants("sdpa_gqa_causal", qkv(kv_heads=2), enable_gqa=True, is_causal=True)
    function("sdpa_bool_mask", qkv(), lambda q, k, v: sdpa(q, k, v, attn_mask=bool_mask(q)))
    function("sdpa_bool_mask_dropout", qkv(), lambda q, k, v: sdpa(q, k, v, attn_mask=bool_mask(q), dropout_p=0.1))
    function("sdpa_padding_mask", qkv(), lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(B, 1, 1, T, dtype=torch.bool, device=DEVICE)))
    function("sdpa_bool_mask_197", qkv(queries=197, keys=197), lambda q, k, v: sdpa(q, k, v, attn_mask=torch.ones(197, 197, dtype=torch.bool, device=DEVICE)))
    function("sdpa_float_mask", lambda: (*qkv()(), rand(T, T, grad=False)), lambda q, k, v, m: sdpa(q, k, v, attn_mask=m))
    function("sdpa_float_mask_heads", lambda: (*qkv()(), rand(1, H, T, T, grad=False)), lambda q, k, v, m: sdpa(q, k, v, attn_mask=m))
    function("sdpa_float_mask_grad", lambda: (*qkv()(), rand(T, T)), lambda q, k, v, m: sdpa(q, k, v, attn_mask=m))
    function("sdpa_transposed", lambda: tuple(rand(B, T, H, 64) for _ in range(3)), lambda q, k, v: sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)))
    function("sdpa_3d", lambda: tuple(rand(B * H, T, 64) for _ in range(3)), sdpa)
    function("sdpa_packed", lambda: (rand(B, T, 3 * D),), lambda x: sdpa(*(y.view(B, T, H, 64).transpose(1, 2) for y in x.split(D, 2)), is_causal=True))
    for backend in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
        def forced(q, k, v, backend=backend, **options):
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                return sdpa(q, k, v, **options)

        function(f"sdpa_forced_{backend.split('_')[0].lower()}", qkv(), forced)
        function(f"sdpa_forced_{backend.split('_')[0].lower()}_dropout", qkv(), lambda q, k, v, f=forced: f(q, k, v, dropout_p=0.1))
    function("attention_by_hand", qkv(), lambda q, k, v: (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v)

    def heads(p=0.0, **options):
        return lambda: nn.MultiheadAttention(D, H, dropout=p, batch_first=True, **options)

    module("multihead_attention", x3, heads(), lambda m, x: m(x, x, x, need_weights=False)[0])
    module("multihead_attention_weights", x3, heads(), lambda m, x: m(x, x, x)[0])
    module("multihead_attention_weights_per_head", x3, heads(), lambda m, x: m(x, x, x, average_attn_weights=False)[0])
    module("multihead_attention_dropout", x3, heads(0.1), lambda m, x: m(x, x, x, need_weights=False)[0])
    module("multihead_attention_cross", lambda: (rand(B, T, D), rand(B, 77, D)), heads(), lambda m, x, y: m(x, y, y, need_weights=False)[0])
    causal = lambda: torch.nn.Transformer.generate_square_subsequent_mask(T, device=DEVICE)
    module("multihead_attention_causal", x3, heads(), lambda m, x: m(x, x, x, need_weights=False, attn_mask=causal(), is_causal=True)[0])
    module("multihead_attention_padding", x3, heads(), lambda m, x: m(x, x, x, need_weights=False, key_padding_mask=torch.zeros(B, T, dtype=torch.bool, device=DEVICE))[0])
    module("multihead_attention_eval", x3, lambda: heads()().eval(), lambda m, x: m(x, x, x, need_weights=False)[0])
    function("mha_forward_no_weights", lambda: (rand(T, B, D), rand(3 * D, D), rand(3 * D), rand(D, D), rand(D)), lambda x, w, b, ow, ob: F.multi_head_attention_forward(
        x, x, x, D, H, w, b, None, None, False, 0.0, ow, ob, need_weights=False)[0])
    module("encoder_layer", x3, lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True))
    module("encoder_layer_norm_first", x3, lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True, norm_first=True, activation="gelu"))
    module("encoder_layer_no_dropout", x3, lambda: nn.TransformerEncoderLayer(D, H, 4 * D, dropout=0.0, batch_first=True))
    module("encoder_layer_eval", x3, lambda: nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True).eval())
    module("encoder_two_layers", x3, lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 4 * D, batch_first=True), 2))
    module("decoder_layer", lambda: (rand(B, T, D), rand(B, 77, D)), lambda: nn.TransformerDecoderLayer(D, H, 4 * D, batch_first=True))


def _losses(function, rand, ints, x3):
    flat = lambda: (rand(B * T, D), ints(D, B * T))
    pair = lambda: (rand(B, T, D), rand(B, T, D, grad=False))
    function("cross_entropy", lambda: (rand(B, T, D), ints(D, B * T)), lambda x, t: F.cross_entropy(x.flatten(0, 1), t))
    function("cross_entropy_smoothing", flat, lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
    function("cross_entropy_weights", lambda: (*flat(), rand(D, grad=False)), lambda x, t, w: F.cross_entropy(x, t, w))
    function("cross_entropy_ignore", flat, lambda x, t: F.cross_entropy(x, t, ignore_index=0))
    function("cross_entropy_none", flat, lambda x, t: F.cross_entropy(x, t, reduction="none"))
    function("cross_entropy_sum", flat, lambda x, t: F.cross_entropy(x, t, reduction="sum"))
    function("cross_entropy_probabilities", lambda: (rand(B * T, D), rand(B * T, D, grad=False)), F.cross_entropy)
    function("cross_entropy_spatial", lambda: (rand(B, 21, 56, 56), ints(21, B, 56, 56)), F.cross_entropy)
    function("cross_entropy_spatial_smoothing", lambda: (rand(B, 21, 56, 56), ints(21, B, 56, 56)), lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
    function("cross_entropy_vocabulary", lambda: (rand(1024, 50304), ints(50304, 1024)), F.cross_entropy)
    function("nll", flat, F.nll_loss)
    function("mse", x3, lambda x: F.mse_loss(x, torch.zeros_like(x)))
    for name, call in {
        "mse_target": F.mse_loss, "mse_none": lambda x, y: F.mse_loss(x, y, reduction="none"), "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss,
        "huber": F.huber_loss, "bce_with_logits": F.binary_cross_entropy_with_logits, "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y),
        "kl_div": lambda x, y: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"), "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, -1),
        "gaussian_nll": lambda x, y: F.gaussian_nll_loss(x, y, y), "poisson_nll": F.poisson_nll_loss, "soft_margin": F.soft_margin_loss,
    }.items():
        function(name, pair, call)
    function("hinge_embedding", lambda: (rand(B, D), rand(B, D, grad=False)), F.hinge_embedding_loss)
    function("triplet_margin", lambda: (rand(B, D), rand(B, D), rand(B, D)), F.triplet_margin_loss)
    function("multi_margin", lambda: (rand(B, D), ints(D, B)), F.multi_margin_loss)
    lengths = lambda n, size: torch.full((size,), n, dtype=torch.long, device=DEVICE)
    function("ctc", lambda: (rand(T, B, 32), ints(31, B, 20)), lambda x, t: F.ctc_loss(x.log_softmax(-1), t, lengths(T, B), lengths(20, B)))


def _reductions(function, rand, ints, x3):
    for name, call in {
        "sum": torch.sum, "sum_dim": lambda x: x.sum(-1), "sum_rows": lambda x: x.sum((0, 1)), "mean": torch.mean, "mean_dim": lambda x: x.mean(-1),
        "mean_keepdim": lambda x: x.mean(-1, keepdim=True), "norm": torch.norm, "norm_dim": lambda x: x.norm(dim=-1), "vector_norm": torch.linalg.vector_norm,
        "std": torch.std, "std_dim": lambda x: x.std(-1), "var": torch.var, "var_dim": lambda x: x.var(-1), "var_mean": lambda x: torch.var_mean(x, -1),
        "prod": lambda x: x.prod(-1), "logsumexp": lambda x: x.logsumexp(-1), "amax": lambda x: x.amax(-1), "max": torch.max, "min": torch.min,
        "max_dim": lambda x: x.max(-1), "min_dim": lambda x: x.min(-1), "argmax": lambda x: x.argmax(-1), "median": lambda x: x.median(-1),
        "sort": lambda x: x.sort(-1), "sort_dim0": lambda x: x.sort(0), "argsort": lambda x: x.argsort(-1), "topk": lambda x: x.topk(10),
        "topk_half": lambda x: x.topk(256), "kthvalue": lambda x: x.kthvalue(10), "unbind": lambda x: x.unbind(1)[0], "chunk_add": lambda x: x.chunk(2, -1)[0] + x.chunk(2, -1)[1],
        "all_finite": lambda x: torch.isfinite(x).all(), "greater": lambda x: x > 0, "eq": lambda x: x == x, "nonzero": lambda x: (x > 0).nonzero(),
        "multinomial": lambda x: torch.multinomial(x[0].detach().softmax(-1), 4), "bincount": lambda x: torch.bincount(ints(10, 1000)),
        "unique": lambda x: torch.unique(ints(10, 1000)), "one_hot": lambda x: F.one_hot(ints(10, 1000), 10), "histc": lambda x: x.detach().float().histc(10),
        "sort_large": lambda x: x.flatten().sort(), "cumsum_flat": lambda x: x.flatten().cumsum(0), "randperm": lambda x: torch.randperm(100000, device=DEVICE),
    }.items():
        function(name, x3, call)


def _indexing(function, module, rand, ints, x3, image):
    rows = lambda: (rand(1000, D), ints(1000, B * T))
    ids = lambda: (ints(1000, B, T),)
    module("embedding", ids, lambda: nn.Embedding(1000, D))
    module("embedding_few", lambda: (ints(1000, 4, 32),), lambda: nn.Embedding(1000, D))
    module("embedding_many", lambda: (ints(50304, 8, 1024),), lambda: nn.Embedding(50304, 768))
    module("embedding_padding", ids, lambda: nn.Embedding(1000, D, padding_idx=0))
    module("embedding_sparse", ids, lambda: nn.Embedding(1000, D, sparse=True))
    module("embedding_bag", ids, lambda: nn.EmbeddingBag(1000, D))
    function("gather", lambda: (rand(B, T, D), ints(D, B, T, 64)), lambda x, i: x.gather(-1, i))
    function("take_along_dim", lambda: (rand(B, T, D), ints(D, B, T, 1)), lambda x, i: x.take_along_dim(i, -1))
    function("index_select", rows, lambda x, i: x.index_select(0, i))
    function("index", rows, lambda x, i: x[i])
    function("index_pairs", lambda: (rand(B, T, D), ints(B, 100), ints(T, 100)), lambda x, i, j: x[i, j])
    function("index_mask", x3, lambda x: x[x > 0])
    function("index_put", lambda: (rand(1000, D), ints(1000, 100), rand(100, D)), lambda x, i, v: x.clone().index_put_((i,), v))
    function("index_add", lambda: (rand(1000, D), ints(1000, B * T), rand(B * T, D)), lambda x, i, y: x.index_add(0, i, y))
    function("index_copy", lambda: (rand(1000, D), ints(1000, 100), rand(100, D)), lambda x, i, y: x.index_copy(0, i, y))
    function("scatter", lambda: (rand(B, T, D), ints(D, B, T, 64), rand(B, T, 64)), lambda x, i, y: x.scatter(-1, i, y))
    function("scatter_add", lambda: (rand(B, T, D), ints(D, B, T, 64), rand(B, T, 64)), lambda x, i, y: x.scatter_add(-1, i, y))
    function("masked_select", x3, lambda x: x.masked_select(x > 0))
    function("cat", lambda: (rand(B, T, D), rand(B, T, D)), lambda a, b: torch.cat((a, b), -1))
    function("stack", lambda: (rand(B, T, D), rand(B, T, D)), lambda a, b: torch.stack((a, b)))
    function("split_cat", x3, lambda x: torch.cat(x.split(128, -1)[::-1], -1))
    function("slice_assign", lambda: (rand(B, T, D), rand(B, 10, D)), lambda x, y: _assigned(x, y))
    function("meshgrid", lambda: (rand(64), rand(64)), lambda a, b: torch.meshgrid(a, b, indexing="ij")[0] * b)
    function("fold", lambda: (rand(B, 64 * 9, 784),), lambda x: F.fold(x, 28, 3, padding=1))


def _assigned(x, y):
    result = x.clone()
    result[:, :10] = y
    return result


def _recurrent(module, x3):
    for name, kind, options in (
        ("lstm", nn.LSTM, {}), ("lstm_two_layers", nn.LSTM, {"num_layers": 2}), ("lstm_dropout", nn.LSTM, {"num_layers": 2, "dropout": 0.2}),
        ("lstm_bidirectional", nn.LSTM, {"bidirectional": True}), ("lstm_projected", nn.LSTM, {"proj_size": 128}),
        ("gru", nn.GRU, {}), ("gru_two_layers", nn.GRU, {"num_layers": 2}), ("gru_dropout", nn.GRU, {"num_layers": 2, "dropout": 0.2}),
        ("rnn", nn.RNN, {}), ("rnn_two_layers", nn.RNN, {"num_layers": 2}), ("rnn_relu", nn.RNN, {"nonlinearity": "relu"}),
    ):
        module(name, x3, lambda kind=kind, options=options: kind(D, D, batch_first=True, **options), lambda m, x: m(x)[0])
    module("lstm_cell", lambda: (x3()[0].detach()[:, 0].requires_grad_(),), lambda: nn.LSTMCell(D, D), lambda m, x: m(x)[0])
    module("gru_cell", lambda: (x3()[0].detach()[:, 0].requires_grad_(),), lambda: nn.GRUCell(D, D))
