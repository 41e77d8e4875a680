"""Answers to "a loss scaler of your own": when it grows, when it backs off, what it looks at, and when it divides."""

import math

import torch

from gpulab.check.lesson07.sections import SECTIONS

from ..bank import Bank

BANK = Bank("loss_scaler", SECTIONS)


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


# --- wrong: what it looks at ---------------------------------------------------------------------------


@BANK.wrong("a step with inf or NaN does not lower the scale", "the loss is finite while its gradients overflow")
class LooksAtTheLoss(Base):
    def scale(self, loss):
        self.loss = loss
        return super().scale(loss)

    def is_bad(self, gradients):
        return not bool(torch.isfinite(self.loss).all())


@BANK.wrong("NaN is found, inf is not", "torch.isfinite finds both")
class FindsNaN(Base):
    def is_bad(self, gradients):
        return any(bool(g.isnan().any()) for g in gradients)


@BANK.wrong("inf is found, NaN is not", "torch.isfinite finds both")
class FindsInf(Base):
    def is_bad(self, gradients):
        return any(bool(g.isinf().any()) for g in gradients)


@BANK.wrong("-inf is not found", "misses the negative one")
class FindsPositiveInf(Base):
    def is_bad(self, gradients):
        return any(bool((g == math.inf).any() or g.isnan().any()) for g in gradients)


@BANK.wrong("only the first parameter is looked at", "one inf anywhere")
class LooksAtTheFirst(Base):
    def is_bad(self, gradients):
        return super().is_bad(gradients[:1])


@BANK.wrong("only the first parameter group is looked at", "loop over all groups")
class LooksAtTheFirstGroup(Base):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        first = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
        self.overflow = self.is_bad(first)


@BANK.wrong("large finite gradients are taken for an overflow", "the norm squares its elements")
class LooksAtTheNorm(Base):
    def is_bad(self, gradients):
        return not bool(torch.isfinite(torch.cat([g.flatten() for g in gradients]).norm()))


@BANK.wrong("large finite gradients are taken for an overflow", "a sum of finite numbers")
class LooksAtTheSum(Base):
    def is_bad(self, gradients):
        return not all(bool(torch.isfinite(g.sum())) for g in gradients)


# --- wrong: the scale ----------------------------------------------------------------------------------


@BANK.wrong("the scale grows after every good step", "good steps in a row")
class GrowsEveryStep(Base):
    def update(self):
        self.good = self.interval - 1
        super().update()


@BANK.wrong("the count of good steps survives an overflow", "begin anew after an overflow")
class CounterSurvives(Base):
    def update(self):
        good, overflow = self.good, self.overflow
        super().update()
        if overflow:
            self.good = good


@BANK.wrong("after the first growth the scale grows at every step", "begins anew when the scale has grown")
class CounterGoesOn(Base):
    def update(self):
        if self.overflow:
            return super().update()
        self.good += 1
        if self.good >= self.interval:
            self.current *= self.grow
        self.unscaled = False


@BANK.wrong("the scale grows once, and then no more", "after growth the count begins anew")
class CounterIsNotCleared(Base):
    def update(self):
        if self.overflow:
            return super().update()
        self.good += 1
        if self.good == self.interval:
            self.current *= self.grow
        self.unscaled = False


@BANK.wrong("the scale grows one step late", "not growth_interval + 1")
class GrowsLate(Base):
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__(init_scale, growth_factor, backoff_factor, growth_interval + 1)


@BANK.wrong("the scale never grows", "gradients shrink as training goes on")
class NeverGrows(Base):
    def update(self):
        self.good = -1
        super().update()


@BANK.wrong("an overflow is found, and the scale stays", "the next step overflows too")
class NeverBacksOff(Base):
    def update(self):
        self.back = 1.0
        super().update()


@BANK.wrong("the scale stops at 1", "no floor")
class HasAFloor(Base):
    def update(self):
        super().update()
        self.current = max(self.current, 1.0)


@BANK.wrong("growth_factor and backoff_factor are not used", "the caller gave others")
class HasItsOwnFactors(Base):
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__(init_scale, 2.0, 0.5, growth_interval)


