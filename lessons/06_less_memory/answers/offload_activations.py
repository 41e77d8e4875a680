"""Answers to "offload activations, and nothing else": what the hooks send, keep and bring back."""

import torch
from banks.bank import Bank
from banks.edits import add, change
from torch.autograd.graph import saved_tensors_hooks

BANK = Bank("offload_activations", "offload")


def stays(tensor, model, min_bytes):
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights


def in_a_side_stream(before=True, record=True, after=True):
    """Copies that the host does not wait for, in a stream of their own; without one of the three waits if told so."""

    def offload(model, min_bytes):
        side = {}

        def pack(tensor):
            if stays(tensor, model, min_bytes) or not tensor.is_cuda:
                return tensor.detach()
            with torch.cuda.device(tensor.device):
                main, own = torch.cuda.current_stream(), side.setdefault(tensor.device, torch.cuda.Stream())
                if before:
                    own.wait_stream(main)
                with torch.cuda.stream(own):
                    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
                    host.copy_(tensor, non_blocking=True)
                if record:
                    tensor.record_stream(own)
                return host, tensor.device, own.record_event()

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            host, device, done = packed
            with torch.cuda.device(device):
                if after:
                    torch.cuda.current_stream().wait_event(done)
                return host.to(device, non_blocking=True)

        return saved_tensors_hooks(pack, unpack)

    return offload


@BANK.right
class AClassOfItsOwn(saved_tensors_hooks):
    def __init__(self, model, min_bytes):
        def pack(tensor):
            return tensor.device, tensor.detach() if stays(tensor, model, min_bytes) else tensor.to("cpu")

        super().__init__(pack, lambda packed: packed[1].to(packed[0]))


