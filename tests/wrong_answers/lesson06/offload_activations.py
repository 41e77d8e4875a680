"""Answers to "offload activations, and nothing else": what the hooks send, keep and bring back."""

import contextlib

import torch
from torch.autograd.graph import saved_tensors_hooks

from gpulab.check.lesson06.sections import SECTIONS

from ..bank import Bank
from ..edits import change, solution

BANK = Bank("offload_activations", SECTIONS, solution=(6, "offload"))
BANK.right(solution(6, "offload"))


def storages(model):
    return {p.untyped_storage().data_ptr() for p in model.parameters()}


def stays(tensor, model, min_bytes):
    return tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in storages(model)


def back(packed):
    device, tensor = packed
    return tensor.to(device)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
@contextlib.contextmanager
def a_generator_with_its_decorator(model, min_bytes):
    def pack(tensor):
        if stays(tensor, model, min_bytes):
            return tensor.detach()
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        host.copy_(tensor, non_blocking=True)
        return host, tensor.device

    def unpack(packed):
        return packed if isinstance(packed, torch.Tensor) else packed[0].to(packed[1], non_blocking=True)

    with saved_tensors_hooks(pack, unpack):
        yield


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
def copies_in_a_side_stream(model, min_bytes):
    return in_a_side_stream()(model, min_bytes)


@BANK.right
class AClassOfItsOwn(saved_tensors_hooks):
    def __init__(self, model, min_bytes):
        places = storages(model)

        def pack(tensor):
            large = tensor.numel() * tensor.element_size() >= min_bytes
            own = tensor.untyped_storage().data_ptr() in places
            return tensor.device, tensor.to("cpu") if large and not own else tensor.detach()

        super().__init__(pack, back)


@BANK.right
def knows_views_by_their_base(model, min_bytes):
    def pack(tensor):
        base = tensor if tensor._base is None else tensor._base
        weight = any(base is p or base.data_ptr() == p.data_ptr() for p in model.parameters())
        if weight or tensor.nbytes < min_bytes:
            kept = tensor.detach()
            return lambda: kept
        host, device = tensor.cpu(), tensor.device
        return lambda: host.to(device)

    return saved_tensors_hooks(pack, lambda fetch: fetch())


# --- wrong: what is sent -------------------------------------------------------------------------------

SENT = "weights are sent to the host"
SENT_WHY = (
    "they are on the GPU anyway. A product keeps a transposed view of its weight, which is another tensor on the same "
    "storage: compare untyped_storage().data_ptr()"
)
SMALL = "tensor.nbytes < min_bytes or "
OWN = "tensor.untyped_storage().data_ptr() in weights"
STAYS = "return None, tensor.detach()"
GOES = 'return tensor.device, tensor.to("cpu")'
HOOKS = "return torch.autograd.graph.saved_tensors_hooks(pack, unpack)"
BANK.mistake(
    "everything",
    "everything is sent to the host",
    "weights are on the GPU anyway, and small tensors cost a launch and a wait each",
    change(SMALL + OWN, "False"),
)
BANK.mistake(
    "pytorchs_own",
    "everything is sent to the host",
    "",
    change(HOOKS, "return torch.autograd.graph.save_on_cpu(pin_memory=True)"),
    same_as="everything",
)
BANK.mistake("knows_weights_by_identity", SENT, SENT_WHY, change(OWN, "any(tensor is p for p in model.parameters())"))
BANK.mistake(
    "knows_weights_by_their_start",
    "a slice of a weight is sent to the host",
    "a view need not begin where its weight does: compare untyped_storage().data_ptr()",
    change("p.untyped_storage()", "p"),
    change("tensor.untyped_storage()", "tensor"),
)
BANK.mistake(
    "knows_views_by_their_size",
    "tensors that are as large as a weight stay",
    "a size says nothing of whose memory it is: compare untyped_storage().data_ptr()",
    change(OWN, "tensor.nbytes in {p.nbytes for p in model.parameters()} or " + OWN),
)
BANK.mistake(
    "returns_the_tensor_itself",
    "what stays is kept as the tensor itself",
    "pack returned the tensor that it was given. A layer that keeps its own output, as Tanh does, then holds itself "
    "for ever: what stays goes back as tensor.detach()",
    change(STAYS, "return None, tensor"),
)
BANK.mistake(
    "whatever_the_size",
    "small tensors are sent to the host",
    "tensors of fewer than min_bytes stay: each copy costs a launch and a wait",
    change(SMALL, ""),
)
BANK.mistake(
    "counts_elements",
    "tensors of more than min_bytes stay on the GPU",
    "numel() counts elements; nbytes counts bytes, four for each float32",
    change("tensor.nbytes", "tensor.numel()"),
)
BANK.mistake(
    "more_than",
    "a tensor of exactly min_bytes stays on the GPU",
    "“at least” includes it: only tensors with nbytes < min_bytes stay",
    change("nbytes < min_bytes", "nbytes <= min_bytes"),
)
BANK.mistake(
    "keeps_the_original",
    "the copies are on the host, and the originals still on the GPU",
    "what pack returns stays alive until backward, and a tensor of the GPU is in it, or in a list or dictionary of "
    "yours. Note its device, not the tensor",
    change(GOES, 'return tensor, tensor.to("cpu")'),
    change("tensor.to(device)", "tensor.to(device.device)"),
)
BANK.mistake(
    "does_nothing",
    "nothing has left the GPU",
    "hooks act on what is saved while they are on, so they must be on during forward; and pack must return the copy",
    change(HOOKS, "import contextlib\n    return contextlib.nullcontext()"),
)
BANK.mistake(
    "forgets_the_copy",
    "nothing has left the GPU",
    "",
    change(GOES, 'tensor.to("cpu")\n        ' + STAYS),
    same_as="does_nothing",
)
BANK.mistake(
    "floats_only",
    "only tensors of one dtype leave the GPU",
    "masks and indices are kept too, and have bytes",
    change(SMALL, "tensor.dtype != torch.float32 or " + SMALL),
)
BANK.mistake(
    "requires_a_gradient",
    "only tensors that require a gradient leave the GPU",
    "autograd keeps inputs and intermediate results that need none too: the size decides",
    change(SMALL, "not tensor.requires_grad or " + SMALL),
)


