"""Answers to "a network without BatchNorm": where the norms are, what they have, and all that is not a norm."""

import copy
from collections import OrderedDict

from torch import nn

from ..bank import Bank
from ..edits import add, change, drop

BANK = Bank("batch_norm_free", "without_batch_norm")
SOLUTION = BANK.solution
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
COPY = "copied = copy.deepcopy(model)"
WALK = "copied.named_modules(remove_duplicate=False)"
IS_NORM = "isinstance(old, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)"
MAKE = "nn.GroupNorm(groups, old.num_features, eps=old.eps, affine=old.affine)"
HAND_OVER = "new.weight, new.bias = old.weight, old.bias"
SET = "setattr(copied.get_submodule(parent), last, new.train(old.training))"
RETURN = "return copied"


def replaced(model, make):
    """A copy of `model` with `make(norm)` for each BatchNorm, the same one in all of its places."""
    model, made = copy.deepcopy(model), {}
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, BATCH_NORMS):
                made[child] = made.get(child) or make(child).train(child.training)
                module._modules[name] = made[child]
    return model


class OwnNorm(nn.Module):
    """Parameters of other names, in another order; a formula of (N, groups, channels of a group, …), dims and eps."""

    def __init__(self, old, groups, formula):
        super().__init__()
        self.groups, self.eps, self.formula = groups, old.eps, formula
        self.shift, self.scale = old.bias, old.weight

    def forward(self, x):
        parts, shape = x.unflatten(1, (self.groups, -1)), (1, -1) + (1,) * (x.ndim - 2)
        out = self.formula(parts, tuple(range(2, parts.ndim)), self.eps).flatten(1, 2)
        return out if self.scale is None else out * self.scale.view(shape) + self.shift.view(shape)


def own(formula):
    """An answer with norms of this formula."""

    def with_a_norm_of_its_own(model, groups):
        return replaced(model, lambda old: OwnNorm(old, groups, formula))

    return with_a_norm_of_its_own


def variance(x, dims, correction=0):
    return x.var(dims, correction=correction, keepdim=True)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def by_recursion(model, groups):
    def walk(module):
        if not isinstance(module, BATCH_NORMS):
            for name, child in module._modules.items():
                setattr(module, name, walk(child))
            return module
        if module not in made:
            new = nn.GroupNorm(groups, module.num_features, module.eps, module.affine)
            for name, p in module.named_parameters():
                if p not in made:
                    made[p] = nn.Parameter(p.detach().clone(), p.requires_grad)
                setattr(new, name, made[p])
            made[module] = new.train(module.training)
        return made[module]

    made = {}
    return walk(copy.deepcopy(model))


@BANK.right
def by_the_memo_of_deepcopy(model, groups):
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    new = SOLUTION(nn.ModuleList(norms), groups)
    return copy.deepcopy(model, dict(zip(map(id, norms), new, strict=True)))


BANK.right(own(lambda x, dims, eps: (x - x.mean(dims, True)) * (variance(x, dims) + eps).rsqrt()))

# --- wrong: BatchNorm stays ----------------------------------------------------------------------------


def walks(condition):
    """An answer that replaces what fulfils this condition only."""
    return change(IS_NORM, condition)


def stays(instead, *edits):
    """An answer that does this with the BatchNorm, and leaves it where it is."""
    return (change(SET, instead), *edits)


