"""Answers to "offload activations, and nothing else": what the hooks send, keep and bring back."""

import contextlib

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from gpulab.check.lesson06.sections import SECTIONS

from ..bank import Bank

BANK = Bank("offload_activations", SECTIONS)


def storages(model):
    return {p.untyped_storage().data_ptr() for p in model.parameters()}


def stays(tensor, model, min_bytes):
    return tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in storages(model)


def back(packed):
    device, tensor = packed
    return tensor.to(device)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def pair_of_device_and_copy(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor.detach() if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, back)


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


@BANK.wrong("weights are sent to the host", "on the GPU anyway")
def everything(model, min_bytes):
    return saved_tensors_hooks(lambda tensor: (tensor.device, tensor.cpu()), back)


@BANK.wrong("weights are sent to the host", "on the GPU anyway", same_as="everything")
def pytorchs_own(model, min_bytes):
    return save_on_cpu(pin_memory=True)


@BANK.wrong("weights are sent to the host", "on the GPU anyway", same_as="everything")
def knows_weights_by_identity(model, min_bytes):
    def pack(tensor):
        own = any(tensor is p for p in model.parameters()) or tensor.nbytes < min_bytes
        return tensor.device, tensor.detach() if own else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("weights are sent to the host", "on the GPU anyway", same_as="everything")
def knows_weights_by_their_start(model, min_bytes):
    starts = {p.data_ptr() for p in model.parameters()}

    def pack(tensor):
        own = tensor.data_ptr() in starts or tensor.nbytes < min_bytes
        return tensor.device, tensor.detach() if own else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("a forward pass without backward stays in memory", "holds itself for ever")
def returns_the_tensor_itself(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("small tensors are sent to the host", "a launch and a wait")
def whatever_the_size(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor.detach() if stays(tensor, model, 0) else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("tensors of more than min_bytes stay on the GPU", "numel() counts elements")
def counts_elements(model, min_bytes):
    def pack(tensor):
        small = tensor.numel() < min_bytes or stays(tensor, model, 0)
        return tensor.device, tensor.detach() if small else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("a tensor of exactly min_bytes stays on the GPU, 131,072 bytes", "“at least” includes it")
def more_than(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor.detach() if stays(tensor, model, min_bytes + 1) else tensor.cpu()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("the copies are on the host, and the originals still on the GPU", "Note its device, not the tensor")
def keeps_the_original(model, min_bytes):
    def pack(tensor):
        return tensor, tensor if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0].device))


@BANK.wrong("nothing has left the GPU", "they must be on during forward")
def does_nothing(model, min_bytes):
    return contextlib.nullcontext()


@BANK.wrong("nothing has left the GPU", "they must be on during forward", same_as="does_nothing")
def forgets_the_copy(model, min_bytes):
    def pack(tensor):
        tensor.to("cpu")
        return tensor.device, tensor.detach()

    return saved_tensors_hooks(pack, back)


@BANK.wrong("the model was moved", "the weights stay where they are")
@contextlib.contextmanager
def moves_the_model(model, min_bytes):
    with pair_of_device_and_copy(model, min_bytes):
        yield
    model.to("cpu")


# --- wrong: what comes back ----------------------------------------------------------------------------


@BANK.wrong("your function raised RuntimeError", "pack must note tensor.device")
def stays_on_the_host(model, min_bytes):
    def pack(tensor):
        return tensor if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, lambda tensor: tensor)


@BANK.wrong("your function raised RuntimeError", "need not be “cuda”", same_as="stays_on_the_host")
def always_to_the_first_gpu(model, min_bytes):
    def pack(tensor):
        return tensor.detach() if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, lambda tensor: tensor.to("cuda:0"))


@BANK.wrong("the gradients are not those of a plain pass", "the copies are rounded")
def in_half(model, min_bytes):
    def pack(tensor):
        if stays(tensor, model, min_bytes):
            return tensor.device, tensor.detach(), tensor.dtype
        return tensor.device, tensor.cpu().half(), tensor.dtype

    return saved_tensors_hooks(pack, lambda packed: packed[1].to(packed[0], packed[2]))


@BANK.wrong("the gradients are not those of a plain pass", "it may ask in any order")
def last_in_first_out(model, min_bytes):
    kept = []

    def pack(tensor):
        if stays(tensor, model, min_bytes):
            return tensor.detach()
        kept.append((tensor.device, tensor.cpu()))
        return None

    def unpack(packed):
        if packed is not None:
            return packed
        device, tensor = kept[-1] if len(kept) == 1 else kept.pop()
        return tensor.to(device)

    return saved_tensors_hooks(pack, unpack)


@BANK.wrong("your function raised IndexError", "nothing may be taken out of a list")
def empties_its_list(model, min_bytes):
    kept = []

    def pack(tensor):
        if stays(tensor, model, min_bytes):
            return tensor.detach()
        kept.append((tensor.device, tensor.cpu()))
        return None

    return saved_tensors_hooks(pack, lambda packed: back(kept.pop()) if packed is None else packed)


@BANK.wrong("your function raised TypeError", "unpack must return a tensor")
def returns_the_pair(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor.detach() if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, lambda packed: packed)


@BANK.wrong("your function raised TypeError", "one argument each")
def unpack_with_two_arguments(model, min_bytes):
    def pack(tensor):
        return tensor.device, tensor.detach() if stays(tensor, model, min_bytes) else tensor.cpu()

    return saved_tensors_hooks(pack, lambda device, tensor: tensor.to(device))


@BANK.wrong("your function raised RuntimeError", "no_grad keeps nothing")
def keeps_no_graph(model, min_bytes):
    return torch.no_grad()


# --- wrong: the context --------------------------------------------------------------------------------


@BANK.wrong("no context manager came back", "without a return")
def returns_nothing(model, min_bytes):
    pair_of_device_and_copy(model, min_bytes)


@BANK.wrong("no context manager came back", "these are the hooks")
def returns_the_hooks(model, min_bytes):
    context = pair_of_device_and_copy(model, min_bytes)
    return context.pack_hook, context.unpack_hook


@BANK.wrong("no context manager came back", "@contextlib.contextmanager")
def forgets_the_decorator(model, min_bytes):
    def body():
        with pair_of_device_and_copy(model, min_bytes):
            yield

    return body()


@BANK.wrong("the hooks are still on after the context has ended", "nobody takes them back")
def enters_by_hand(model, min_bytes):
    pair_of_device_and_copy(model, min_bytes).__enter__()
    return contextlib.nullcontext()
