"""Answers to "what BatchNorm breaks": a copy of a model with a group norm in the place of each BatchNorm."""

import copy

import torch
from torch import nn

from gpulab.check.lesson08.misconceptions import SECTIONS

from ..bank import Bank

BANK = Bank("batch_norm_free", SECTIONS)


def group_norm(old, groups):
    """The right norm for the place of `old`."""
    new = nn.GroupNorm(groups, old.num_features, eps=old.eps, device=old.weight.device, dtype=old.weight.dtype)
    new.load_state_dict({"weight": old.weight, "bias": old.bias})
    return new


def replaced(model, make):
    """`model` with `make(norm)` for each BatchNorm; answers that are wrong in the norm call it."""
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, make(child))
        else:
            replaced(child, make)
    return model


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def by_recursion(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, groups))


@BANK.right
def by_names(model, groups):
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, group_norm(module, groups))
    return model


@BANK.right
def by_set_submodule(model, groups):
    model = copy.deepcopy(model)
    for name, module in dict(model.named_modules()).items():
        if type(module) is nn.BatchNorm2d:
            new = nn.GroupNorm(groups, module.num_features, module.eps).to(module.weight)
            with torch.no_grad():
                new.weight.copy_(module.weight)
                new.bias.copy_(module.bias)
            model.set_submodule(name, new)
    return model


class OwnNorm(nn.Module):
    def __init__(self, old, groups):
        super().__init__()
        self.groups, self.eps = groups, old.eps
        self.scale = nn.Parameter(old.weight.detach().clone())
        self.shift = nn.Parameter(old.bias.detach().clone())

    def forward(self, x):
        parts = x.unflatten(1, (self.groups, -1)).flatten(2)
        centred = parts - parts.mean(2, keepdim=True)
        normal = centred * (centred.square().mean(2, keepdim=True) + self.eps).rsqrt()
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return normal.view_as(x) * self.scale.view(shape) + self.shift.view(shape)


@BANK.right
def with_a_norm_of_its_own(model, groups):
    return replaced(copy.deepcopy(model), lambda old: OwnNorm(old, groups))


@BANK.right
def walks_the_children_of_every_module(model, groups):
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                new = nn.GroupNorm(groups, child.num_features, eps=child.eps).to(child.weight)
                new.load_state_dict(child.state_dict(), strict=False)
                setattr(module, name, new)
    return model


# --- wrong: BatchNorm stays ----------------------------------------------------------------------------


@BANK.wrong("every BatchNorm is still there", "assigning to a loop variable, or")
def assigns_to_the_loop_variable(model, groups):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module = group_norm(module, groups)
    return model


@BANK.wrong("every BatchNorm is still there", same_as="assigns_to_the_loop_variable")
def changes_nothing(model, groups):
    return model


@BANK.wrong("some BatchNorms are still there", "children() goes one level down")
def replaces_the_top_level(model, groups):
    model = copy.deepcopy(model)
    for name, child in model.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(model, name, group_norm(child, groups))
    return model


@BANK.wrong("every BatchNorm is still there", "returning from model.apply", same_as="assigns_to_the_loop_variable")
def returns_from_apply(model, groups):
    model = copy.deepcopy(model)
    return model.apply(lambda module: group_norm(module, groups) if isinstance(module, nn.BatchNorm2d) else module)


@BANK.wrong("the new norms are beside the old ones, not in their places", "model.get_submodule")
def sets_a_name_with_dots(model, groups):
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            setattr(model, name, group_norm(module, groups))
    return model


@BANK.wrong("your function raised KeyError", "a name with dots is a path")
def adds_a_module_with_dots(model, groups):
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            model.add_module(name, group_norm(module, groups))
    return model


@BANK.wrong("SyncBatchNorm is still a batch norm", "between processes")
def synchronises(model, groups):
    return nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))


@BANK.wrong("another momentum does not change what training normalises with", "which training does not use")
def lowers_the_momentum(model, groups):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1 / 4
    return model


@BANK.wrong("BatchNorm in evaluation mode is not a way to train", "running statistics, which are then never learned")
def freezes_the_norms(model, groups):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


@BANK.wrong("BatchNorm in evaluation mode is not a way to train", same_as="freezes_the_norms")
def switches_to_evaluation(model, groups):
    return copy.deepcopy(model).eval()


@BANK.wrong("without running statistics, training normalises as before", "track_running_stats is about evaluation")
def stops_the_running_statistics(model, groups):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
    return model


# --- wrong: another norm -------------------------------------------------------------------------------


@BANK.wrong("a norm gives other values than the group norm asked for", "removed, not replaced")
def removes_the_norms(model, groups):
    return replaced(copy.deepcopy(model), lambda old: nn.Identity())


@BANK.wrong("a norm gives other values than the group norm asked for", "starts at weight 1 and bias 0")
def loses_weight_and_bias(model, groups):
    return replaced(
        copy.deepcopy(model), lambda old: nn.GroupNorm(groups, old.num_features, old.eps, dtype=old.weight.dtype)
    )


@BANK.wrong("a norm gives other values than the group norm asked for", "weight, bias and eps are all lost")
def loses_weight_bias_and_eps(model, groups):
    return replaced(copy.deepcopy(model), lambda old: nn.GroupNorm(groups, old.num_features, dtype=old.weight.dtype))


@BANK.wrong("a norm gives other values than the group norm asked for", "the old eps, 0.001, is lost")
def loses_eps(model, groups):
    def make(old):
        new = group_norm(old, groups)
        new.eps = 1e-5
        return new

    return replaced(copy.deepcopy(model), make)