@BANK.wrong("the scale after step 1 is not GradScaler's", "step and update both changed it")
class BacksOffOnGood(Base):
    def update(self):
        self.overflow = not self.overflow
        super().update()


# --- wrong: the step -----------------------------------------------------------------------------------


@BANK.wrong("the optimizer steps although a gradient is inf or NaN", "one NaN in a weight")
class StepsAnyway(Base):
    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        optimizer.step()


@BANK.wrong("the optimizer steps with scaled gradients", "divide them by the scale")
class NeverDivides(Base):
    def divide(self, gradients):
        pass


@BANK.wrong("only the first parameter group is unscaled and stepped", "for group in optimizer.param_groups")
class DividesTheFirstGroup(Base):
    def unscale_(self, optimizer):
        first = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
        self.overflow, self.unscaled = self.is_bad(first), True
        self.divide(first)


@BANK.wrong(
    "only the first parameter group is unscaled and stepped",
    "for group in optimizer.param_groups",
    same_as="DividesTheFirstGroup",
)
class StepsTheFirstGroup(Base):
    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.overflow:
            for group in optimizer.param_groups[1:]:
                for p in group["params"]:
                    p.grad = None
            optimizer.step()


@BANK.wrong("unscale_ does not divide in place", "p.grad.div_(...), or mul_")
class MakesNewGradients(Base):
    def unscale_(self, optimizer):
        self.overflow, self.unscaled = self.is_bad(self.gradients(optimizer)), True
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = p.grad / self.current


@BANK.wrong("the gradients are divided twice", "step() must know that unscale_ has run")
class DividesTwice(Base):
    def step(self, optimizer):
        self.unscaled = False
        super().step(optimizer)


@BANK.wrong("a good step is skipped", "optimizer.step() is never called")
class NeverSteps(Base):
    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)


@BANK.wrong("a good step is skipped", "not cleared by update()")
class RemembersTheOverflow(Base):
    seen = False

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        self.seen |= self.overflow
        if not self.seen:
            optimizer.step()


@BANK.wrong("unscale_ does not leave the true gradient in .grad", "clipping comes between")
class DividesInStep(Base):
    later = False

    def unscale_(self, optimizer):
        self.overflow, self.unscaled = self.is_bad(self.gradients(optimizer)), True

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        self.divide(self.gradients(optimizer))
        if not self.overflow:
            optimizer.step()


@BANK.wrong("the optimizer steps twice", "one optimizer.step()")
class StepsTwice(Base):
    def step(self, optimizer):
        super().step(optimizer)
        if not self.overflow:
            optimizer.step()


@BANK.wrong("your class raised TypeError", "its .grad is None")
class MeetsNone(Base):
    def gradients(self, optimizer):
        return [p.grad for group in optimizer.param_groups for p in group["params"]]


# --- wrong: the loss, and the form ---------------------------------------------------------------------


@BANK.wrong("scale(loss) cuts the graph", "multiply the loss itself")
class ScalesANumber(Base):
    def scale(self, loss):
        return torch.tensor(loss.item() * self.current)


@BANK.wrong("scale(loss) is another number than loss times scale", "divided in place of multiplied")
class DividesTheLoss(Base):
    def scale(self, loss):
        return loss / self.current


@BANK.wrong("scale(loss) does not return the scaled loss", "without a return")
class ScalesInSilence(Base):
    def scale(self, loss):
        loss = loss * self.current


@BANK.wrong("your class raised TypeError", "in this order")
class TakesNothing(Base):
    def __init__(self):
        super().__init__(65536.0, 2.0, 0.5, 2000)


@BANK.wrong("the class lacks a method")
class HasNoUpdate:
    __init__, scale, unscale_, step, get_scale = Base.__init__, Base.scale, Base.unscale_, Base.step, Base.get_scale


@BANK.wrong("there is no scaler")
def makes_nothing(init_scale, growth_factor, backoff_factor, growth_interval):
    Base(init_scale, growth_factor, backoff_factor, growth_interval)


# --- wrong: what is left behind ------------------------------------------------------------------------


@BANK.wrong("your class changed its argument loss", "a method that ends in _")
class ScalesInPlace(Base):
    def scale(self, loss):
        return loss.mul_(self.current)
