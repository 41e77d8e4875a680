"""The check of a profiler of the forward pass: on the second of two virtual GPUs, and on the CPU by an estimate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..base import OPTIMIZERS, Trial, check
from ..wording import is_number, show
from .common import ALLOCATOR, FOUR_NUMBERS, KEEPS, MIB, Suspect, gpus, judge_mib, near, no_gpu
from .profiler_truth import GPU, NOISE, Broken, Estimate, Seen, Sizes, Truth, call, estimate, measure

KEYS = {"source", "kept_mib", "peak_mib"}


@check(
    lesson=4,
    says="what the pass keeps and its peak, on the right GPU, with and without gradients, and an estimate on the CPU",
    imports=[OPTIMIZERS],
)
def memory_profiler(student: Any, trial: Trial) -> None:
    """Check a function of (model, inputs, grad): it measures one forward pass, prints it in MiB and returns a dict with
    "source", "kept_mib" and "peak_mib"."""
    trial.function(student, ("model", "inputs", "grad"))
    for grad in (True, False):
        _on_a_gpu(student, trial, grad)
    for grad, ends in ((True, "sliced"), (False, "sliced"), (True, "saved"), (True, "inputs")):
        _on_the_cpu(student, trial, grad, ends)
    for device in (f"cuda:{GPU}", "cpu"):
        _with_an_exception(student, trial, device)


@contextmanager
def _gpus() -> Iterator[None]:
    """Two GPUs on which cuBLAS keeps its workspace, as it does up to PyTorch 2.14."""
    scope = gpus(2)
    scope.keeps_workspaces = True
    with scope:
        yield


# --- on a GPU ------------------------------------------------------------------------------------------


def _on_a_gpu(student: Any, trial: Trial, grad: bool) -> None:
    sizes, device = Sizes.draw(), f"cuda:{GPU}"
    with _gpus():
        truth: Truth = trial.call(lambda: measure(sizes, device, grad))
    with _gpus():
        seen: Seen = trial.call(lambda: call(student, sizes, device, grad), explain=_explain)
    where = f"a pass {'with' if grad else 'without'} gradients on {device}, while cuda:0 is current"
    result = _form(trial, seen, where)
    trial.expect(
        isinstance(result["source"], str) and result["source"] == "allocator",
        "what a GPU has measured is not called so",
        expected=f'source "allocator": {where}',
        got=show(result["source"]),
        likely='the allocator of that GPU counts; "estimate" is for a model on the CPU',
        read=FOUR_NUMBERS,
    )
    kept, peak = result["kept_mib"], result["peak_mib"]
    likely = "allocated after the pass, with its output alive, less allocated before it"
    judge_mib(trial, "kept_mib", kept, truth.kept, where, _kept(kept, seen, truth, grad), likely=likely, read=KEEPS)
    likely = "reset the peak of that GPU just before the pass, read it after, subtract what was allocated before"
    judge_mib(trial, "peak_mib", peak, truth.peak, where, _peaks(truth), likely=likely, read=FOUR_NUMBERS)
    _unchanged(trial, seen, truth.workspace)
    trial.expect(
        seen.idle,
        "the GPU was still at work when the function returned",
        expected=f"{device} waited for",
        got="a kernel under way",
        likely="torch.cuda.synchronize(inputs.device) after the pass. The counts do not need it, for the allocator "
        "keeps its books on the host; but an error in one of the kernels would show up in the caller's next line",
        read=FOUR_NUMBERS,
    )
    _printed(trial, seen, truth.kept, "allocator")


def _form(trial: Trial, seen: Seen, where: str) -> dict[str, Any]:
    value = seen.value
    trial.expect(
        isinstance(value, dict) and set(value) == KEYS,
        "what comes back is not the dict that is asked for",
        expected=f'a dict with "source", "kept_mib" and "peak_mib": {where}',
        got=show(value),
        likely="the function prints and ends without a return" if value is None else "its keys are these three",
        read=FOUR_NUMBERS,
    )
    trial.expect(
        bool(seen.passes),
        "the model was never called",
        expected="model(inputs): one pass is measured",
        got="no call",
        likely="the memory is reckoned, not measured, or parts of the model are called without the whole",
        read=KEEPS,
    )
    result: dict[str, Any] = value
    return result


def _kept(got: Any, seen: Seen, truth: Truth, grad: bool) -> Iterator[Suspect]:
    """What a wrong number of kept MiB comes from, told by the number and by what was seen of the passes."""
    last = seen.passes[-1]
    for passes in range(1, len(seen.passes) + 1):
        yield Suspect(
            passes * NOISE / MIB,
            "the current GPU is measured, not the model's",
            "functions of torch.cuda that get no device mean the current one: pass inputs.device to each of them",
            FOUR_NUMBERS,
        )
    if last["alive"] and is_number(got) and abs(got) < 0.5 * truth.kept:
        yield Suspect(
            got,
            "the pass seems to keep little or nothing: the warm-up's output died during it",
            "the variable of the warm-up held its output, and the graph behind it, until the measured pass replaced "
            "it: as much went as came. Drop the warm-up's output before you measure",
            KEEPS,
        )
    yield Suspect(
        0.0,
        "the pass seems to keep nothing: its output was gone when the memory was read",
        "the output holds the graph, and the graph holds the activations: give the output a name that lives until "
        "the memory has been read",
        KEEPS,
    )
    yield Suspect(
        truth.other_grad,
        "the pass ran under no_grad though grad is True" if grad else "the pass kept a graph though grad is False",
        "without gradients nothing is kept for backward, so only the output counts: no_grad belongs where grad is False"
        if grad
        else "with grad=False the pass runs under torch.no_grad()",
        KEEPS,
    )
    yield Suspect(
        truth.first,
        "the first pass is measured, with what only a first pass takes",
        f"{truth.workspace:.4g} MiB of it are a workspace that cuBLAS takes once and keeps, as PyTorch before "
        "2.15 does: run a pass before the one you measure",
        ALLOCATOR,
    )
    yield Suspect(
        truth.reserved,
        "kept_mib is reserved memory",
        "the allocator reserves in large pieces and keeps what is free: ask memory_allocated, not memory_reserved",
        FOUR_NUMBERS,
    )
    yield Suspect(
        truth.peak,
        "the peak is reported as what is kept",
        "max_memory_allocated counts what came and went within the pass too: what it keeps is memory_allocated after "
        "it, less before",
        FOUR_NUMBERS,
    )
    yield Suspect(
        truth.outputs,
        "kept_mib is the sum of the layers' outputs",
        "an output is not always kept, dropout keeps a mask too, and the allocator rounds: measure instead",
        KEEPS,
    )
    if last["modes"] != seen.before:
        yield Suspect(
            truth.evaluating,
            "the pass ran in another mode than the model's",
            "eval() switches dropout off, and its mask and output go: measure the model as the caller has it",
            KEEPS,
        )


def _peaks(truth: Truth) -> Iterator[Suspect]:
    yield Suspect(
        truth.before + truth.peak,
        "peak_mib is absolute",
        "what was allocated before the pass, parameters too, is in it: subtract it",
        FOUR_NUMBERS,
    )
    for value in (truth.highest_ever, truth.highest_ever - truth.before):
        yield Suspect(
            value,
            "a peak from before the pass is in peak_mib",
            "the counter runs since its last reset: torch.cuda.reset_peak_memory_stats(device) just before the pass",
            FOUR_NUMBERS,
        )
    yield Suspect(
        truth.kept,
        "what is kept is reported as the peak",
        "in between there was more: max_memory_allocated since a reset just before the pass",
        FOUR_NUMBERS,
    )
    yield Suspect(
        truth.first_peak,
        "peak_mib is that of the warm-up",
        "reset the peak after the warm-up, just before the pass that you measure",
        ALLOCATOR,
    )


def _unchanged(trial: Trial, seen: Seen, workspace: float = 0.0) -> None:
    trial.expect(
        seen.before == seen.after,
        "the model came back in another mode",
        expected=f"train or eval as it was, module by module: {seen.before.count(False)} of {len(seen.before)} in eval",
        got=f"{seen.after.count(False)} in eval",
        likely="model.train() and model.eval() set every module, also one that the caller had set otherwise. "
        "A measurement needs neither",
        read=KEEPS,
    )
    trial.unchanged(seen.changes)
    left = max(seen.left_mib - workspace, seen.held_mib)
    trial.expect(
        left <= 0,
        "memory is still held when the function has returned",
        expected="nothing of the pass: the output and its graph end with the call",
        got=f"{left:.4g} MiB more in memory",
        likely="the output is kept in a list, a global or the result, or a hook that was put on holds it",
        read=KEEPS,
    )


def _printed(trial: Trial, seen: Seen, kept: float, source: str) -> None:
    lines = []
    for line in seen.text.splitlines():
        numbers = (float(n.replace(",", "")) for n in re.findall(r"(?<![\d.,])-?\d[\d,]*\.\d\d(?!\d)", line))
        if "MiB" in line and any(abs(number - kept) <= 0.0051 for number in numbers):
            lines.append(line.lower())
    printed = show(seen.text.strip()) if seen.text.strip() else "nothing printed"
    trial.expect(
        bool(lines),
        "what the pass keeps is not printed",
        expected=f"a line with {kept:.2f} MiB in it",
        got=printed,
        likely="print kept_mib with two decimals, and its unit, MiB, in one line",
        read=FOUR_NUMBERS,
    )
    trial.expect(
        any(source in line for line in lines),
        "the line that is printed does not say where its number comes from",
        expected=f"a line with {kept:.2f} MiB and the source, {source}",
        got=printed,
        likely="print the source beside the number, on a GPU as well as on the CPU: counted and estimated MiB are not "
        "the same thing",
        read=FOUR_NUMBERS,
    )


# --- on the CPU, and with a model that fails -----------------------------------------------------------


def _on_the_cpu(student: Any, trial: Trial, grad: bool, ends: str) -> None:
    """Without a GPU; beside two where the model saves its output, and called under no_grad there."""
    sizes, beside = Sizes.draw(), ends == "saved"
    want: Estimate = trial.call(lambda: estimate(sizes, grad, ends), inside=no_gpu())
    with _gpus() if beside else nullcontext():
        seen: Seen = trial.call(
            lambda: call(student, sizes, "cpu", grad, ends, off=beside),
            inside=None if beside else no_gpu(),
            explain=_explain,
        )
    where = f"a pass {'with' if grad else 'without'} gradients on the CPU, {_PLACES[ends]}"
    result = _form(trial, seen, where)
    kept = result["kept_mib"]
    trial.expect(
        isinstance(result["source"], str) and result["source"] == "estimate" and "estimate" in seen.text.lower(),
        "an estimate is not called one",
        expected='source "estimate", and the word in what is printed',
        got=f"source {show(result['source'])}, printed {show(seen.text.strip())}",
        likely="no allocator has counted these bytes: whoever reads the number has to see that",
        read=KEEPS,
    )
    if not (is_number(kept) and near(kept, want.rounded)):  # as an allocator would round is right, too
        likely = "each storage that autograd saves, and the output's, once; not those of parameters, buffers, inputs"
        where, suspects = f"estimate of {where}", _lost(kept, seen, want, grad)
        judge_mib(trial, "kept_mib", kept, want.kept, where, [*suspects, *want.suspects], likely=likely, read=KEEPS)
    trial.expect(
        result["peak_mib"] is None,
        "a peak is given where none was measured",
        expected="peak_mib None: what comes and goes during the pass is not seen by autograd's hooks",
        got=show(result["peak_mib"]),
        likely="0, or what is kept, would look like a measured peak",
        read=KEEPS,
    )
    trial.expect(
        not seen.graph_alive,
        "the graph of the pass outlives the call",
        expected="nothing left of the pass: its memory ends with the call",
        got="the output of a layer, and the graph behind it, still in memory",
        likely="a pack hook that returns its tensor itself makes a circle where a layer saves its own output (tanh, "
        "ReLU): the output holds its node, and the node the output, for ever. Return tensor.detach()",
        read=KEEPS,
    )
    _unchanged(trial, seen)
    _printed(trial, seen, kept, "estimate")


_PLACES = {
    "sliced": "where there is no GPU",
    "saved": "beside two GPUs; the caller is under no_grad, and the last layer saves its output",
    "inputs": "of a model that returns its inputs",
}


def _lost(got: Any, seen: Seen, want: Estimate, grad: bool) -> Iterator[Suspect]:
    """What a wrong estimate comes from, told by what was seen of the pass."""
    last = seen.passes[-1]
    if grad and not last["grad"]:
        yield Suspect(
            got,
            "the pass ran under no_grad, as its caller does, though grad is True",
            "a nullcontext leaves the mode as it is, and the caller may have switched gradients off: "
            "torch.set_grad_enabled(grad) sets it in both cases",
            KEEPS,
        )
    if grad and last["held"] < want.own * MIB:
        yield Suspect(
            got,
            "what autograd saves is gone before the pass has ended, and its addresses come back",
            "pack(tensor) returned something that does not hold the tensor: the memory is given out again, and two "
            "storages have one address. Return tensor.detach()",
            KEEPS,
        )


def _with_an_exception(student: Any, trial: Trial, device: str) -> None:
    sizes = Sizes.draw()
    with _gpus():
        seen: Seen = trial.call(lambda: call(student, sizes, device, True, spoil=True))
    trial.expect(
        isinstance(seen.error, Broken),
        "the model's exception does not come out",
        expected=f"the exception that the model raises, on {device}",
        got="no exception" if seen.error is None else f"{type(seen.error).__name__}: {seen.error}",
        likely="an except that hides it leaves the caller with a number of a pass that never ended: let it through",
        read=KEEPS,
    )
    trial.expect(
        seen.before == seen.after,
        "after an exception of the model its mode is another one",
        expected="train or eval as it was, also when the model raises",
        got=f"{seen.after.count(False)} modules in eval, {seen.before.count(False)} before",
        likely="what is switched for the pass has to be put back in a finally; better to switch nothing",
        read=KEEPS,
    )
    trial.unchanged(seen.changes)


def _explain(error: str) -> str:
    if "Expected a cuda device" in error:
        return "a model can be on the CPU though there is a GPU: decide by inputs.device.type, not by is_available()"
    if "NVIDIA driver" in error or "reset_peak_memory_stats" in error or "not compiled with CUDA" in error:
        return "without a GPU torch.cuda raises: decide by inputs.device.type, and count by hooks on the CPU"
    return ""
