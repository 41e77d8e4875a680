"""Every public call of PyTorch that takes a device and makes a tensor, found in PyTorch's own operator schemas.

Arguments are made from the schemas too: by an argument's type, and by its name where the type says too little. A call
that cannot be given arguments raises, so that what a new PyTorch adds is not left out in silence.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch

INT_ARGUMENTS = {"steps": 5, "n": 4, "m": 4, "row": 4, "col": 4, "window_length": 6, "high": 9, "low": 1}
NUMBER_ARGUMENTS = {"start": 1, "end": 4, "fill_value": 7, "s": 2.5}
FLOAT_ARGUMENTS = {"alpha": 0.5, "beta": 10.0, "mean": 0.0, "std": 1.0}
BLOCKS = [[[1.0]], [[2.0]], [[3.0]]]
# Not made from their schemas: they take data of Python, or move a tensor; the tests of those are written out.
FROM_DATA = {"tensor", "as_tensor", "Generator", "to", "pin_memory", "is_pinned"}
# A file is mapped into the host's memory; quantised tensors of unknown scale have no public use.
HOST_ONLY = {"from_file", "empty_quantized"}


@dataclass(frozen=True)
class Call:
    """`name` with everything but the device; `values` says whether its values are the same every time."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    values: bool = True
    generator: bool = False

    def __call__(self, where: Any = None, **more: Any) -> torch.Tensor:
        """The tensor, with `device=where`; None leaves it out."""
        function = torch
        for part in self.name.split("."):
            function = getattr(function, part)
        keywords = self.keywords | more | ({} if where is None else {"device": where})
        if self.generator:
            keywords["generator"] = torch.Generator(torch.get_default_device() if where is None else where)
        return function(*self.arguments, **keywords)

    def __str__(self) -> str:
        return f"{self.name}({', '.join('Tensor' if isinstance(a, torch.Tensor) else str(a) for a in self.arguments)})"


def schemas() -> dict[str, list[torch.FunctionSchema]]:
    """The operators with a `device` argument that are public under this name in `torch` or on a tensor."""
    found: dict[str, list[torch.FunctionSchema]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        public = not name.startswith("_") and (hasattr(torch, name) or hasattr(torch.Tensor, name))
        if space == "aten" and public and any(a.name == "device" for a in schema.arguments):
            found.setdefault(name, []).append(schema)
    return dict(sorted(found.items()))


def calls() -> list[Call]:
    """One call for every overload, and those that PyTorch makes in Python."""
    out = []
    for name, overloads in schemas().items():
        if name in FROM_DATA | HOST_ONLY:
            continue
        for schema in overloads:
            if not any(a.is_out or a.name == "names" for a in schema.arguments):  # PyTorch has given up named tensors
                out.append(_call(name, schema))
    out += [Call(f"fft.{name}", (6,), {}) for name in ("fftfreq", "rfftfreq")]
    more = {"general_cosine": {"a": [0.5, 0.3, 0.2]}}
    return out + [Call(f"signal.windows.{name}", (6,), more.get(name, {})) for name in torch.signal.windows.__all__]


def _call(name: str, schema: torch.FunctionSchema) -> Call:
    operator = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
    arguments, keywords = [], {}
    for argument in schema.arguments:
        if argument.has_default_value() or argument.name in ("device", "generator"):
            continue
        value = _value(name, schema, argument)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            arguments.append(value)
    values = torch.Tag.nondeterministic_seeded not in operator.tags and "empty" not in name
    if name == "sparse_compressed_tensor":
        keywords["layout"] = torch.sparse_csr
    owner = name if hasattr(torch, name) else f"Tensor.{name}"
    generator = any(a.name == "generator" for a in schema.arguments)
    return Call(owner, tuple(arguments), keywords, values, generator)


def _value(name: str, schema: torch.FunctionSchema, argument: Any) -> Any:
    kind = str(argument.type)
    if kind == "Tensor":
        return _tensor(name, argument.name)
    if kind in ("List[int]", "List[SymInt]"):
        return {"stride": [4, 1], "physical_layout": [1, 0]}.get(argument.name, [4, 4] if "sparse" in name else [3, 4])
    if kind == "bool":
        return True
    for kinds, table in (
        (("int", "SymInt"), INT_ARGUMENTS),
        (("number", "Scalar"), NUMBER_ARGUMENTS),
        (("float",), FLOAT_ARGUMENTS),
    ):
        if kind in kinds:
            if argument.name not in table:
                break
            return table[argument.name]
    raise NotImplementedError(f"no value for {argument.name}: {kind} of {schema}")


def _tensor(name: str, argument: str) -> torch.Tensor:
    if argument in ("start", "end", "high", "low"):
        return torch.tensor({"start": 1.0, "end": 4.0, "high": 9, "low": 1}[argument])
    if argument == "indices":
        return torch.tensor([[0, 1, 3], [1, 0, 2]])
    if argument == "values":
        return torch.tensor(BLOCKS if "bs" in name else [1.0, 2.0, 3.0])
    if argument in ("crow_indices", "ccol_indices", "compressed_indices"):
        return torch.tensor([0, 1, 2, 2, 3])
    if argument in ("col_indices", "row_indices", "plain_indices"):
        return torch.tensor([1, 0, 2])
    return torch.arange(12.0).reshape(3, 4)


def layers() -> list[tuple[type[torch.nn.Module], dict[str, Any]]]:
    """The layers of `torch.nn` that take a device, with small arguments."""
    sizes = {"num_groups": 2, "normalized_shape": [4], "kernel_size": 2, "nhead": 2, "num_heads": 2, "cutoffs": [2, 3]}
    small = {name: {"input_size": 4, "hidden_size": 4} for name in ("RNN", "LSTM", "GRU")}
    small["Transformer"] = {"d_model": 4, "nhead": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
    small["Transformer"]["dim_feedforward"] = 4
    out = []
    for name in sorted(torch.nn.modules.__all__):
        layer = getattr(torch.nn, name)
        parameters = inspect.signature(layer.__init__).parameters
        if name in small:
            out.append((layer, small[name]))
        elif "device" in parameters and not name.endswith("Base"):
            needed = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            out.append((layer, {p.name: sizes.get(p.name, 5 if p.name == "n_classes" else 4) for p in needed[1:]}))
    return out
