"""Answers to "a network without BatchNorm": where the norms are, what they have, and all that is not a norm."""

import copy

from banks.bank import Bank
from banks.edits import add, change, drop
from torch import nn

BANK = Bank("batch_norm_free", "without_batch_norm")
SOLUTION = BANK.solution
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
COPY, WALK = "copied = copy.deepcopy(model)", "copied.named_modules(remove_duplicate=False)"
IS_NORM = "isinstance(old, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)"
MAKE = "nn.GroupNorm(groups, old.num_features, eps=old.eps, affine=old.affine)"
HAND_OVER = "new.weight, new.bias = old.weight, old.bias"
SET, RETURN = "setattr(copied.get_submodule(parent), last, new.train(old.training))", "return copied"


# The new norm's own formula, of the values p of its groups, (N, groups, channels of a group, …), and its dimensions d.
FORWARD = """new.forward = lambda x, n=new: F.batch_norm(
                (lambda p, d: FORMULA)(x.unflatten(1, (groups, -1)), tuple(range(2, x.ndim + 1))).flatten(1, 2),
                x.new_zeros(x.shape[1]), x.new_ones(x.shape[1]), n.weight, n.bias, eps=1e-30)"""


def then(line):
    """With this line after the new norm has been given its weight and bias."""
    return add(line, before="parent, _, last")


def stays(instead, *edits):
    """An answer that does this with the BatchNorm, and leaves it where it is."""
    return (change(SET, instead), *edits)


def end(last, *before):
    """With these lines in the place of the return."""
    return change(RETURN, "\n    ".join((*before, last)))


def groups(number):
    return change("GroupNorm(groups", f"GroupNorm({number}")


def formula(of_p_and_d):
    return then(FORWARD.replace("FORMULA", of_p_and_d))


@BANK.right
def by_the_memo_of_deepcopy(model, groups):
    norms = [module for module in model.modules() if isinstance(module, BATCH_NORMS)]
    new = SOLUTION(nn.ModuleList(norms), groups)
    return copy.deepcopy(model, dict(zip(map(id, norms), new, strict=True)))


BANK.right(
    change("new.train(old.training)", "nn.Sequential(new).train(old.training)"),
    formula("(p - p.mean(d, True)) / (p.var(d, correction=0, keepdim=True) + n.eps).sqrt()"),
)


ANEW = """home = copied.get_submodule(parent)
            home._modules.pop(last, None)
            home.add_module(last, new.train(old.training))"""
BANK.mistakes(
    # --- BatchNorm stays ---
    ("every BatchNorm is still there",
     "assigning to a loop variable, or returning from model.apply, replaces nothing: set the attribute on the parent "
     "module (setattr)", stays("old = new")),
    ("another momentum does not change the statistics used in training",
     "momentum only affects the running statistics: each micro-batch is still normalised by its own mean and variance",
     stays("old.momentum = 0.1 / 4")),
    ("BatchNorm was put into evaluation mode",
     "eval() makes it use its running statistics, which are then never updated from these data",
     stays("old.eval()")),
    ("without running statistics, training normalises as before",
     "track_running_stats is about evaluation: training normalises with the micro-batch's own mean and variance",
     stays("old.track_running_stats = False")),
    ("a BatchNorm with another forward is still there",
     "its state has running statistics, and a BatchNorm is saved: replace it by the new norm",
     stays("old.forward = new.forward")),
    ("SyncBatchNorm is still a batch norm",
     "it shares statistics between processes; micro-batches run one after the other",
     stays("pass", change(RETURN, "return nn.SyncBatchNorm.convert_sync_batchnorm(copied)"))),
    ("the new norms were added beside the old ones, not in their places",
     "setattr(model, '3.norm', …) adds a module of that name to the model itself: set the last part of the name on the "
     "parent, which model.get_submodule gives", stays("setattr(copied, name, new)")),
    ("a BatchNorm that is used in two places is replaced only in the first",
     "named_modules() gives each module once; with remove_duplicate=False it gives each place",
     change(WALK, "copied.named_modules()")),
    ("the walk over the norms ends too early", "a break or a return inside the loop ends it",
     add("break", after=SET), change(f"list({WALK})", f"list({WALK})[:-1]")),
    ("nested norms are still there",
     "children() goes one level down; recurse, or walk named_modules(remove_duplicate=False)",
     change(WALK, "copied.named_children()"), change(IS_NORM, f'{IS_NORM} and "." not in name'),
     change(IS_NORM, f'{IS_NORM} and name.count(".") < 2')),
    *((summary, "nn.BatchNorm1d, 2d and 3d are asked for, wherever and however they are: isinstance",
       change(IS_NORM, condition)) for summary, condition in (
        ("only BatchNorm2d is replaced", "isinstance(old, nn.BatchNorm2d)"),
        ("BatchNorm1d is still there", "isinstance(old, nn.BatchNorm2d | nn.BatchNorm3d)"),
        ("BatchNorm3d is still there", "isinstance(old, nn.BatchNorm1d | nn.BatchNorm2d)"),
        ("norms are known by their names", '"norm" in name'),
        ("norms without running statistics are still there", f"{IS_NORM} and old.running_mean is not None"),
        ("norms without weight and bias are still there", f"{IS_NORM} and old.affine"),
        ("norms in evaluation mode are still there", f"{IS_NORM} and old.training"),
        ("frozen norms are still there", f"{IS_NORM} and old.affine and old.weight.requires_grad"),
        ("an InstanceNorm is replaced, too", "isinstance(old, nn.modules.batchnorm._NormBase)"),
        ("norms of other kinds are replaced, too", '"Norm" in type(old).__name__'))),
)  # fmt: skip


