"""The products that record_products.py runs: how operands and gradients lie, and the calls.

Nothing here measures. A case is a product, how each operand lies, and how the gradient does: cuBLAS takes a matrix
whose rows or columns lie in one piece, however far apart they are, and PyTorch clones any other first.
"""

# ruff: noqa: E731
# (a table: one case, one call)

import itertools

import torch
from torch.nn import functional as F

DEVICE = "cuda:0"
M, K, N, B = 300, 520, 760, 5


def ones(dtype, *shape):
    return torch.ones(shape, device=DEVICE, dtype=dtype)


def spread(make, *strides):
    """As make(*shape) would be, with these strides."""

    def laid(*shape):
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
        return make(size).as_strided(shape, strides)

    return laid


def matrices(dtype):
    """How an r x c matrix lies -> a function that makes it."""

    def make(*shape):
        return ones(dtype, *shape)

    return {
        "contiguous": make,
        "transposed": lambda r, c: make(c, r).t(),
        "columns": lambda r, c: make(r, c + 8)[:, :c],
        "columns_transposed": lambda r, c: make(c, r + 8)[:, :r].t(),
        "one_apart": lambda r, c: make(r, c + 1)[:, :c],
        "offset": lambda r, c: make(r * c + 1)[1:].view(r, c),
        "rows_step": lambda r, c: make(2 * r, c)[::2],
        "columns_step": lambda r, c: make(r, 2 * c)[:, ::2],
        "row_expanded": lambda r, c: make(1, c).expand(r, c),
        "column_expanded": lambda r, c: make(r, 1).expand(r, c),
        "scalar_expanded": lambda r, c: make(1, 1).expand(r, c),
        "overlapping": lambda r, c: spread(make, c // 2, 1)(r, c),
        "overlapping_transposed": lambda r, c: spread(make, 1, r // 2)(r, c),
    }


def batches(dtype):
    """How b matrices of r x c lie -> a function that makes them."""

    def make(*shape):
        return ones(dtype, *shape)

    def each(lay):
        """Batches whose matrices lie so, one after the other."""

        def laid(b, r, c):
            one = lay(r, c)
            apart = max(1, r * c)
            whole = make((b - 1) * apart + 1 + sum((n - 1) * s for n, s in zip(one.shape, one.stride(), strict=True)))
            return whole.as_strided((b, r, c), (apart, *one.stride()))

        return laid

    table = {name: each(lay) for name, lay in matrices(dtype).items() if name not in ("contiguous", "offset")}
    return table | {
        "contiguous": make,
        "batch_expanded": lambda b, r, c: make(1, r, c).expand(b, r, c),
        "batch_expanded_transposed": lambda b, r, c: make(1, c, r).expand(b, c, r).mT,
        "heads": lambda b, r, c: make(r, b, c).transpose(0, 1),
        "heads_transposed": lambda b, r, c: make(c, b, r).transpose(0, 1).mT,
        "batch_last": lambda b, r, c: make(r, c, b).permute(2, 0, 1),
        "all_expanded": lambda b, r, c: make(1, 1, 1).expand(b, r, c),
        "step": lambda b, r, c: make(2 * b, r, c)[::2],
    }


def vectors(dtype):
    return {
        "contiguous": lambda n: ones(dtype, n),
        "step": lambda n: ones(dtype, 2 * n)[::2],
        "expanded": lambda n: ones(dtype, 1).expand(n),
    }


def biases(dtype):
    """How what an m x n product is added to lies."""
    table = {
        "bias": lambda m, n: ones(dtype, n),
        "bias_step": lambda m, n: ones(dtype, 2 * n)[::2],
        "bias_expanded": lambda m, n: ones(dtype, 1).expand(n),
        "bias_of_one": lambda m, n: ones(dtype, 1),
        "number": lambda m, n: ones(dtype),
        "row": lambda m, n: ones(dtype, 1, n),
        "column": lambda m, n: ones(dtype, m, 1),
    }
    some = ("contiguous", "transposed", "columns", "columns_step", "row_expanded", "column_expanded", "scalar_expanded")
    return table | {name: matrices(dtype)[name] for name in some}


GRADIENTS = {
    "contiguous": lambda out: torch.ones_like(out, memory_format=torch.contiguous_format),
    "expanded": lambda out: ones(out.dtype).expand(out.shape),
    "transposed": lambda out: ones(out.dtype, *out.shape[:-2], *out.shape[:-3:-1]).mT,
    "rows_expanded": lambda out: ones(out.dtype, *out.shape[:-2], 1, out.shape[-1]).expand(out.shape),
    "step": lambda out: ones(out.dtype, *out.shape[:-1], 2 * out.shape[-1])[..., ::2],
}
SHAPES = {
    "": (M, K, N),
    "odd": (301, 521, 763),
    "no_rows": (0, K, N),
    "no_depth": (M, 0, N),
    "no_columns": (M, K, 0),
    "one_row": (1, K, N),
    "one_deep": (M, 1, N),
    "one_column": (M, K, 1),
    "one_each": (1, 1, 1),
}
PAIRS = [
    ("transposed", "transposed"), ("columns_step", "columns_step"), ("row_expanded", "column_expanded"),
    ("column_expanded", "row_expanded"), ("columns", "columns_transposed"), ("overlapping", "transposed"),
]  # fmt: skip


def cases(dtype):
    """name -> (the inputs, the call, the gradient given its result), as functions that make them."""
    return conjugated(dtype) if dtype.is_complex else real(dtype)


def conjugated(dtype):
    """Complex operands that are to be conjugated on the way; either may be the transpose of one that lies in rows."""
    table = {}
    for name, make, call, first in (("mm", matrices, torch.mm, ()), ("bmm", batches, torch.bmm, (B,))):
        lays = make(dtype)
        for kinds in itertools.product(("contiguous", "transposed", "columns_step"), repeat=2):
            for which in ((), (0,), (1,), (0, 1)):
                inputs = lambda kinds=kinds, lays=lays, first=first: [
                    lays[kinds[0]](*first, M, K), lays[kinds[1]](*first, K, N),
                ]  # fmt: skip
                turned = lambda *given, which=which, call=call: call(
                    *[tensor.conj() if place in which else tensor for place, tensor in enumerate(given)]
                )
                table[" ".join((name, *kinds, *(f"conj={place}" for place in which)))] = (
                    inputs,
                    turned,
                    GRADIENTS["contiguous"],
                )
    return table


def real(dtype):
    table = {}
    matrix, batch, vector, bias = matrices(dtype), batches(dtype), vectors(dtype), biases(dtype)

    def add(name, inputs, call, gradient="contiguous"):
        if gradient != "contiguous":
            name += f" grad={gradient}"
        table[name] = inputs, call, GRADIENTS[gradient]

    def pair(a, b, shape="", kinds=matrix, first=()):
        m, k, n = SHAPES[shape]
        return lambda: [kinds[a](*first, m, k), kinds[b](*first, k, n)]

    lays = [("contiguous", name) for name in matrix] + [(name, "contiguous") for name in matrix][1:] + PAIRS
    for a, b in lays:
        add(f"mm {a} {b}", pair(a, b), torch.mm)
    for gradient in list(GRADIENTS)[1:]:
        for a, b in (("contiguous", "contiguous"), ("transposed", "contiguous"), ("contiguous", "transposed")):
            add(f"mm {a} {b}", pair(a, b), torch.mm, gradient)
    for shape in list(SHAPES)[1:]:
        add(f"mm {shape}", pair("contiguous", "contiguous", shape), torch.mm)
        add(f"mm {shape}", pair("contiguous", "contiguous", shape), torch.mm, "expanded")
        add(f"mm {shape} transposed", pair("transposed", "transposed", shape), torch.mm)
        add(f"mm {shape} step", pair("columns_step", "columns_step", shape), torch.mm)

    def added(c, a, b, shape=""):
        m, k, n = SHAPES[shape]
        return lambda: [bias[c](m, n), matrix[a](m, k), matrix[b](k, n)]

    for c in bias:
        add(f"addmm {c}", added(c, "contiguous", "contiguous"), torch.addmm)
        add(f"addmm {c}", added(c, "contiguous", "contiguous"), torch.addmm, "expanded")
    for c in ("bias", "contiguous"):
        for shape in list(SHAPES)[1:]:
            add(f"addmm {c} {shape}", added(c, "contiguous", "contiguous", shape), torch.addmm)
        for a, b in (*PAIRS, ("transposed", "contiguous"), ("contiguous", "transposed"), ("contiguous", "columns")):
            add(f"addmm {c} {a} {b}", added(c, a, b), torch.addmm)
        for beta, alpha in ((0, 1), (0.5, 1), (1, 2)):
            call = lambda *given, beta=beta, alpha=alpha: torch.addmm(*given, beta=beta, alpha=alpha)
            add(f"addmm {c} beta={beta} alpha={alpha}", added(c, "contiguous", "contiguous"), call)
        for shape in ("no_depth", "one_row"):
            add(
                f"addmm {c} beta=0 {shape}",
                added(c, "contiguous", "contiguous", shape),
                lambda *given: torch.addmm(*given, beta=0),
            )
    for c in ("row", "transposed", "number"):
        for shape in ("no_depth", "one_row", "one_column", "odd"):
            add(f"addmm {c} {shape}", added(c, "contiguous", "contiguous", shape), torch.addmm)

    for c in ("bias", "contiguous", "transposed", "number"):
        for shape, gelu in (
            ("", True),
            ("", False),
            ("odd", True),
            ("one_row", True),
            ("one_column", True),
            ("no_depth", True),
        ):
            call = lambda *given, gelu=gelu: torch._addmm_activation(*given, use_gelu=gelu)
            name = f"_addmm_activation {c} {shape} {'gelu' if gelu else 'relu'}"
            add(name, added(c, "contiguous", "contiguous", shape), torch.no_grad()(call))
    for c in ("row", "bias_of_one", "column"):
        call = lambda *given: torch.addmm(*given, beta=0.5)
        add(f"addmm {c} beta=0.5", added(c, "contiguous", "contiguous"), call)
    for c in ("contiguous", "transposed", "columns", "columns_step"):
        into = lambda c, a, b: c.detach().addmm_(a, b)
        add(f"addmm_ {c}", added(c, "contiguous", "columns_step"), torch.no_grad()(into))
        into = lambda c, a, b: torch.mm(a, b, out=c.detach())
        add(f"mm out={c}", added(c, "transposed", "columns_step"), torch.no_grad()(into))
        into = lambda c, a, b: torch.addmm(b[0], a, b, out=c.detach())
        add(f"addmm out={c}", added(c, "contiguous", "contiguous"), torch.no_grad()(into))

    lays = [("contiguous", name) for name in batch] + [(name, "contiguous") for name in batch if name != "contiguous"]
    lays += [("transposed", "transposed"), ("batch_expanded", "batch_expanded"), ("all_expanded", "batch_last")]
    for a, b in lays:
        add(f"bmm {a} {b}", pair(a, b, kinds=batch, first=(B,)), torch.bmm)
    for gradient in list(GRADIENTS)[1:]:
        for a, b in (("contiguous", "contiguous"), ("transposed", "heads")):
            add(f"bmm {a} {b}", pair(a, b, kinds=batch, first=(B,)), torch.bmm, gradient)
    for shape in list(SHAPES)[1:]:
        add(f"bmm {shape}", pair("contiguous", "contiguous", shape, batch, (B,)), torch.bmm)
        add(f"bmm {shape}", pair("contiguous", "contiguous", shape, batch, (B,)), torch.bmm, "expanded")
        add(f"bmm {shape} transposed", pair("transposed", "transposed", shape, batch, (B,)), torch.bmm)
    for a, b in (("contiguous", "contiguous"), ("columns_step", "row_expanded")):
        add(f"bmm one {a} {b}", pair(a, b, "", batch, (1,)), torch.bmm, "expanded")
    add("bmm none", pair("contiguous", "contiguous", "", batch, (0,)), torch.bmm)

    for c in ("contiguous", "transposed", "row_expanded", "batch_expanded", "all_expanded"):
        inputs = lambda c=c: [batch[c](B, M, N), batch["contiguous"](B, M, K), batch["contiguous"](B, K, N)]
        add(f"baddbmm {c}", inputs, torch.baddbmm)
        add(f"baddbmm {c}", inputs, torch.baddbmm, "expanded")
    for name, shape in (("row", (N,)), ("matrix", (M, N)), ("number", ())):
        inputs = lambda shape=shape: [ones(dtype, *shape), batch["contiguous"](B, M, K), batch["contiguous"](B, K, N)]
        add(f"baddbmm {name}", inputs, torch.baddbmm)
    for shape in ("no_rows", "no_depth", "one_row", "one_deep", "one_column", "odd"):
        m, k, n = SHAPES[shape]
        inputs = lambda m=m, k=k, n=n: [ones(dtype, B, m, n), ones(dtype, B, m, k), ones(dtype, B, k, n)]
        add(f"baddbmm {shape}", inputs, torch.baddbmm)
    for a in ("columns_step", "scalar_expanded", "heads"):
        inputs = lambda a=a: [ones(dtype, B, M, N), batch[a](B, M, K), batch["contiguous"](B, K, N)]
        add(f"baddbmm beta=0 {a}", inputs, lambda *given: torch.baddbmm(*given, beta=0))

    for c in ("contiguous", "transposed", "columns", "columns_step", "heads_transposed"):
        inputs = lambda c=c: [batch[c](B, M, N), ones(dtype, B, M, K), batch["columns_step"](B, K, N)]
        add(f"baddbmm_ {c}", inputs, torch.no_grad()(lambda c, a, b: c.detach().baddbmm_(a, b)))
        add(f"bmm out={c}", inputs, torch.no_grad()(lambda c, a, b: torch.bmm(a, b, out=c.detach())))
    for c in ("contiguous", "transposed"):
        inputs = lambda c=c: [matrix[c](M, N), ones(dtype, B, M, K), ones(dtype, B, K, N)]
        add(f"addbmm {c}", inputs, torch.addbmm)

    for a, b in itertools.product(
        ("contiguous", "transposed", "columns", "columns_step", "heads", "all_expanded"),
        ("contiguous", "transposed", "columns_step"),
    ):
        inputs = lambda a=a, b=b: [batch[a](B, M, K), matrix[b](K, N)]
        add(f"matmul {a} {b}", inputs, torch.matmul)
    for gradient in ("expanded", "transposed"):
        add("matmul", lambda: [ones(dtype, B, M, K), ones(dtype, K, N)], torch.matmul, gradient)
        add("matmul 2-D 3-D", lambda: [ones(dtype, M, K), ones(dtype, B, K, N)], torch.matmul, gradient)
        add("matmul 4-D", lambda: [ones(dtype, 2, B, M, K), ones(dtype, 2, B, K, N)], torch.matmul, gradient)
    add("matmul 2-D 3-D", lambda: [ones(dtype, M, K), ones(dtype, B, K, N)], torch.matmul)
    add("matmul 4-D broadcast", lambda: [ones(dtype, 2, B, M, K), ones(dtype, B, K, N)], torch.matmul)
    add(
        "matmul 4-D heads",
        lambda: [ones(dtype, 2, M, B, K).transpose(1, 2), ones(dtype, 2, N, B, K).permute(0, 2, 3, 1)],
        torch.matmul,
    )
    add("matmul 3-D 1-D", lambda: [ones(dtype, B, M, K), ones(dtype, K)], torch.matmul)
    add("matmul 1-D 2-D", lambda: [ones(dtype, K), ones(dtype, K, N)], torch.matmul)

    for a, (with_bias, extra) in itertools.product(
        ("contiguous", "transposed", "columns", "columns_step", "heads", "all_expanded"),
        (("bias", [N]), ("no_bias", None)),
    ):
        inputs = lambda a=a, extra=extra: [
            batch[a](B, M, K),
            ones(dtype, N, K),
            *([ones(dtype, *extra)] if extra else ()),
        ]
        add(f"linear {with_bias} {a}", inputs, F.linear)
        if a in ("contiguous", "heads"):
            add(f"linear {with_bias} {a}", inputs, F.linear, "expanded")
            add(f"linear {with_bias} {a}", inputs, F.linear, "transposed")
    for shape in list(SHAPES)[1:]:
        m, k, n = SHAPES[shape]
        inputs = lambda m=m, k=k, n=n: [ones(dtype, B, m, k), ones(dtype, n, k), ones(dtype, n)]
        add(f"linear bias {shape}", inputs, F.linear)
        add(
            f"linear 2-D {shape}",
            lambda m=m, k=k, n=n: [ones(dtype, m, k), ones(dtype, n, k), ones(dtype, n)],
            F.linear,
            "expanded",
        )
    add("linear 1-D", lambda: [ones(dtype, K), ones(dtype, N, K), ones(dtype, N)], F.linear)
    add("linear 1-D step", lambda: [ones(dtype, 2 * K)[::2], ones(dtype, N, K), ones(dtype, N)], F.linear)
    add(
        "linear 4-D heads",
        lambda: [ones(dtype, 2, M, B, K).transpose(1, 2), ones(dtype, N, K), ones(dtype, N)],
        F.linear,
    )
    add("linear matrix", lambda: [ones(dtype, B, M, K), ones(dtype, N, K), ones(dtype, M, N)], F.linear)
    add("linear row", lambda: [ones(dtype, B, M, K), ones(dtype, N, K), ones(dtype, 1, N)], F.linear)
    add("linear number", lambda: [ones(dtype, B, M, K), ones(dtype, N, K), ones(dtype)], F.linear)
    add("linear 4-D", lambda: [ones(dtype, 2, B, M, K), ones(dtype, N, K), ones(dtype, N)], F.linear, "expanded")

    for a in matrix:
        add(f"mv {a}", lambda a=a: [matrix[a](M, K), vector["contiguous"](K)], torch.mv)
    for b in ("step", "expanded"):
        add(f"mv contiguous {b}", lambda b=b: [matrix["contiguous"](M, K), vector[b](K)], torch.mv)
        add(f"dot {b}", lambda b=b: [vector["contiguous"](K), vector[b](K)], torch.dot)
    add("mv", lambda: [matrix["contiguous"](M, K), vector["contiguous"](K)], torch.mv, "expanded")
    for shape in list(SHAPES)[1:]:
        m, k, _ = SHAPES[shape]
        add(f"mv {shape}", lambda m=m, k=k: [ones(dtype, m, k), ones(dtype, k)], torch.mv)
    add("addmv", lambda: [ones(dtype, M), ones(dtype, M, K), ones(dtype, K)], torch.addmv)
    add("addmv number", lambda: [ones(dtype), ones(dtype, M, K), ones(dtype, K)], torch.addmv)
    add("addmv no_depth", lambda: [ones(dtype, M), ones(dtype, M, 0), ones(dtype, 0)], torch.addmv)

    add("dot none", lambda: [ones(dtype, 0), ones(dtype, 0)], torch.dot)
    add(
        "addmv_ step",
        lambda: [ones(dtype, 2 * M)[::2], ones(dtype, M, K), ones(dtype, K)],
        torch.no_grad()(lambda c, a, b: c.detach().addmv_(a, b)),
    )

    def einsum(text):
        return lambda *given: torch.einsum(text, *given)

    for gradient in ("contiguous", "expanded"):
        for a in ("contiguous", "transposed", "columns_step", "batch_expanded"):
            inputs = lambda a=a: [batch[a](B, M, K), ones(dtype, B, K, N)]
            add(f"einsum bij,bjk->bik {a}", inputs, einsum("bij,bjk->bik"), gradient)
        add("einsum bthd,bshd->bhts", lambda: [ones(dtype, 2, 128, B, 64)] * 2, einsum("bthd,bshd->bhts"), gradient)
        add("einsum bij,kj->bik", lambda: [ones(dtype, B, M, K), ones(dtype, N, K)], einsum("bij,kj->bik"), gradient)
    return table