@BANK.wrong("the model was moved", "the weights stay where they are: activations are what is kept for backward")
@contextlib.contextmanager
def moves_the_model(model, min_bytes):
    with solution(6, "offload")(model, min_bytes):
        yield
    model.to("cpu")


# --- wrong: streams that do not wait --------------------------------------------------------------------


@BANK.wrong(
    "a copy in a side stream may begin before what it copies is there",
    "side.wait_stream(torch.cuda.current_stream()) before each copy",
)
def copies_too_early(model, min_bytes):
    return in_a_side_stream(before=False)(model, min_bytes)


@BANK.wrong(
    "a tensor is freed, and its memory used again, while a side stream may still copy it",
    "tensor.record_stream(side) tells the allocator, or hold it until the copy is done",
)
def records_nothing(model, min_bytes):
    return in_a_side_stream(record=False)(model, min_bytes)


@BANK.wrong(
    "backward may take what is on the host before it has arrived there",
    "note an event after each copy, and wait for it in unpack",
)
def takes_back_too_early(model, min_bytes):
    return in_a_side_stream(after=False)(model, min_bytes)


# --- wrong: what comes back ----------------------------------------------------------------------------

BANK.mistake(
    "stays_on_the_host",
    "what was sent does not come back",
    "backward got a tensor on another device than the one it was kept on: unpack brings it back to the device that "
    "pack noted",
    change("tensor if device is None else tensor.to(device)", "tensor"),
)
BANK.mistake(
    "always_to_the_first_gpu",
    "everything comes back to “cuda”",
    "the device a tensor came from need not be “cuda”: pack must note tensor.device",
    change("tensor.to(device)", 'tensor.to("cuda")'),
)
BANK.mistake(
    "in_half",
    "the copies are rounded",
    "in 16 bits they are half the size, and other numbers",
    change('tensor.to("cpu")', 'tensor.to("cpu").half()'),
    change("tensor.to(device)", "tensor.to(device).float()"),
)
KEPT = "kept = []\n\n    def pack"
BANK.mistake(
    "last_in_first_out",
    "backward got other tensors than were kept",
    "it may ask in any order, and for one tensor again, so a list that is emptied on the way will not do. Return from "
    "pack what unpack needs",
    change("def pack", KEPT),
    change(GOES, 'kept.append((tensor.device, tensor.to("cpu")))'),
    change("device, tensor = packed", "device, tensor = packed or (kept[-1] if len(kept) == 1 else kept.pop())"),
)
BANK.mistake(
    "empties_its_list",
    "a list of what was kept is emptied on the way",
    "backward may ask for a tensor again, so nothing may be taken out of a list: return from pack what unpack needs",
    change("def pack", KEPT),
    change(GOES, 'kept.append((tensor.device, tensor.to("cpu")))'),
    change("device, tensor = packed", "device, tensor = packed or kept.pop()"),
)
BANK.mistake(
    "returns_the_pair",
    "unpack returns no tensor",
    "unpack must return a tensor: from what pack returned, take the copy",
    change("device, tensor = packed\n        return tensor if device is None else tensor.to(device)", "return packed"),
)
BANK.mistake(
    "unpack_with_two_arguments",
    "unpack takes two arguments",
    "pack is given the tensor, unpack what pack returned: one argument each",
    change("def unpack(packed):\n        device, tensor = packed", "def unpack(device, tensor):"),
)
BANK.mistake(
    "keeps_no_graph",
    "the forward pass runs without a graph",
    "no_grad keeps nothing, and computes no gradients",
    change(HOOKS, "return torch.no_grad()"),
)

