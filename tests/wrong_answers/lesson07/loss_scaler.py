"""Answers to "a loss scaler of your own": when it grows, when it backs off, what it looks at, and when it divides."""

import math

import numpy as np
import torch

from ..bank import Bank
from ..edits import change, drop

BANK = Bank("loss_scaler", "LossScaler")
SOLUTION = BANK.solution
FINITE = "not p.grad.isfinite().all().item()"
DIVIDE = "p.grad /= self.current"
NOTE = "self.overflow |="
GROW = "self.current, self.good = self.current * self.growth_factor, 0"
ALL = 'for g in optimizer.param_groups for p in g["params"]'
GIVEN = ALL + " if p.grad is not None"
SKIP = "        if not self.overflow:\n            optimizer.step()"
BACK_OFF = "self.current, self.good = self.current * self.backoff_factor, 0"


class Base:
    """A right one, in parts that the wrong ones replace."""

    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self.current, self.grow, self.back, self.interval = init_scale, growth_factor, backoff_factor, growth_interval
        self.good, self.unscaled, self.overflow = 0, False, False

    def scale(self, loss):
        return loss * self.current

    def gradients(self, optimizer):
        return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]

    def is_bad(self, gradients):
        return not all(bool(torch.isfinite(g).all()) for g in gradients)

    def divide(self, gradients):
        for g in gradients:
            g /= self.current

    def unscale_(self, optimizer):
        gradients = self.gradients(optimizer)
        self.overflow = self.is_bad(gradients)
        self.divide([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
        self.unscaled = True

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.overflow:
            optimizer.step()

    def update(self):
        if self.overflow:
            self.current *= self.back
            self.good = 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.current *= self.grow
                self.good = 0
        self.unscaled = self.overflow = False

    def get_scale(self):
        return self.current


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
class AsPyTorchNamesIt(Base):
    pass


@BANK.right
class OnTensors:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._scale = torch.tensor(float(init_scale))
        self._options = growth_factor, backoff_factor, growth_interval
        self._tracker, self._found = 0, None

    def scale(self, loss):
        return self._scale * loss

    @torch.no_grad()
    def unscale_(self, optimizer):
        self._found = torch.zeros(())
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(self._scale.reciprocal())
                    self._found = self._found + (~p.grad.isfinite()).sum()

    def step(self, optimizer):
        if self._found is None:
            self.unscale_(optimizer)
        if self._found.item() == 0:
            return optimizer.step()

    def update(self):
        growth, backoff, interval = self._options
        if self._found.item():
            self._scale = self._scale * backoff
            self._tracker = 0
        else:
            self._tracker = (self._tracker + 1) % interval
            if not self._tracker:
                self._scale = self._scale * growth
        self._found = None

    def get_scale(self):
        return self._scale.item()


@BANK.right
class OfPyTorch(torch.amp.GradScaler):
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval)


@BANK.right
def made_by_a_function(init_scale, growth_factor, backoff_factor, growth_interval):
    return Base(init_scale, growth_factor, backoff_factor, growth_interval)


@BANK.right
class LooksAtTheLargest(Base):
    def is_bad(self, gradients):
        return any(not math.isfinite(g.abs().max().item()) for g in gradients)


@BANK.right
class CountsDownFromTheInterval(Base):
    """In NumPy's numbers, and with the growth decided before the step."""

    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__(np.float64(init_scale), growth_factor, backoff_factor, growth_interval)
        self.left = growth_interval

    def update(self):
        self.left = self.interval if self.overflow else self.left - 1
        if self.overflow or not self.left:
            self.current = self.current * (self.back if self.overflow else self.grow)
            self.left = self.interval
        self.unscaled = self.overflow = False


@BANK.right
class TakesTheGradientsTogether(Base):
    def unscale_(self, optimizer):
        gradients = self.gradients(optimizer)
        torch._foreach_mul_(gradients, 1.0 / self.current)
        self.overflow = bool(torch.stack([(g - g).count_nonzero() for g in gradients]).sum())
        self.unscaled = True


@BANK.right
class LooksBeforeItDivides(Base):
    def unscale_(self, optimizer):
        for group in reversed(optimizer.param_groups):
            for p in group["params"]:
                if p.grad is not None:
                    self.overflow = self.overflow or not math.isfinite(p.grad.abs().max())
                    p.grad.copy_(p.grad / self.current)
        self.unscaled = True


@BANK.right
class KeepsWhatItKnowsInADict(Base):
    def __init__(self, *options):
        super().__init__(*options)
        self.known = {}

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        self.known[id(optimizer)] = self.overflow

    def step(self, optimizer):
        if id(optimizer) not in self.known:
            self.unscale_(optimizer)
        return None if self.known[id(optimizer)] else optimizer.step()

    def update(self):
        super().update()
        self.known.clear()


@BANK.right
def made_with_defaults_of_its_own(init_scale=1.0, growth_factor=1.0, backoff_factor=1.0, growth_interval=1, **more):
    return SOLUTION(init_scale, growth_factor, backoff_factor, growth_interval)


# --- wrong: what it looks at ---------------------------------------------------------------------------


def looks_at(condition):
    """A scaler that takes `condition`, of p.grad, for an overflow."""
    return change(FINITE, condition)


@BANK.wrong(
    "an inf or NaN in the gradients is not found",
    "the loss is finite while its gradients overflow: look at every gradient, not at the loss",
)
class LooksAtTheLoss(Base):
    def scale(self, loss):
        self.loss = loss
        return super().scale(loss)

    def is_bad(self, gradients):
        return not bool(torch.isfinite(self.loss).all())


BANK.mistakes(
    ("NaN is found, inf is not", "an overflow in fp16 is inf; torch.isfinite finds both",
     looks_at("p.grad.isnan().any().item()")),
    ("inf is found, NaN is not", "inf - inf and 0 * inf make NaN; torch.isfinite finds both",
     looks_at("p.grad.isinf().any().item()")),
    ("-inf is not found", "g == inf misses the negative one; torch.isfinite finds all",
     looks_at('bool((p.grad == float("inf")).any() or p.grad.isnan().any())')),
    ("an inf or NaN is found only where a whole gradient is",
     "one element spoils the step: not isfinite().all(), rather than not isfinite().any()",
     looks_at("not p.grad.isfinite().any().item()")),
    ("large finite gradients are taken for an overflow",
     "the norm squares its elements and overflows itself: look at the elements, with torch.isfinite",
     looks_at("not (p.grad * self.current).norm().isfinite().item()")),
    ("large finite gradients are taken for an overflow",
     "a sum of finite numbers may be inf: look at the elements, with torch.isfinite",
     looks_at("not (p.grad * self.current).sum().isfinite().item()"),
     change(FINITE, "not p.grad.sum().isfinite().item()")),
    ("finite gradients above a limit are taken for an overflow",
     "65504 is fp16's largest number, and these gradients are float32: only inf and NaN are an overflow",
     looks_at("not (p.grad.abs() * self.current <= 65504).all().item()")),
    ("an inf or NaN is looked for in step(), not in unscale_",
     "what the caller clips by value between the two is finite by then: unscale_ notes it, and divides",
     (drop(NOTE), change(SKIP, f'        self.overflow = not all(p.grad.isfinite().all() {GIVEN})\n{SKIP}'))),
    ("only the last parameter is looked at",
     "one inf anywhere spoils the step: |= keeps what was found before, = forgets it", change(NOTE, "self.overflow =")),
    ("only the first parameter is looked at", "one inf anywhere spoils the step: look at all of them",
     change(FINITE, FINITE + ' if p is optimizer.param_groups[0]["params"][0] else False')),
    ("only the first parameter group is looked at",
     "optimizer.param_groups is a list: loop over all groups and their parameters",
     change(FINITE, FINITE + ' if group is optimizer.param_groups[0] else False')),
    ("the first parameter without a gradient ends the search",
     "a parameter that was not used is passed over, and those after it count: continue",
     change("                if p.grad is not None:\n",
     "                if p.grad is None:\n                    return\n                if True:\n")),
)  # fmt: skip

# --- wrong: the scale ----------------------------------------------------------------------------------
BANK.mistakes(
    ("the scale grows after every good step",
     "it grows after growth_interval good steps in a row; otherwise every second step would overflow",
     change("self.good == self.growth_interval", "self.good")),
    ("the count of good steps survives an overflow",
     "the interval is counted in good steps in a row: begin anew after an overflow",
     change(BACK_OFF, "self.current *= self.backoff_factor")),
    ("after the first growth the scale grows at every step",
     "the count of good steps begins anew when the scale has grown",
     (change("self.good == self", "self.good >= self"), change(GROW, "self.current *= self.growth_factor"))),
    ("the scale grows once, and then no more",
     "after growth the count begins anew: set it to 0, or it never comes to growth_interval again",
     change(GROW, "self.current *= self.growth_factor")),
    ("bad iterations are counted, too", "growth_interval good iterations in a row: those with an inf or NaN are none",
     change(BACK_OFF, "self.current, self.good = self.current * self.backoff_factor, self.good + 1")),
    ("after an overflow the scale grows one step early", "the bad iteration is no good one: the count begins at 0",
     change("self.backoff_factor, 0", "self.backoff_factor, 1")),
    ("the scale grows one step late", "after growth_interval good steps, not growth_interval + 1",
     change("self.good == self", "self.good > self")),
    ("the scale never grows",
     "after growth_interval good steps multiply it by growth_factor: gradients shrink as training goes on",
     change(GROW, "self.good = 0")),
    ("the growth factor is added", "scales are powers: multiply by growth_factor",
     change("self.current * self.growth_factor", "self.current + self.growth_factor")),
    ("an overflow is found, and the scale stays",
     "multiply the scale by backoff_factor in update(); otherwise the next step overflows too",
     change(BACK_OFF, "self.good = 0")),
    ("the scale is divided by backoff_factor",
     "backoff_factor is below 1: multiply by it, or the scale grows after an overflow",
     change("self.current * self.backoff_factor", "self.current / self.backoff_factor")),
    ("the scale falls after the first of several overflows only",
     "every bad iteration multiplies by backoff_factor, also one after another",
     (change(BACK_OFF, "self.current, self.good = self.current * (1 if self.good < 0 else self.backoff_factor), -1"),
     change("self.good += 1", "self.good = max(self.good, 0) + 1"))),
    ("the scale stops at 1", "GradScaler has no floor: large gradients may need a scale below 1",
     change("        self.unscaled = self.overflow = False\n    def get",
     "        self.current = max(self.current, 1.0)\n        self.unscaled = self.overflow = False\n    " "def get")),
    ("the scale stops at a ceiling",
     "65504 is the largest number of fp16, which a scaled loss in float32 need not heed",
     change("self.current * self.growth_factor", "min(self.current * self.growth_factor, 2.0**16)"),
     change("self.current * self.growth_factor", "min(self.current * self.growth_factor, 2.0**40)")),
)  # fmt: skip


@BANK.wrong(
    "the scale changes in step(), not in update()",
    "who asks for it between the two, to compare it with that after update(), sees no skip",
)
class ChangesTheScaleInStep(Base):
    def step(self, optimizer):
        super().step(optimizer)
        super().update()

    def update(self):
        pass


BANK.mistakes(
    ("growth_factor and backoff_factor are not used", "2 and 0.5 are defaults; the caller gave others",
     (change("self.current * self.growth_factor", "self.current * 2.0"),
     change("self.current * self.backoff_factor", "self.current * 0.5"))),
    ("the scale falls after good iterations and grows after bad ones", "the two branches of update have changed places",
     change("        if self.overflow:\n", "        if not self.overflow:\n")),
    ("the scale falls twice after an overflow",
     "it changes in update() alone: step() only leaves out the optimizer's step",
     change("            optimizer.step()",
     "            optimizer.step()\n        else:\n            self.current *= self.backoff_factor")),
)  # fmt: skip

# --- wrong: the step -----------------------------------------------------------------------------------
BANK.mistakes(
    ("the optimizer steps although a gradient is inf or NaN",
     "step() must skip optimizer.step() then: one NaN in a weight, and the run is lost",
     change("        if not self.overflow:\n            optimizer", "        if True:\n            optimizer")),
    ("an inf or NaN is replaced, and the optimizer steps",
     "what overflowed is lost, and a step without it goes another way: leave the step out",
     change(SKIP, f'        [p.grad.nan_to_num_(0, 0, 0) {GIVEN}]\n        optimizer.step()')),
    ("the gradients are never divided by the scale", "unscale_ divides them, or the optimizer steps with scaled ones",
     change(DIVIDE, "pass")),
    ("the gradients are multiplied by the scale, not divided", "the loss was multiplied: the gradients are divided",
     change(DIVIDE, "p.grad *= self.current")),
    ("only the first parameter group is unscaled",
     "all groups: for group in optimizer.param_groups, and in it for p in group['params']",
     change("optimizer.param_groups:", "optimizer.param_groups[:1]:")),
    ("only the first parameter group is stepped",
     "the gradients of the others are gone: optimizer.step() is called once, with all of them in .grad",
     change(SKIP, f'        for p in [p {ALL}][2:]: p.grad = None\n{SKIP}')),
    ("unscale_ does not divide in place",
     "p.grad = p.grad / scale makes a new tensor, and what holds the old one keeps scaled numbers: "
     "p.grad.div_(...) or mul_", change(DIVIDE, "p.grad = p.grad / self.current")),
    ("the gradients are divided twice", "step() must know that unscale_ has run, until update()",
     change("if not self.unscaled:", "if True:")),
    ("step does not call unscale_ where the caller has not", "the caller may leave it out: then step() does it",
     change("        if not self.unscaled:\n            self.unscale_(optimizer)\n", "")),
    ("unscale_ works in the first iteration only", "update() ends the iteration: what is known of it is cleared there",
     change("        self.unscaled = self.overflow = False\n    def get",
     "        self.overflow = False\n    def get")),
    ("a good step is skipped", "optimizer.step() is never called",
     change("            optimizer.step()", "            pass")),
    ("after an overflow every step is skipped", "the flag that an overflow was found is not cleared by update()",
     change("        self.unscaled = self.overflow = False\n    def get",
     "        self.unscaled = False\n    def get")),
    ("the step after an overflow is skipped",
     "the flag that an overflow was found is cleared by update(), not at the next step",
     (change("        self.unscaled = self.overflow = False\n    def get",
     "        self.unscaled, self.old, self.overflow = False, self.overflow, False\n    def get"),
     change("if not self.overflow:\n            optimizer",
     "if not (self.overflow or getattr(self, 'old', False)):\n            optimizer"))),
    ("unscale_ only looks, and step divides",
     "clipping comes between unscale_ and step, so unscale_ must divide at once",
     (change(DIVIDE, "pass"), change(SKIP, f'        [p.grad.div_(self.current) {GIVEN}]\n{SKIP}'))),
    ("the optimizer steps with what unscale_ left, not with what the caller made of it",
     "clipping changes .grad between unscale_ and step: step() takes the gradients as they are",
     (change("        self.unscaled = True",
     f'        self.kept = [(p, p.grad.clone()) {GIVEN}]\n        self.unscaled = True'),
     change(SKIP, f'        for p, g in self.kept: p.grad.copy_(g)\n{SKIP}'))),
    ("the optimizer steps twice", "one optimizer.step() for each call of step()",
     change("            optimizer.step()", "            optimizer.step()\n            optimizer.step()")),
    ("the gradients are gone after step()",
     "zero_grad() is the caller's, who may still want them for a log: step() calls optimizer.step(), " "and no more",
     change(SKIP, f'{SKIP}\n            optimizer.zero_grad()'),
     change(SKIP, f'{SKIP}\n        else:\n            optimizer.zero_grad()')),
    ("the weights are changed beside the optimizer's step",
     "weight decay is the optimizer's: step() calls optimizer.step(), and no more",
     change(SKIP, f'{SKIP}\n            [p.data.mul_(0.99) {ALL}]')),
    ("a parameter that has no gradient is not passed over", "its .grad is None: ask before it is used",
     change("if p.grad is not None:", "if True:")),
    ("a parameter that had no gradient is given zeros",
     "momentum and weight decay move what has a gradient, zeros too: pass over it",
     change("                if p.grad is not None:\n",
     "                p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n                if True:\n")),
)  # fmt: skip

# --- wrong: the loss, and the form ---------------------------------------------------------------------

LOSS = "return loss * self.current"
BANK.mistakes(
    ("scale(loss) cuts the graph", "item(), detach() or torch.tensor() made a new number: multiply the loss itself",
     change(LOSS, "return torch.tensor(loss.item() * self.current)")),
    ("scale(loss) returns a number, not a tensor",
     "backward is called on what it returns: multiply the loss itself, without item()",
     change(LOSS, "return loss.item() * self.current")),
    ("scale(loss) divides by the scale", "the loss is multiplied, so that small gradients are not lost",
     change(LOSS, "return loss / self.current")),
    ("scale(loss) returns the loss as it is", "the loss times the scale", change(LOSS, "return loss")),
    ("scale(loss) returns nothing", "scale() ends without a return", change(LOSS, "loss = loss * self.current")),
    ("get_scale() tells the first scale for ever",
     "the scale of now is asked for: one attribute, which update() changes",
     (change("        return self.current", "        return self.at_first"),
     change("        self.growth_interval, self.good = growth_interval, 0",
     "        self.growth_interval, self.good, self.at_first = growth_interval, 0, self.current"))),
    ("get_scale() returns a tensor", "a float is asked for: .item()",
     change("        return self.current", "        return torch.tensor(self.current)")),
    ("get_scale() returns 1 / scale", "the number that the loss is multiplied by",
     change("        return self.current", "        return 1 / self.current")),
    ("get_scale() returns nothing", "it ends without a return",
     change("        return self.current", "        self.current")),
    ("the class takes other arguments than the four numbers",
     "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order",
     (change("self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000", "self"),
     change("float(init_scale), growth_factor, backoff_factor", "65536.0, 2.0, 0.5"),
     change("self.good = growth_interval, 0", "self.good = 2000, 0"))),
    ("backoff_factor and growth_factor have changed places",
     "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order",
     change("growth_factor=2.0, backoff_factor=0.5", "backoff_factor=0.5, growth_factor=2.0")),
    ("there is no method update", "five methods are asked for: scale, unscale_, step, update, get_scale",
     change("def update", "def end")),
    ("get_scale is no method", "scaler.get_scale() is called: leave out @property",
     change("    def get_scale", "    @property\n    def get_scale")),
)  # fmt: skip


@BANK.wrong("there is no scaler", "the function ends without a return")
def makes_nothing(init_scale, growth_factor, backoff_factor, growth_interval):
    Base(init_scale, growth_factor, backoff_factor, growth_interval)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your class changed its argument loss", "a method that ends in _")
class ScalesInPlace(Base):
    def scale(self, loss):
        return loss.mul_(self.current)


@BANK.wrong(
    "your class changed its argument optimizer: optimizer.param_groups[0]['lr'] is 0.1, not 0.5", "not put back"
)
class SetsALearningRate(Base):
    def step(self, optimizer):
        super().step(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