ALL_THREE = "nn.BatchNorm1d, 2d and 3d are asked for, wherever and however they are"
BANK.mistakes(
    ("every BatchNorm is still there",
     "assigning to a loop variable, or returning from model.apply, replaces nothing: set the attribute on the parent "
     "module (setattr)", stays("old = new"),
     stays("pass", change(RETURN, "return copied.apply(lambda old: nn.GroupNorm(groups, 8))"))),
    ("another momentum does not change what training normalises with",
     "momentum is for the running statistics: each micro-batch is normalised by its own mean and variance all the same",
     stays("old.momentum = 0.1 / 4")),
    ("BatchNorm in evaluation mode is not a way to train",
     "eval() makes it use its running statistics, which are then never learned, and which know nothing of these data",
     stays("old.eval()"), stays("copied.eval()")),
    ("without running statistics, training normalises as before",
     "track_running_stats is about evaluation: training normalises with the micro-batch's own mean and variance",
     stays("old.track_running_stats = False")),
    ("a BatchNorm with another forward is still there",
     "its state has running statistics, and what is saved is a BatchNorm: put the new norm in its place",
     stays("old.forward = new.forward")),
    ("SyncBatchNorm is still a batch norm",
     "it shares statistics between processes at one moment; micro-batches come one after the other",
     stays("pass", change(RETURN, "return nn.SyncBatchNorm.convert_sync_batchnorm(copied)"))),
    ("the new norms are beside the old ones, not in their places",
     "setattr(model, '3.norm', …) adds a module of that name to the model itself: set the last part of the name on the "
     "parent, which model.get_submodule gives", stays("setattr(copied, name, new)")),
    ("a name with dots is a path",
     "add the norm to its parent, model.get_submodule(path), by the last part of the name",
     stays("copied.add_module(name, new)")),
    ("the model itself came back", "return the copy", change(RETURN, "return model")),
    ("only the first place of each norm at the top level is replaced",
     "named_children() goes one level down, and gives each module once: walk named_modules(remove_duplicate=False)",
     change(WALK, "copied.named_children()")),
    ("a BatchNorm that stands in two places is replaced in the first",
     "named_modules() gives each module once; with remove_duplicate=False it gives each place",
     change(WALK, "copied.named_modules()")),
    ("the last norm is still there", "the walk ends before it", change(f"list({WALK})", f"list({WALK})[:-1]")),
    ("only the first BatchNorm is replaced", "a break or a return inside the loop ends it", add("break", after=SET)),
    ("only the top level's norms are replaced",
     "children() goes one level down; recurse, or walk named_modules and set each on its parent",
     walks(f'{IS_NORM} and "." not in name')),
    ("norms three levels down are still there", "recurse", walks(f'{IS_NORM} and name.count(".") < 2')),
    ("only BatchNorm2d is replaced", ALL_THREE, walks("isinstance(old, nn.BatchNorm2d)")),
    ("BatchNorm1d is still there", ALL_THREE, walks("isinstance(old, nn.BatchNorm2d | nn.BatchNorm3d)")),
    ("BatchNorm3d is still there", ALL_THREE, walks("isinstance(old, nn.BatchNorm1d | nn.BatchNorm2d)")),
    ("norms are known by their names", "in a Sequential they have numbers: isinstance", walks('"norm" in name')),
    ("norms without running statistics are still there", ALL_THREE,
     walks(f"{IS_NORM} and old.running_mean is not None")),
    ("norms without weight and bias are still there", ALL_THREE, walks(f"{IS_NORM} and old.affine")),
    ("norms in evaluation mode are still there", ALL_THREE, walks(f"{IS_NORM} and old.training")),
    ("frozen norms are still there", ALL_THREE, walks(f"{IS_NORM} and old.affine and old.weight.requires_grad")),
    ("an InstanceNorm is replaced, too", ALL_THREE, walks("isinstance(old, nn.modules.batchnorm._NormBase)")),
    ("norms of other kinds are replaced, too", ALL_THREE, walks('"Norm" in type(old).__name__')),
)  # fmt: skip

# --- wrong: another norm -------------------------------------------------------------------------------


def norm(make, *edits):
    """With `make` in the place of what makes the new norm."""
    return (change(MAKE, make), *edits)


def groups(number):
    return change("GroupNorm(groups", f"GroupNorm({number}")


def then(line):
    """With this line after the new norm has been given its weight and bias."""
    return add(line, before="parent, _, last")