SMALL, OWN = "tensor.nbytes < min_bytes or ", "tensor.untyped_storage().data_ptr() in weights"
STAYS, GOES, BACK = "return None, tensor.detach()", 'return tensor.device, tensor.to("cpu")', "tensor.to(device)"
HOOKS = "return torch.autograd.graph.saved_tensors_hooks(pack, unpack)"
OF_MODEL, UNPACKED, WITH = "for p in model.parameters()}", "device, tensor = packed", HOOKS.replace("return", "with")
GENERATOR = change("def offload", "import contextlib\n@contextlib.contextmanager\ndef offload")
LIST = (change("def pack", "kept = []\n\n    def pack"), change(GOES, 'kept.append((tensor.device, tensor.to("cpu")))'))
PINNED = 'torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)'
BANK.right(
    in_a_side_stream(),
    (GENERATOR, change(HOOKS, WITH + ":\n        yield"), change(GOES, f"return tensor.device, {PINNED}")),
)
BANK.mistakes(
    # what is sent
    ("everything is sent to the host", "weights are on the GPU anyway, and small tensors cost a launch and a wait each",
     change(SMALL + OWN, "False"), change(HOOKS, "return torch.autograd.graph.save_on_cpu(pin_memory=True)")),
    ("views of weights are sent to the host",
     "they are on the GPU anyway. A matrix product keeps a transposed view of its weight, another tensor on the same "
     "storage: compare untyped_storage().data_ptr()", change(OWN, "any(tensor is p for p in model.parameters())")),
    ("a slice of a weight is sent to the host",
     "a view need not begin where its weight does: compare untyped_storage().data_ptr()",
     (change("p.untyped_storage()", "p"), change("tensor.untyped_storage()", "tensor"))),
    ("frozen weights are sent to the host",
     "a frozen weight is kept for the gradient of the layers before it, and is a parameter too",
     change(OF_MODEL, "for p in model.parameters() if p.requires_grad}")),
    ("tensors of the same size as a weight stay",
     "a size does not show whose memory it is: compare untyped_storage().data_ptr()",
     change(OWN, "tensor.nbytes in {p.nbytes for p in model.parameters()} or " + OWN)),
    ("buffers stay on the GPU like weights", "state_dict() has the buffers too: use parameters()",
     change(OF_MODEL, "for p in model.state_dict().values()}")),
    ("small tensors are sent to the host", "tensors of fewer than min_bytes stay: each copy costs a launch and a wait",
     change(SMALL, "")),
    ("small parts of a large tensor are sent to the host",
     "a view has bytes of its own, tensor.nbytes; its storage may have more",
     change("tensor.nbytes", "tensor.untyped_storage().nbytes()")),
    ("tensors of more than min_bytes stay on the GPU",
     "numel() counts elements; nbytes counts bytes, four for each float32", change("tensor.nbytes", "tensor.numel()")),
    ("a tensor of exactly min_bytes stays on the GPU",
     "“at least” includes it: only tensors with nbytes < min_bytes stay", change("nbytes <", "nbytes <=")),
    ("only tensors of one dtype leave the GPU", "masks and indices are kept too, and take memory",
     change(SMALL, "tensor.dtype != torch.float32 or " + SMALL)),
    ("only tensors that require a gradient leave the GPU",
     "autograd also keeps inputs and results that need none: the size decides",
     change(SMALL, "not tensor.requires_grad or " + SMALL)),
    ("nothing has left the GPU",
     "hooks act on what is saved while they are active, so they must be active during forward; and pack must return "
     "the copy",
     change(HOOKS, "import contextlib\n    return contextlib.nullcontext()"),
     change(GOES, 'tensor.to("cpu")\n        ' + STAYS)),
    ("the copies are on the host, and the originals still on the GPU",
     "what pack returns stays alive until backward, and it, or a list or dictionary of yours, holds the GPU tensor. "
     "Keep its device, not the tensor",
     (change(GOES, 'return tensor, tensor.to("cpu")'), change(BACK, "tensor.to(device.device)")),
     (change("def pack", "originals = []\n\n    def pack"), add("originals.append(tensor.detach())", before=GOES))),
    ("what stays is kept as the tensor itself",
     "pack returned the tensor itself. A layer that keeps its own output, like Tanh, then keeps itself alive for "
     "ever: return tensor.detach() for what stays", change(STAYS, "return None, tensor")),
    ("the model was moved", "the weights stay where they are: activations are what is kept for backward",
     (GENERATOR, change(HOOKS, WITH + ':\n        yield\n    model.to("cpu")'))),
    # streams that do not wait
    ("a copy in a side stream may begin before its source is ready",
     "side.wait_stream(torch.cuda.current_stream()) before each copy", in_a_side_stream(before=False)),
    ("a tensor is freed, and its memory used again, while a side stream may still copy it",
     "tensor.record_stream(side) tells the allocator, or hold it until the copy is done",
     in_a_side_stream(record=False)),
    ("backward may read the copy on the host before it has arrived",
     "record an event after each copy, and wait for it in unpack", in_a_side_stream(after=False)),
    # what comes back
    ("what was sent is not copied back",
     "backward got a tensor on another device than the one it was kept on: unpack brings it back to the device that "
     "pack noted", change(f"tensor if device is None else {BACK}", "tensor")),
    ("everything comes back to “cuda”",
     "the device a tensor came from need not be “cuda”: pack must note tensor.device",
     change(BACK, 'tensor.to("cuda")')),
    ("the copies are rounded", "in 16 bits they take half the bytes, but have other values",
     (change('tensor.to("cpu")', 'tensor.to("cpu").half()'), change(BACK, BACK + ".float()"))),
    ("what comes back has another dtype", "indices, and floats of other sizes, are kept too: bring back the same dtype",
     change('tensor.to("cpu")', 'tensor.float().to("cpu")'),
     change(BACK, "tensor.to(device, torch.float32 if tensor.is_floating_point() else tensor.dtype)")),
    ("float64 is rounded on the way", "float32 has half of its digits: copy the tensor in its own dtype",
     (change(GOES,
             "return (tensor.device, tensor.dtype), (tensor.float() if tensor.is_floating_point() else tensor).cpu()"),
      change(BACK, "tensor.to(*device)"))),
    ("a copy is made with NumPy", 'it has no bfloat16: tensor.to("cpu") copies every dtype',
     change('tensor.to("cpu")', "torch.from_numpy(tensor.detach().cpu().numpy())")),
    ("backward got other tensors than were kept",
     "it may ask in any order, and twice for one tensor, so do not empty a list on the way. Return from pack what "
     "unpack needs",
     (*LIST, change(UNPACKED, UNPACKED + " or (kept[-1] if len(kept) == 1 else kept.pop())")),
     (*LIST, change(UNPACKED, UNPACKED + " or kept.pop()"))),
    ("unpack returns no tensor", "unpack must return a tensor: from what pack returned, take the copy",
     change(f"{UNPACKED}\n        return tensor if device is None else {BACK}", "return packed")),
    ("unpack takes two arguments", "pack gets the tensor, unpack what pack returned: one argument each",
     change(f"def unpack(packed):\n        {UNPACKED}", "def unpack(device, tensor):")),
    ("the forward pass runs without a graph", "no_grad keeps nothing, and computes no gradients",
     change(HOOKS, "return torch.no_grad()")),
    # the context
    ("nothing came back", "the function ends without a return", change(HOOKS, HOOKS[7:])),
    ("the two hooks were returned", "these are the hooks: return saved_tensors_hooks(pack, unpack) with them",
     change(HOOKS, "return pack, unpack")),
    ("a generator was returned", "a function with yield becomes a context manager by @contextlib.contextmanager",
     change(HOOKS, WITH + ":\n        yield")),
    ("the hooks are still on after the context has ended",
     "they were entered by hand, or pushed, and are never removed: return the context manager itself",
     change(HOOKS, HOOKS[7:] + ".__enter__()\n    import contextlib\n    return contextlib.nullcontext()"),
     (GENERATOR, change(HOOKS, HOOKS.replace("return", "hooks =") + "\n    hooks.__enter__()\n    try:\n        yield\n"
      "    except BaseException:\n        hooks.__exit__(None, None, None)\n        raise"))),
    ("the hooks stay on after an exception",
     "a generator continues after yield only if nothing was raised there: put yield inside the with of the hooks, or "
     "in a try with finally",
     (GENERATOR, change(HOOKS, HOOKS.replace("return", "hooks =")
      + "\n    hooks.__enter__()\n    yield\n    hooks.__exit__(None, None, None)"))),
    ("an exception of the forward pass is swallowed", "let it pass: the hooks end by themselves",
     (GENERATOR, change(HOOKS, WITH + ", contextlib.suppress(Exception):\n        yield"))),
)  # fmt: skip