# --- wrong: the context --------------------------------------------------------------------------------

BANK.mistake("returns_nothing", "nothing came back", "the function ends without a return", change(HOOKS, HOOKS[7:]))
BANK.mistake(
    "returns_the_hooks",
    "the two hooks came back",
    "these are the hooks: return saved_tensors_hooks(pack, unpack) with them",
    change(HOOKS, "return pack, unpack"),
)
BANK.mistake(
    "forgets_the_decorator",
    "a generator came back",
    "a function with yield becomes a context manager by @contextlib.contextmanager",
    change(HOOKS, HOOKS.replace("return", "with") + ":\n        yield"),
)
BANK.mistake(
    "enters_by_hand",
    "the hooks are still on after the context has ended",
    "they were entered by hand, or pushed, and nobody takes them back: return the context manager itself",
    change(HOOKS, HOOKS[7:] + ".__enter__()\n    import contextlib\n    return contextlib.nullcontext()"),
)
BANK.mistake(
    "measures_the_storage",
    "small parts of a large tensor are sent to the host",
    "a view has bytes of its own, tensor.nbytes; its storage may have more",
    change("tensor.nbytes < min_bytes", "tensor.untyped_storage().nbytes() < min_bytes"),
)
BANK.mistake(
    "knows_trained_weights_only",
    "frozen weights are sent to the host",
    "a weight that is not trained is kept for the gradient of what comes before it, and is a parameter all the same",
    change("for p in model.parameters()}", "for p in model.parameters() if p.requires_grad}"),
)
BANK.mistake(
    "keeps_floats_only",
    "what comes back has another dtype",
    "indices are kept too, and they are no floats: bring back what was there",
    change('tensor.to("cpu")', 'tensor.float().to("cpu")'),
)
BANK.mistake(
    "buffers_stay",
    "buffers stay on the GPU as weights do",
    "state_dict() has the buffers too: ask for parameters()",
    change("for p in model.parameters()}", "for p in model.state_dict().values()}"),
)
BANK.mistake(
    "comes_back_as_float32",
    "all floats come back as float32",
    "weights and activations have other dtypes too: bring back the one that was there",
    change("tensor.to(device)", "tensor.to(device, torch.float32 if tensor.is_floating_point() else tensor.dtype)"),
)
BANK.mistake(
    "by_way_of_float32",
    "float64 is rounded on the way",
    "float32 has half of its digits: copy the tensor in its own dtype",
    change(
        GOES, "return (tensor.device, tensor.dtype), (tensor.float() if tensor.is_floating_point() else tensor).cpu()"
    ),
    change("tensor.to(device)", "tensor.to(*device)"),
)
BANK.mistake(
    "by_way_of_numpy",
    "a copy is made with NumPy",
    'it has no bfloat16: tensor.to("cpu") copies every dtype',
    change('tensor.to("cpu")', "torch.from_numpy(tensor.detach().cpu().numpy())"),
)


@BANK.wrong(
    "the hooks stay on after an exception",
    "a generator goes on behind yield only if nothing was raised there: have yield in the with of the hooks, or in a "
    "try with finally",
)
@contextlib.contextmanager
def leaves_by_hand(model, min_bytes):
    hooks = solution(6, "offload")(model, min_bytes)
    hooks.__enter__()
    yield
    hooks.__exit__(None, None, None)


@BANK.wrong("an exception of the forward pass is swallowed", "let it out: the hooks end by themselves")
@contextlib.contextmanager
def swallows_exceptions(model, min_bytes):
    with solution(6, "offload")(model, min_bytes), contextlib.suppress(Exception):
        yield