@BANK.wrong("a norm gives other values than the group norm asked for", "the old bias is not")
def loses_the_bias(model, groups):
    def make(old):
        new = nn.GroupNorm(groups, old.num_features, old.eps, dtype=old.weight.dtype)
        new.weight = nn.Parameter(old.weight.detach().clone())
        return new

    return replaced(copy.deepcopy(model), make)


@BANK.wrong("a norm gives other values than the group norm asked for", "is a layer norm")
def takes_one_group(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, 1))


@BANK.wrong("a norm gives other values than the group norm asked for", "is an instance norm")
def takes_a_group_for_each_channel(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, old.num_features))


@BANK.wrong("a norm gives other values than the group norm asked for", "the number of channels in a group")
def divides_the_channels_by_the_groups(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, old.num_features // groups))


@BANK.wrong("your function raised RuntimeError", "running statistics too")
def loads_the_whole_state(model, groups):
    def make(old):
        new = nn.GroupNorm(groups, old.num_features, eps=old.eps, dtype=old.weight.dtype)
        new.load_state_dict(old.state_dict())
        return new

    return replaced(copy.deepcopy(model), make)


@BANK.wrong("the norm at '1' raised RuntimeError", "normalises the last dimensions")
def takes_a_layer_norm(model, groups):
    return replaced(copy.deepcopy(model), lambda old: nn.LayerNorm(old.num_features, old.eps, dtype=old.weight.dtype))


@BANK.wrong("your function raised ValueError", "takes (num_groups, num_channels)")
def swaps_the_arguments(model, groups):
    return replaced(copy.deepcopy(model), lambda old: nn.GroupNorm(old.num_features, groups))


@BANK.wrong("a norm gives other values than the group norm asked for", "whatever the argument says")
def always_takes_four_groups(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, 4))


@BANK.wrong("the new norms have another dtype than the model", "float32 on the CPU")
def forgets_the_dtype(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, groups).float())


@BANK.wrong("the new norm's weight and bias are not trained", "do not detach or freeze them")
def freezes_the_new_norms(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, groups).requires_grad_(False))


@BANK.wrong("a sample's output still depends on the others in its batch", "something besides the norms")
def centres_the_outputs(model, groups):
    new = by_recursion(model, groups)
    new.register_forward_hook(lambda module, args, out: out - 0.1 * out.mean(0))
    return new


@BANK.wrong("four micro-batches still give another gradient than the full batch", "a custom norm or a hook")
def scales_the_gradient_by_the_batch(model, groups):
    new = by_recursion(model, groups)
    new[5].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * len(grad_in[0]),))
    return new


@BANK.wrong("the norm at '1' raised TypeError")
def takes_a_norm_that_cannot_be_called(model, groups):
    class Broken(nn.GroupNorm):
        def forward(self):
            return None

    return replaced(copy.deepcopy(model), lambda old: Broken(groups, old.num_features, dtype=old.weight.dtype))


# --- wrong: the model ----------------------------------------------------------------------------------


@BANK.wrong("a model is wanted back", "ends without a return")
def returns_nothing(model, groups):
    by_recursion(model, groups)


@BANK.wrong("a model is wanted back", "return the whole model")
def returns_the_norms(model, groups):
    return [group_norm(m, groups) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]


@BANK.wrong("the model that was passed in was changed", "work on copy.deepcopy(model)")
def works_in_place(model, groups):
    return replaced(model, lambda old: group_norm(old, groups))


@BANK.wrong("the model that was passed in was changed", same_as="works_in_place")
def copies_too_little(model, groups):
    return replaced(copy.copy(model), lambda old: group_norm(old, groups))


@BANK.wrong("the model that was passed in was changed", same_as="works_in_place")
def switches_the_original_to_evaluation(model, groups):
    new = by_recursion(model, groups)
    model.eval()
    return new


@BANK.wrong("the new model and the original share weights", "a Parameter assigned to the new norm is the old one")
def hands_the_parameters_over(model, groups):
    def make(old):
        new = nn.GroupNorm(groups, old.num_features, old.eps)
        new.weight, new.bias = old.weight, old.bias
        return new

    new = replaced(copy.deepcopy(model), lambda old: group_norm(old, groups))
    norms = iter([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    for name, module in list(new.named_modules()):
        if isinstance(module, nn.GroupNorm):
            new.set_submodule(name, make(next(norms)))
    return new


@BANK.wrong("other weights of the model are not what they were", "initialised anew")
def initialises_anew(model, groups):
    new = by_recursion(model, groups)
    for module in new.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    return new


@BANK.wrong("the model has another structure", "built anew from a list of its parts")
def flattens_the_model(model, groups):
    parts = [m for m in by_recursion(model, groups).modules() if not list(m.children())]
    return nn.Sequential(*parts)


@BANK.wrong("the new model is in evaluation mode", "switched dropout off too")
def evaluates_the_new_model(model, groups):
    return by_recursion(model, groups).eval()


# --- with a GPU ----------------------------------------------------------------------------------------


@BANK.wrong("the new norms are on another device than the model", "wherever that is", on_gpu=True)
def makes_the_norms_on_the_gpu(model, groups):
    return replaced(copy.deepcopy(model), lambda old: group_norm(old, groups).to("cuda"))


@BANK.wrong("the new norms are on another device than the model", "the whole copy was moved", on_gpu=True)
def moves_the_copy_to_the_gpu(model, groups):
    return by_recursion(model, groups).to("cuda")


@BANK.wrong("the model that was passed in was changed", "work on copy.deepcopy", on_gpu=True)
def moves_the_original_to_the_gpu(model, groups):
    return by_recursion(model.to("cuda"), groups)
