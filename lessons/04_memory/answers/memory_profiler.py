"""Answers to the profiler of a forward pass, as edits of the solution."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop

import gpulab

BANK = Bank("memory_profiler", object_name="profile_forward")
WARM_UP, MEASURED = "model(inputs)  # its", "memory_allocated(device)\n            output = model(inputs)"
BEFORE, KEPT = 'source = "allocator"', "kept_bytes = torch.cuda.memory_allocated(device) - before"
PEAK, WAIT = "max_memory_allocated(device) - before", "torch.cuda.synchronize(device)\n        kept_bytes"
CPU_MODE, GPU_MODE = "hooks, torch.set_grad_enabled(grad):", "with torch.set_grad_enabled(grad):\n            model"
KNOWN, NEW, TOTAL = "*model.parameters(), *model.buffers(), inputs]", "= storage.nbytes()", "sum(storages.values())"
STORE, PACKED, ON_CPU = "storages[storage.data_ptr()] = ", "return tensor.detach()", 'device.type == "cpu"'
LINE, RETURN = "{kept_mib:.2f} MiB kept ({source})", 'return {"source"'
OUTPUT, OUTPUTS_OWN = "output.untyped_storage()", "storages[output.untyped_storage().data_ptr()] = output"
WHOLE_IF_NEW = f"if {OUTPUT}.data_ptr() not in known: {OUTPUTS_OWN}.untyped_storage().nbytes()"
MODES = "modes = [m.training for m in model.modules()]"
BACK = "for m, mode in zip(model.modules(), modes, strict=True): m.training = mode"
RESERVED = "torch.cuda.memory_reserved(device)"
HOLD = "globals().setdefault('ALL', []).append"
IN_MODE = "(__import__('contextlib').nullcontext() if grad else torch.no_grad())"
LAYERS = "for layer in model: x = layer(x); total += x.nbytes"
CHANGED = "your function changed its argument "


def times(factor):
    """The numbers in another unit: on the GPU, and on the CPU."""
    line = f"kept_bytes, peak_bytes = kept_bytes * {factor}, peak_bytes * {factor}"
    return add(line, after="peak_bytes = torch"), change(TOTAL, f"{factor} * {TOTAL}")


@BANK.right
def uses_gpulabs_own_tools(model, inputs, grad):
    with torch.set_grad_enabled(grad):
        if inputs.is_cuda:
            model(inputs)
            with gpulab.GPUMemoryTracker(inputs.device) as tracker:
                output = model(inputs)
            del output
            kept, peak = tracker.delta_bytes / 2**20, tracker.peak_above_entry_bytes / 2**20
        else:
            found = gpulab.memory.activation_bytes(model, inputs)
            kept, peak = (found.total + found.output_bytes) / 2**20, None
    source = "allocator" if inputs.is_cuda else "estimate"
    print(f"{source} of {type(model).__name__}\n{source.title()}: {kept:,.2f} MiB")
    return {"kept_mib": kept, "peak_mib": peak, "source": source}


BANK.right(
    change(NEW, "= -(-storage.nbytes() // 512) * 512"),  # rounded as an allocator would
    (
        change(WARM_UP, "with torch.no_grad(): [model(inputs) for _ in range(3)]  # its"),
        change(KEPT, "kept_bytes = torch.cuda.memory_stats(device)['allocated_bytes.all.current'] - before"),
    ),
)


@BANK.wrong("the model's exception does not reach the caller",
"if an except hides it, the caller gets a number from a pass that never finished: let it through")  # fmt: skip
def hides_an_exception(model, inputs, grad):
    try:
        return BANK.solution(model, inputs, grad)
    except Exception:
        return {"source": "estimate", "kept_mib": 0.0, "peak_mib": None}


@BANK.wrong("the model was never called",
"the memory is computed, not measured, or parts of the model are called instead of the whole")  # fmt: skip
def reckons(model, inputs, grad):
    return {"source": "estimate", "kept_mib": inputs.nbytes * len(list(model.modules())) / 2**20, "peak_mib": None}


BANK.mistakes(
    ("the pass seems to keep little or nothing: the warm-up's output died during it",
     "its variable held the warm-up's output and graph until the measured pass replaced them: as much was freed as "
     "was allocated. Delete the warm-up's output before you measure", change(WARM_UP, "output = " + WARM_UP)),
    ("the pass seems to keep nothing: its output was gone, or the wrong counter was read",
     "the output holds the graph, and the graph the activations: keep the output in a variable until you have read "
     "memory_allocated. Reserved memory need not grow",
     (change(MEASURED, MEASURED.replace("output = ", "")), drop("del output")),
     (add(f"start = {RESERVED}", before="reset_peak"), change(KEPT, f"kept_bytes = {RESERVED} - start"))),
    ("the pass ran under no_grad though grad is True",
     "without gradients nothing is kept for backward, so only the output counts: no_grad belongs where grad is False",
     change(GPU_MODE, "with torch.no_grad():\n            model"), change(CPU_MODE, "hooks, torch.no_grad():")),
    ("the pass ran under no_grad, as its caller does, though grad is True",
     "a nullcontext leaves the mode as it is: torch.set_grad_enabled(grad) sets it, even if the caller has switched "
     "gradients off", change(GPU_MODE, f"with {IN_MODE}:\n            model"), change(CPU_MODE, f"hooks, {IN_MODE}:")),
    ("the pass kept a graph though grad is False", "with grad=False the pass runs under torch.no_grad()",
     change(GPU_MODE, "with torch.enable_grad():\n            model"), change(CPU_MODE, "hooks, torch.enable_grad():")),
    ("the pass ran in another mode than the model's",
     "eval() switches dropout off, and its mask and output go: measure the model as the caller has it",
     (change(WARM_UP, f"{MODES}; model.eval(); {WARM_UP}"), change(WAIT, f"{BACK}\n        {WAIT}")),
     (add(f"{MODES}; model.eval()", before="hooks = torch.autograd"), add(BACK, after="pack(output)"))),
    ("the first pass is measured, with what only a first pass takes",
     "it includes a workspace that cuBLAS allocates once and keeps: run a pass before the one you measure",
     drop(WARM_UP)),
    ("peak_mib is that of the warm-up", "reset the peak after the warm-up, just before the pass that you measure",
     (add("start = torch.cuda.memory_allocated(device)", before=BEFORE), change(PEAK, PEAK[:-6] + "start"))),
    ("kept_mib is reserved memory",
     "the allocator reserves in large pieces and keeps what is free: ask memory_allocated, not memory_reserved",
     (add(f"start = {RESERVED}", before=BEFORE), change(KEPT, f"kept_bytes = {RESERVED} - start"))),
    ("the numbers are in MB of 10**6 bytes, not in MiB",
     "nvidia-smi and PyTorch's messages count in MiB, even where they say MB: divide the bytes by 2**20",
     *times(2**20 / 1e6)),
    ("the numbers are in bytes, not in MiB", "divide the bytes by 2**20", *times(2**20)),
    ("the peak is reported as what is kept",
     "max_memory_allocated includes what was freed during the pass: what the pass keeps is memory_allocated after it, "
     "less before", change(KEPT, KEPT.replace("memory_a", "max_memory_a"))),
    ("what is kept is reported as the peak",
     "there was more in between: max_memory_allocated since a reset just before the pass", change(PEAK, PEAK[4:])),
    ("peak_mib is absolute", "what was allocated before the pass, parameters too, is in it: subtract it",
     change(PEAK, PEAK.replace(" - before", ""))),
    ("a peak from before the pass is in peak_mib", "the counter runs since its last reset: "
     "torch.cuda.reset_peak_memory_stats(device) just before the pass", drop("reset_peak")),
    ("the current GPU is measured, not the model's",
     "functions of torch.cuda without a device mean the current one: pass inputs.device to each of them",
     add("device = None", after=BEFORE)),
    ("kept_mib is the sum of the layers' outputs", "an output is not always kept, dropout keeps a mask too, and the "
     "allocator rounds: measure instead; on the CPU count what autograd saves, through saved_tensors_hooks",
     (change(BEFORE, f"{BEFORE}\n        x, total = inputs, 0\n        {LAYERS}\n        del x"),
      change(KEPT, "kept_bytes = total")),
     change(f"kept_bytes = {TOTAL}", f"x, total = inputs, 0\n        {LAYERS}\n        kept_bytes = total")),
    ("the GPU was still at work when the function returned",
     "torch.cuda.synchronize(inputs.device) after the pass: the counts do not need it, but an error in one of the "
     "kernels would show up in the caller's next line",
     change(WAIT, "kept_bytes"), change(WAIT, WAIT.replace("device", ""))),
    ("the graph of the pass outlives the call",
     "a pack hook that returns its tensor itself makes a reference cycle if a layer saves its own output: the output "
     "holds its node, and the node the output. Return tensor.detach()", change(PACKED, "return tensor")),
    ("memory is still held when the function has returned",
     "the output is kept in a list, a global or the result, or by a hook that was registered",
     add(HOLD + "(output.detach())", after="peak_bytes = torch"),
     change("hooks(pack, ", f"hooks(lambda tensor: {HOLD}(tensor.detach()) or pack(tensor), ")),
    ("what the pass keeps is not printed", "print kept_mib with two decimals, and its unit, MiB, in one line",
     *(change("print(f", f"if inputs.device.type == '{only}': print(f") for only in ("cpu", "cuda")),
     change(".2f", ".1f"), change(LINE, "{kept_mib:.2f} ({source})")),
    ("the line that is printed does not say where its number comes from",
     "print the source beside the number, on a GPU as well as on the CPU: counted and estimated MiB are not the same",
     *(change("({source})", f"{{source if inputs.device.type == '{only}' else ''}}") for only in ("cpu", "cuda"))),
    ("the function does not return the dict that is asked for", "the function prints and ends without a return",
     change(RETURN, '_ = {"source"')),
    ("what a GPU has measured is not labelled so", '"allocator" is for a model on a GPU, "estimate" for one on the CPU',
     change('"allocator"', '"estimate"'), change('"allocator"', '"measured"')),
    ("an estimate is not labelled as one", "no allocator has counted these bytes, and the reader has to see that",
     change('"estimate"', '"allocator"')),
    ("the allocator is asked about a model on the CPU",
     "decide by inputs.device.type: without a GPU torch.cuda raises, and a GPU's counters know nothing of the CPU's "
     "memory. There count by hooks", change(ON_CPU, "False")),
    ("a GPU is assumed to be the model's because it exists",
     "a model can be on the CPU even if there is a GPU: decide by inputs.device.type, not by is_available()",
     change(ON_CPU, "not torch.cuda.is_available()")),
    ("on the CPU the estimate is 0", "torch.cuda counts nothing of a model on the CPU, also where there is a GPU: "
     "count what autograd saves, with torch.autograd.graph.saved_tensors_hooks", change(TOTAL, "0")),
    ("a peak is given where none was measured", "0, or what is kept, would look like a measured peak",
     change('"estimate", None', '"estimate", 0'), add("peak_bytes = kept_bytes", after=TOTAL)),
    ("the inputs are counted as kept by the pass",
     "they existed before and belong to the caller: leave out their whole storage, of which they may be a part",
     change(", inputs]", "]"), (change(", inputs]", "]"), change("in before}", "in before} | {inputs.data_ptr()}"))),
    ("parameters, buffers and inputs are counted as kept by the pass",
     "autograd saves them for backward, but they existed before: leave their storages out", change(KNOWN, "]")),
    ("parameters or buffers are counted as kept by the pass",
     "autograd saves weights and a norm's statistics, but they existed before: leave their storages out",
     change(KNOWN, "inputs]"), change(" *model.buffers(),", "")),
    ("a buffer that is not saved in the state_dict is counted", "state_dict() leaves out what is registered with "
     "persistent=False: take what was there before from model.parameters() and model.buffers()",
     change(KNOWN, "*model.state_dict().values(), inputs]")),
    ("shared storage is counted more than once",
     "one layer's output is the next one's input, and both save it: count each storage once, by its data_ptr()",
     change(STORE, "storages[len(storages)] = "), change(STORE + NEW[2:], "storages[len(storages)] = tensor.nbytes")),
    ("two views of one storage are counted as two storages",
     "tensor.data_ptr() is where the view begins, and halves of a tensor begin at different places: "
     "tensor.untyped_storage().data_ptr() is the same for both",
     change(STORE, "storages[tensor.data_ptr()] = "),
     (change(STORE, "storages[tensor.data_ptr()] = "), change("if storage.data_ptr()", "if tensor.data_ptr()"),
      change("pack(output)", WHOLE_IF_NEW))),
    ("a view is counted with its own bytes, not with its storage's",
     "a slice that is saved keeps all of its tensor alive: count tensor.untyped_storage().nbytes(), not tensor.nbytes",
     change(NEW, "= tensor.nbytes"), (change(NEW, "= tensor.nbytes"), change("pack(output)", WHOLE_IF_NEW))),
    ("indices are forgotten", "pooling saves the place of each maximum as int64, and backward needs them",
     change("if storage.data_ptr()", "if tensor.is_floating_point() and storage.data_ptr()")),
    ("the output is not counted", "it is alive after the pass, whether or not autograd saves it", drop("pack(output)")),
    ("the output is counted twice: autograd has saved it, too", "a last layer such as tanh saves its own output: put "
     "the output's storage with those that are saved, and count each once, by its data_ptr()",
     (drop("pack(output)"), change(TOTAL, f"{TOTAL} + {OUTPUT}.nbytes() * ({OUTPUT}.data_ptr() not in known)"))),
    ("the output is counted with its own bytes, not with its storage's",
     "a slice keeps all of its tensor alive: count output.untyped_storage().nbytes(), not output.nbytes",
     change("pack(output)", f"pack(output)\n        if storages: {OUTPUTS_OWN}.nbytes")),
    ("the output is counted though it is the inputs",
     "a model can return its inputs: leave out of the output, too, what existed before",
     change("pack(output)", OUTPUTS_OWN + ".untyped_storage().nbytes()")),
    ("what autograd saves is gone before the pass has ended",
     "pack(tensor) returned something that does not hold the tensor: its memory is reused, so two storages have the "
     "same address. Return tensor.detach()",
     change(PACKED, "return None")),
    (CHANGED + "model: layer 1 (BatchNorm1d) is left in training mode", "", add("model.train()", before="del output")),
    (CHANGED + "model: it is left in eval mode", "put it back in a finally",
     change("device = inputs.device", f"device = inputs.device\n    {MODES}\n    model.eval()(inputs)\n    {BACK}")),
    (CHANGED + "model: it has a hook that it did not have", "handle.remove()",
     add("model.register_forward_hook(lambda *args: None)", before="del output")),
    (CHANGED + "inputs: inputs.requires_grad is True, not False", "",
     add("inputs.requires_grad_()", before="del output")),
)  # fmt: skip