ARGUMENT = "the number of groups is an argument"
LEARNED = "hand over what BatchNorm had learned: a new GroupNorm starts at weight 1 and bias 0"
BANK.mistakes(
    ("the norms are removed, not replaced", "without one, activations grow or vanish from layer to layer",
     norm("nn.Identity()", drop(HAND_OVER))),
    ("one group for all channels is a layer norm", ARGUMENT, groups(1)),
    ("a group for each channel is an instance norm", ARGUMENT, groups("old.num_features")),
    ("there are two groups whatever is asked for", ARGUMENT, groups(2)),
    ("there are 32 groups whatever is asked for", ARGUMENT, groups(32)),
    ("the channels of a group are taken for groups",
     "channels // groups is the number of channels in a group; GroupNorm wants the number of groups",
     groups("old.num_features // groups")),
    ("groups and channels have changed places", "nn.GroupNorm takes (num_groups, num_channels), in this order",
     change("groups, old.num_features", "old.num_features, groups")),
    ("a LayerNorm is put in the place of a BatchNorm",
     "nn.LayerNorm normalises the last dimensions; in images the channels are dimension 1",
     norm("nn.LayerNorm(old.num_features, eps=old.eps)")),
    ("an InstanceNorm is put in the place of a BatchNorm",
     "it has a group for each channel, and a class for each kind of input",
     norm("nn.InstanceNorm2d(old.num_features, eps=old.eps, affine=old.affine)")),
    ("the old eps is lost", "GroupNorm's own default is 1e-05: pass eps=", change("eps=old.eps, ", "")),
    ("all norms have one eps", "each takes that of its old norm", change("old.eps", "1e-3")),
    ("a norm that had no weight and bias is given some", "affine=False leaves them out of a GroupNorm, too",
     (change(", affine=old.affine", ""), change(HAND_OVER,
      "new.weight, new.bias = (old if old.affine else new.to(old.running_mean)).parameters()"))),
    ("the new norms have no weight and bias", "affine=False is for a norm that had none",
     (change("affine=old.affine", "affine=False"), drop(HAND_OVER))),
    ("the state of a BatchNorm does not fit a GroupNorm", "it holds running statistics too: load weight and bias only",
     change(HAND_OVER, "new.load_state_dict(old.state_dict())")),
    ("the new norms have the original's own weight and bias",
     "a Parameter assigned to the new norm is the same one: take that of the copy, or copy_ the values",
     change(HAND_OVER, "new.weight, new.bias = model.get_submodule(name).weight, model.get_submodule(name).bias")),
    ("a norm that stands in two places has a weight and a bias in each",
     "they would be trained apart: keep what was made for a BatchNorm, and put the same in its other places",
     change(HAND_OVER, "for key, p in list(old._parameters.items()): setattr(new, key, copy.deepcopy(p))")),
    ("norms that share a weight have one each in the copy",
     "it would be trained as two: keep what was made for each parameter, and give both norms the same",
     lambda model, groups: copy.deepcopy(model, {id(old): SOLUTION(nn.Sequential(old), groups)[0]
                                                 for old in model.modules() if isinstance(old, BATCH_NORMS)})),
    ("the old weight is lost", LEARNED, then("if old.affine: nn.init.ones_(new.weight)")),
    ("the old bias is lost", LEARNED, then("if old.affine: nn.init.zeros_(new.bias)")),
    ("the old weight and bias are lost", LEARNED, then("new.reset_parameters()")),
    ("weight and bias have changed places", "the first multiplies, the other is added",
     then("new.weight, new.bias = old.bias, old.weight")),
    ("the new norms are in float32", "", then("new.float()")),
    ("the new norms have the dtype of the first parameter", "", then("new.to(next(copied.parameters()).dtype)")),
    ("the new norms are where the first parameter is", "", then("new.to(next(copied.parameters()).device)")),
    ("the new norms are put on the GPU", "each stays on the device of the old one", then('new.to("cuda")')),
    ("the new norms' weights and biases are not trained",
     "copy into the parameters of the new norm (copy_ under no_grad), do not detach or freeze them",
     then("new.requires_grad_(False)")),
    ("frozen weights and biases of norms are trained", "", then("new.requires_grad_(True)")),
    ("requires_grad of the weight is taken for the bias, too", "",
     then("if old.affine: new.bias.requires_grad_(old.weight.requires_grad)")),
    ("a norm without weight and bias is not thought of", "with affine=False both are None: ask before they are used",
     then("new.weight.requires_grad_(old.weight.requires_grad)")),
    ("the new norms are in training mode",
     "a new module is in training mode; new.train(old.training) takes over the old one's",
     change("new.train(old.training)", "new")),
    ("the new norms are in the mode of the whole model",
     "parts of it may be in another mode: take that of the old norm", change("old.training", "copied.training")),
    ("BatchNorms of the same size become one norm",
     "each has a weight, a bias and an eps of its own; only what was one in the model becomes one",
     (change(COPY, COPY + "; made = {}"),
      change("new.train(old.training)", "made.setdefault(old.num_features, new.train(old.training))"))),
    ("the variance is divided by n - 1", "norms divide by n: var(correction=0)",
     own(lambda x, dims, eps: (x - x.mean(dims, True)) * (variance(x, dims, 1) + eps).rsqrt())),
    ("eps is added to the standard deviation", "it is added to the variance, under the root",
     own(lambda x, dims, eps: (x - x.mean(dims, True)) / (variance(x, dims).sqrt() + eps))),
    ("the norm looks at other samples", "the mean over dimension 0 is that of the batch",
     own(lambda x, dims, eps: (x - x.mean((0, *dims), True)) * (variance(x, (0, *dims)) + eps).rsqrt())),
    ("each position is normalised by itself",
     "a group's mean and variance are those over its channels and all positions",
     own(lambda x, dims, eps: (x - x.mean(2, True)) * (variance(x, 2) + eps).rsqrt())),
    ("the mean is not taken away", "an RMS norm divides only; a group norm takes the mean away, too",
     own(lambda x, dims, eps: x * (x.square().mean(dims, True) + eps).rsqrt())),
    ("the gradient does not go through the mean and the variance",
     "they depend on the input: compute them without no_grad and detach",
     own(lambda x, dims, eps: (x - x.mean(dims, True).detach()) * (variance(x, dims) + eps).detach().rsqrt())),
    ("a new norm changed its argument inputs", "a method that ends in _",
     own(lambda x, dims, eps: x.sub_(x.mean(dims, True)).mul_((variance(x, dims) + eps).rsqrt()))),
)  # fmt: skip

