"""What a virtual GPU says to wrong code, and to right code that looks wrong, is what PyTorch's CUDA code says.

torch_cuda/errors.json has what CUDA code said line by line; here each line is run again on two virtual GPUs.
"""

import contextlib
import json
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.operations.generated_checks import wrapper

from .recorded import GPUS, HERE, recorder

record_errors = recorder("record_errors")
RECORDED = json.loads((HERE / "errors.json").read_text())
SECTIONS = list(dict.fromkeys(row["section"] for row in RECORDED["rows"]))

# Lines of which the virtual GPU says something else, and why. One that no longer differs fails the test.
DECLARED = {
    "sdpa(h4, h4, h4, attn_mask=gm)": "CUDA's text lists the backends of its build",
    "torch._foreach_add([g, h], 1.0)": "one list operation over several devices; optimizers sort them first",
    'set_attribute(parameter, "grad", h)': "the setter of .grad is C++ and sees the devices behind",
    "torch.cuda.set_rng_state(torch.zeros(3, dtype=torch.uint8))": "the random numbers are the CPU generator's",
    "torch.cuda.get_rng_state().shape": "the random numbers are the CPU generator's",
    'in_fork("g.cpu()")': "the recording's stand-in has no context that a fork could lose",
    "torch.cuda.get_arch_list()": "what this GPU runs, not what a build was compiled for",
    "repr(torch.cuda.get_device_properties(0))": "no uuid, no bus; it says virtual",
    'torch.cuda.memory._set_allocator_settings("nonsense:1")': "our text names the settings there are",
    'torch.cuda.memory._set_allocator_settings("max_split_size_mb:1")': "our text names the value too",
}
_NO_VALUES = "it shows or compares values"
DECLARED_WITHOUT_VALUES = {
    **dict.fromkeys(
        (
            "g1.tolist()", "list(g1)", "repr(g0)", "str(g1)", 'f"{g1}"', "torch.autograd.grad(gr.sum(), gr, h0)",
            "torch.broadcast_tensors(g, h)",
        ),
        _NO_VALUES,
    ),
    "g[hm]": "the result's size is a matter of values",
    "g.index_put_((hids4,), g)": "that places overlap is seen in memory only",
}  # fmt: skip
# Texts of PyTorch's own, on the host as on a GPU, that are others in other versions.
OF_VERSION = {
    "np.sum(g)", "torch.mean(gids)", "embedding(g)", "F.cross_entropy(g, g1)", "torch.matmul(g, g[:3])",
    "F.linear(g, g[:, :3])", 'linear(torch.zeros(2, 5, device="cuda"))',
}  # fmt: skip
# What a build says of itself.
OF_BUILD = {
    "torch.version.cuda", "torch.backends.cudnn.version()", "torch.backends.cudnn.is_available()",
    "torch.backends.cuda.is_flash_attention_available()", "torch.device(0)",
}  # fmt: skip
SAME_TORCH = torch.__version__.partition("+")[0] == RECORDED["torch"].partition("+")[0]

CHANGING = re.compile(r"_\(|out=|backward|set_attribute|set_|step|twice|scaled|scale|in_place|torch\.empty")


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def compute(request):
    yield request.param
    torch.set_autocast_dtype("cuda", torch.float16)  # a line sets another, which a later one speaks of


def run(code, names):
    """The outcome of a line, as the recorder puts it, and what it has changed for others put back."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = record_errors.outcome(code, names)
    if said:
        out["warning"] = str(said[-1].message)
    with contextlib.suppress(Exception):
        torch.cuda.set_device(0)
    torch.set_default_device(None)
    torch.set_autocast_enabled("cuda", False)
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    return out


def said(outcome):
    """What is compared: all but the recorder's notes, and warnings that PyTorch gives once per process."""
    out = {key: value for key, value in outcome.items() if key not in ("capability", "section", "code")}
    if out.get("type") == "torch.OutOfMemoryError":  # numbers other than what was asked for are of the process
        first, rest = out["message"].split(". ", 1)
        out["message"] = first + re.sub(r"[\d.]+ [KMG]iB", "…", rest)
    if "warning" in out and re.search("Triggered internally|deprecated", out["warning"]):
        del out["warning"]
    return out