# --- wrong: another norm -------------------------------------------------------------------------------
LEARNED = "hand over what BatchNorm had learned: a new GroupNorm starts at weight 1 and bias 0"
BANK.mistakes(
    ("the norms are removed, not replaced", "without one, activations grow or vanish from layer to layer",
     (change(MAKE, "nn.Identity()"), drop(HAND_OVER))),
    ("one group for all channels is a layer norm", "the number of groups is an argument", groups(1)),
    ("a group for each channel is an instance norm", "the number of groups is an argument",
     groups("old.num_features")),
    ("the number of groups is wrong", "nn.GroupNorm takes the number of groups, not their size",
     groups(2), groups("old.num_features // groups")),
    ("a LayerNorm or an InstanceNorm is put in the place of a BatchNorm",
     "LayerNorm normalises the last dimensions, though channels are dimension 1; InstanceNorm each channel by itself",
     change(MAKE, "nn.LayerNorm(old.num_features, eps=old.eps)"),
     change(MAKE, "nn.InstanceNorm2d(old.num_features, eps=old.eps, affine=old.affine)")),
    ("the old eps is lost", "GroupNorm's own default is 1e-05: pass eps=", change("eps=old.eps, ", "")),
    ("all norms have one eps", "each takes the eps of its old norm", change("old.eps", "1e-3")),
    ("a norm that had no weight and bias gets new ones", "affine=False leaves them out of a GroupNorm, too",
     (change(", affine=old.affine", ""), change(HAND_OVER,
      "new.weight, new.bias = (old if old.affine else new.to(old.running_mean)).parameters()"))),
    ("the new norms have no weight and bias", "affine=False is for a norm that had none",
     (change("affine=old.affine", "affine=False"), drop(HAND_OVER))),
    ("the new norms have the original's own weight and bias",
     "a Parameter assigned to the new norm is the same one: take that of the copy, or copy_ the values",
     change(HAND_OVER, "new.weight, new.bias = model.get_submodule(name).weight, model.get_submodule(name).bias")),
    ("a norm used in two places has a separate weight and bias in each",
     "they would be trained separately: keep the norm made for a BatchNorm, and use it in its other places too",
     change(HAND_OVER, "for key, p in list(old._parameters.items()): setattr(new, key, copy.deepcopy(p))")),
    ("norms that share a weight have one each in the copy",
     "it would be trained as two: keep what was made for each parameter, and give both norms the same",
     lambda model, groups: copy.deepcopy(model, {id(old): SOLUTION(nn.Sequential(old), groups)[0]
                                                 for old in model.modules() if isinstance(old, BATCH_NORMS)})),
    ("the old weight is lost", "a new GroupNorm starts at weight 1 and bias 0",
     then("if old.affine: nn.init.ones_(new.weight)")),
    ("the old bias is lost", "a new GroupNorm starts at weight 1 and bias 0",
     then("if old.affine: nn.init.zeros_(new.bias)")),
    ("weight and bias are swapped", "the first multiplies, the other is added",
     then("new.weight, new.bias = old.bias, old.weight")),
    ("the new norms have one dtype, or one device, for all", "each has those of the old norm's weight and bias",
     then("new.float()"), then("new.to(next(copied.parameters()).dtype)"), then('new.to("cuda")'),
     then("new.to(next(copied.parameters()).device)")),
    ("requires_grad of the norms has changed",
     "each weight and each bias keeps its own: copy with copy_ under no_grad, "
     "and do not detach, freeze or unfreeze", then("new.requires_grad_(False)"), then("new.requires_grad_(True)"),
     then("if old.affine: new.bias.requires_grad_(old.weight.requires_grad)")),
    ("the new norms are in training mode", "a new module is: new.train(old.training) takes over the old one's mode",
     change("new.train(old.training)", "new")),
    ("the new norms are in the mode of the whole model", "parts of it may be in another: take that of the old norm",
     change("old.training", "copied.training")),
    ("BatchNorms of the same size become one norm",
     "each has a weight, a bias and an eps of its own; only what was one in the model becomes one",
     (change(COPY, COPY + "; made = {}"),
      change("new.train(old.training)", "made.setdefault(old.num_features, new.train(old.training))"))),
    ("the variance is divided by n - 1", "norms divide by n: var(correction=0)",
     formula("(p - p.mean(d, True)) / (p.var(d, keepdim=True) + n.eps).sqrt()")),
    ("eps is added to the standard deviation", "it is added to the variance, under the root",
     formula("(p - p.mean(d, True)) / (p.std(d, correction=0, keepdim=True) + n.eps)")),
    ("the norm depends on other samples", "the mean over dimension 0 is that of the batch",
     formula("(p - p.mean((0, *d), True)) / (p.var((0, *d), correction=0, keepdim=True) + n.eps).sqrt()")),
    ("each position is normalised by itself",
     "a group's mean and variance are those over its channels and all positions",
     formula("(p - p.mean(2, True)) / (p.var(2, correction=0, keepdim=True) + n.eps).sqrt()")),
    ("the mean is not subtracted", "an RMS norm only divides; a group norm also subtracts the mean",
     formula("p / (p.square().mean(d, True) + n.eps).sqrt()")),
    ("the gradient does not go through the mean and the variance",
     "they depend on the input: compute them without no_grad and detach",
     formula("(p - p.mean(d, True).detach()) / (p.var(d, correction=0, keepdim=True) + n.eps).sqrt().detach()")),
    ("a new norm changed its argument x", "a method that ends in _",
     formula("p.sub_(p.mean(d, True)).div_((p.var(d, correction=0, keepdim=True) + n.eps).sqrt())")),
    # --- the model ---
    ("nothing came back", "the function ends without a return", end("pass")),
    ("the model itself is returned", "return the copy", end("return model")),
    ("parts of the model are returned, not the model", "", end("return copied.state_dict()"),
     end("return [m for m in copied.modules() if type(m) is nn.GroupNorm]")),
    ("your function changed its argument model: model.1 is another object", "work on a copy",
     change(COPY, "copied = copy.copy(model)")),
    ("your function changed its argument model: model.0.weight.device is cuda:0, not cpu", "",
     end(RETURN, 'model.to("cuda")')),
    ("the parts are copied one by one",
     "a module used in two places becomes two, and what belongs to the model itself is lost: copy it as a whole",
     end("return nn.Sequential(*[copy.deepcopy(part).train(part.training) for part in copied])")),
    ("other layers have lost their weights", "the model was built or initialised anew: copy it, then replace the norms",
     end(RETURN, "[m.reset_parameters() for m in copied.modules() if isinstance(m, nn.Linear)]")),
    ("a module of a class of its own is rebuilt as a Sequential", "its forward is lost: set the attribute on it",
     end(RETURN, "plain = nn.Sequential().train(copied[3].training)",
         "for part in copied[3].named_children(): plain.add_module(*part)", "copied[3] = copied[5] = plain")),
    ("parts have other names", "state_dict and optimizers know a part by its name: set the new norm on its parent",
     change(SET, ANEW.replace("(last, new", "('group_' + last, new")), end("return nn.Sequential(copied)"),
     end("return nn.Sequential(*[m for m in copied.modules() if not list(m.children())])")),
    ("the new norms come after the other parts",
     "a part that is deleted and added again comes last; setattr(parent, name, norm) keeps its place",
     change(SET, ANEW)),
    ("the whole copy is in another mode",
     "a new module is in training mode; train() and eval() on the copy change that of dropout too",
     end("return copied.train()"), end("return copied.eval()")),
    ("the whole copy was moved, converted or unfrozen", "leave devices, dtypes and requires_grad as they are",
     end('return copied.to("cuda")'), end("return copied.float()"), end("return copied.requires_grad_(True)")),
    ("a hook of the model is gone", "hooks belong to the model: copy.deepcopy keeps them, and a rebuilt module has "
                                    "none",
     end(RETURN, "copied._forward_hooks.clear()")),
    ("a sample's output depends on the others in its batch", "something besides the norms uses the whole batch",
     end(RETURN, "copied.register_forward_hook(lambda module, args, out: out - 0.1 * out.mean(0))")),
    ("the outputs agree, but the gradients do not", "a custom backward, or a hook, changes them",
     end(RETURN, "copied[8].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * "
                 "len(grad_in[0]),))")),
)  # fmt: skip