# --- wrong: the model ----------------------------------------------------------------------------------


def end(last, *before):
    """With these lines in the place of the return."""
    return change(RETURN, "\n    ".join((*before, last)))


def rebuilds_what_has_children(model, groups):
    def walk(module):
        if not module._modules:
            return module
        new = nn.Sequential(OrderedDict((name, walk(child)) for name, child in module._modules.items()))
        new.training = module.training
        return new

    return walk(SOLUTION(model, groups))


ANOTHER = "your function changed its argument model: model."
ANEW = """home = copied.get_submodule(parent)
            home._modules.pop(last, None)
            home.add_module(last, new.train(old.training))"""
BANK.mistakes(
    ("nothing came back", "the function ends without a return", end("pass")),
    ("a list of norms came back", "", end("return [m for m in copied.modules() if type(m) is nn.GroupNorm]")),
    ("the state came back, not the model", "", end("return copied.state_dict()")),
    (ANOTHER + "1 is another object", "work on a copy", change(COPY, "copied = model"),
     change(COPY, "copied = copy.copy(model)")),
    (ANOTHER + "0.weight.device is cuda:0, not cpu", "", end(RETURN, 'model.to("cuda")')),
    ("the parts are copied one by one",
     "what stands in two places becomes two, and what the model itself has is lost: copy it as a whole",
     end("return nn.Sequential(*[copy.deepcopy(part).train(part.training) for part in copied])")),
    ("other layers have lost their weights", "the model was built or initialised anew: copy it, then replace the norms",
     end(RETURN, "[m.reset_parameters() for m in copied.modules() if isinstance(m, nn.Linear)]")),
    ("the model was built anew from a list of its parts", "set the attribute on the parent module instead",
     end("return nn.Sequential(*[m for m in copied.modules() if not list(m.children())])")),
    ("a module of a class of its own is rebuilt as a Sequential", "its forward is lost: set the attribute on it",
     rebuilds_what_has_children),
    ("the copy is inside another model", "all names are others then", end("return nn.Sequential(copied)")),
    ("the new norms have other names", "state_dict and optimizers know a part by its name: keep it",
     change(SET, ANEW.replace("(last, new", "('group_' + last, new"))),
    ("the new norms stand behind the other parts",
     "what is deleted and added again stands last; setattr(parent, name, norm) keeps the place", change(SET, ANEW)),
    ("the whole copy is in training mode", "leave the modes as they are", end("return copied.train()")),
    ("the whole copy is in evaluation mode",
     "a new module is in training mode; eval() on the copy switched dropout off too", end("return copied.eval()")),
    ("what was frozen is trained", "leave requires_grad as it is", end("return copied.requires_grad_(True)")),
    ("the whole copy was moved", "leave it where the model is, since whoever asked for it decides that",
     end('return copied.to("cuda")')),
    ("the whole copy is converted", "leave its dtypes as they are", end("return copied.float()")),
    ("a hook of the model is gone", "they belong to it: copy.deepcopy keeps them, and what is built anew has none",
     end(RETURN, "copied._forward_hooks.clear()")),
    ("a sample's output depends on the others in its batch", "something besides the norms looks at the whole batch",
     end(RETURN, "copied.register_forward_hook(lambda module, args, out: out - 0.1 * out.mean(0))")),
    ("the outputs agree, and the gradients do not", "a backward pass of one's own, or a hook, takes part in it",
     end(RETURN, "copied[8].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * "
                 "len(grad_in[0]),))")),
)  # fmt: skip