def differences(rows, declared):
    """The lines whose outcome is not the recorded one and not declared, or declared and the recorded one."""
    found, names = [], None
    for row in rows:
        code = row["code"]
        if code.startswith("without_gpu("):  # there is no GPU there, virtual or not
            continue
        if names is None:
            names = record_errors.namespace()
        got, expected = run(code, names), said(row)
        if CHANGING.search(code):
            names = None
        got = {key: value for key, value in said(got).items() if key in expected or key != "warning"}
        if (code in OF_BUILD and torch.__version__ != RECORDED["torch"]) or (code in OF_VERSION and not SAME_TORCH):
            continue
        if (got != expected) != (code in declared):
            found.append(
                f"{code}\n  CUDA    {expected}\n  virtual {got if got != expected else 'the same, and declared'}"
            )
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_wrong_code_is_told_what_cuda_tells_it(compute, section):
    rows = [row for row in RECORDED["rows"] if row["section"] == section and "7.5" in row["capability"]]
    with VirtualGPU("T4", compute=compute, count=2):
        found = differences(rows, DECLARED if compute else DECLARED | DECLARED_WITHOUT_VALUES)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_where_gpus_differ_each_says_its_own(compute, capability):
    rows = [row for row in RECORDED["rows"] if capability in row["capability"] and len(row["capability"]) < len(GPUS)]
    assert rows
    with VirtualGPU(GPUS[capability], compute=compute, count=2):
        found = differences(rows, DECLARED if compute else DECLARED | DECLARED_WITHOUT_VALUES)
    assert not found, "\n".join(found)


def test_what_is_declared_was_recorded():
    codes = {row["code"] for row in RECORDED["rows"]}
    assert codes >= DECLARED.keys() | DECLARED_WITHOUT_VALUES.keys() | OF_BUILD | OF_VERSION


# -- the checks at the start of generated kernels --------------------------------------------------------------------


def generated():
    """(overload, its wrapper's name by our rule, and as torchgen writes it) for CUDA kernels of several tensors."""
    from torchgen.api import cpp
    from torchgen.gen import get_grouped_native_functions, parse_native_yaml
    from torchgen.model import DeviceCheckType, DispatchKey, NativeFunctionsGroup

    folder = Path(find_spec("torchgen").origin).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(folder / "native_functions.yaml", folder / "tags.yaml")
    cuda = parsed.backend_indices[DispatchKey.CUDA]
    for group in get_grouped_native_functions(parsed.native_functions):
        grouped = isinstance(group, NativeFunctionsGroup)
        structured = grouped and group.structured and cuda.has_kernel(group.out)
        for f in group.functions() if grouped else [group]:
            if not structured and not cuda.has_kernel(f):
                continue
            arguments = [*f.func.arguments.out, *f.func.arguments.flat_positional]
            tensors = [a for a in arguments if a.type.is_tensor_like()]
            if len(tensors) < 2 and not any(a.type.is_list_like() for a in tensors):
                continue
            name, out = f.func.name, "_out" if f.func.arguments.out else ""
            method = f"wrapper_CUDA_{name.overload_name}_{cpp.name(f.func)}"
            if structured:
                method = f"wrapper_CUDA_{name.name}{out}" + f"_{name.overload_name}" * bool(name.overload_name)
            found = wrapper(str(name.name), name.overload_name, out=bool(out))
            yield str(name), found, method if f.device_check is not DeviceCheckType.NoCheck else None


@pytest.mark.skipif(not SAME_TORCH, reason=f"the names are those of PyTorch {RECORDED['torch']}")
def test_the_names_of_the_generated_checks_are_torchgens():
    pytest.importorskip("yaml", reason="torchgen reads PyTorch's list of operations with PyYAML")
    names = list(generated())
    assert len(names) > 800
    assert [(name, found, method) for name, found, method in names if found != method] == []
