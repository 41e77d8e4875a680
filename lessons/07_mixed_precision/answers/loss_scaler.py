"""Answers to "a loss scaler of your own": when it grows, when it backs off, what it looks at, and when it divides."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("loss_scaler", "LossScaler")
FINITE, DIVIDE, NOTE = "not p.grad.isfinite().all().item()", "p.grad /= self.current", "self.overflow |="
ALL = 'for g in optimizer.param_groups for p in g["params"]'
GIVEN = ALL + " if p.grad is not None"
STEP, SKIP = "            optimizer.step()", "        if not self.overflow:\n            optimizer.step()"
GROW = "self.current, self.good = self.current * self.growth_factor, 0"
BACK_OFF = "self.current, self.good = self.current * self.backoff_factor, 0"
GROWN, LOWER = "self.current * self.growth_factor", "self.current * self.backoff_factor"
LOSS, SAID, END = "return loss * self.current", "return self.current", "    def get_scale"
CLEAR = "        self.unscaled = self.overflow = False\n    def get"
UNSCALE = "        if not self.unscaled:\n            self.unscale_(optimizer)\n"
SKIPS_NONE = "                if p.grad is not None:\n"


@BANK.right
class OfPyTorch(torch.amp.GradScaler):
    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval)


BANK.right(
    # on tensors, all gradients at once, looked at by their differences; a function makes it
    (change("float(init_scale)", "torch.tensor(float(init_scale))"), change(SAID, "return self.current.item()"),
     change("self.good == self.growth_interval", "self.good % self.growth_interval == 0"),
     change(DIVIDE, "torch._foreach_mul_([p.grad], 1.0 / self.current)"),
     change(FINITE, "bool((p.grad - p.grad).count_nonzero())")),
    # looks before it divides, and counts down
    (drop(NOTE), add(f"{NOTE} {FINITE}", before=DIVIDE), change("self.good += 1", "self.good -= 1"),
     change("self.good == self.growth_interval", "self.good == -self.growth_interval")),
)  # fmt: skip


# --- what it looks at ----------------------------------------------------------------------------------
BANK.mistakes(
    ("an inf or NaN in the gradients is not found",
     "the loss is finite while its gradients overflow: look at every gradient, not at the loss",
     (add("self.loss = loss", before=LOSS), change(FINITE, "not self.loss.isfinite().item()"))),
    ("NaN is found, inf is not", "an overflow in fp16 is inf; torch.isfinite finds both",
     change(FINITE, "p.grad.isnan().any().item()")),
    ("inf is found, NaN is not", "inf - inf and 0 * inf make NaN; torch.isfinite finds both",
     change(FINITE, "p.grad.isinf().any().item()")),
    ("-inf is not found", "g == inf misses the negative one; torch.isfinite finds all",
     change(FINITE, 'bool((p.grad == float("inf")).any() or p.grad.isnan().any())')),
    ("an inf or NaN is found only where a whole gradient is",
     "one element spoils the step: not isfinite().all(), rather than not isfinite().any()",
     change(FINITE, "not p.grad.isfinite().any().item()")),
    ("large finite gradients are treated as an overflow",
     "a norm or a sum of finite numbers may be inf itself: look at the elements, with torch.isfinite",
     change(FINITE, "not (p.grad * self.current).norm().isfinite().item()"),
     change(FINITE, "not p.grad.sum().isfinite().item()")),
    ("finite gradients above a limit are treated as an overflow",
     "65504 is fp16's largest number, and these gradients are float32: only inf and NaN are an overflow",
     change(FINITE, "not (p.grad.abs() * self.current <= 65504).all().item()")),
    ("inf and NaN are looked for in step(), not in unscale_",
     "gradients that the caller clips by value between the two are finite by then: record it in unscale_",
     (drop(NOTE), change(SKIP, f"        self.overflow = not all(p.grad.isfinite().all() {GIVEN})\n{SKIP}"))),
    ("only the last parameter is looked at",
     "one inf anywhere spoils the step: |= keeps what was found before, = forgets it", change(NOTE, "self.overflow =")),
    ("only the first parameter, or the first group, is looked at", "one inf anywhere spoils the step: look at all",
     change(FINITE, f'{FINITE} if p is optimizer.param_groups[0]["params"][0] else False'),
     change(FINITE, f"{FINITE} if group is optimizer.param_groups[0] else False")),
    ("the first parameter without a gradient ends the search",
     "skip a parameter that was not used, and look at those after it: continue",
     change(SKIPS_NONE, "                if p.grad is None:\n                    return\n                if True:\n")),
    # --- the scale ---
    ("the scale grows after every good step",
     "it grows after growth_interval good steps in a row; otherwise every second step would overflow",
     change("self.good == self.growth_interval", "self.good")),
    ("the count of good steps survives an overflow",
     "the interval counts good steps in a row: restart the count after an overflow",
     change(BACK_OFF, "self.current *= self.backoff_factor")),
    ("after the first growth the scale grows at every step",
     "restart the count of good steps when the scale has grown",
     (change("self.good == self", "self.good >= self"), change(GROW, "self.current *= self.growth_factor"))),
    ("the scale grows once, and then no more",
     "restart the count after a growth: set it to 0, or it never reaches growth_interval again",
     change(GROW, "self.current *= self.growth_factor")),
    ("after an overflow the scale grows too early", "a bad iteration does not count: the count restarts at 0 after it",
     change(BACK_OFF, f"self.current, self.good = {LOWER}, self.good + 1"),
     change("self.backoff_factor, 0", "self.backoff_factor, 1")),
    ("the scale grows one step late", "after growth_interval good steps, not growth_interval + 1",
     change("self.good == self", "self.good > self")),
    ("the scale never grows",
     "multiply it by growth_factor after growth_interval good steps: gradients shrink as training continues",
     change(GROW, "self.good = 0")),
    ("the growth factor is added", "multiply by growth_factor instead of adding it",
     change(GROWN, "self.current + self.growth_factor")),
    ("an overflow is found, but the scale does not fall",
     "multiply the scale by backoff_factor in update(); otherwise the next step overflows too",
     change(BACK_OFF, "self.good = 0")),
    ("the scale is divided by backoff_factor",
     "backoff_factor is below 1: multiply by it, or the scale grows after an overflow",
     change(LOWER, "self.current / self.backoff_factor")),
    ("the scale falls after the first of several overflows only",
     "every bad iteration multiplies by backoff_factor, even one right after another",
     (change(BACK_OFF, "self.current, self.good = self.current * (1 if self.good < 0 else self.backoff_factor), -1"),
      change("self.good += 1", "self.good = max(self.good, 0) + 1"))),
    ("the scale stops at 1", "GradScaler has no floor: large gradients may need a scale below 1",
     change(CLEAR, f"        self.current = max(self.current, 1.0)\n{CLEAR}")),
    ("the scale stops at a ceiling",
     "65504 is fp16's largest number, which does not limit a scaled loss in float32",
     change(GROWN, f"min({GROWN}, 2.0**16)"), change(GROWN, f"min({GROWN}, 2.0**40)")),
    ("the scale changes in step(), not in update()",
     "code that compares the scale before and after update() then sees no skip",
     (change("def update(self):", "def end(self):"), change(STEP, f"{STEP}\n        self.end()"),
      change("    def end", "    def update(self):\n        pass\n\n    def end"))),
    ("growth_factor and backoff_factor are not used", "2 and 0.5 are defaults; the caller gave others",
     (change(GROWN, "self.current * 2.0"), change(LOWER, "self.current * 0.5"))),
    ("the scale falls after good iterations and grows after bad ones", "the two branches of update are swapped",
     change("        if self.overflow:\n", "        if not self.overflow:\n")),
    ("the scale falls twice after an overflow",
     "it changes in update() alone: step() only leaves out the optimizer's step",
     change(STEP, f"{STEP}\n        else:\n            self.current *= self.backoff_factor")),
    ("all scalers share one scale", "a name that belongs to the class is there once: self.… = … in __init__",
     (change("self.current, self.growth_factor", "LossScaler.current, self.growth_factor"),
      change(GROW, f"LossScaler.current, self.good = {GROWN}, 0"),
      change(BACK_OFF, f"LossScaler.current, self.good = {LOWER}, 0"))),
    # --- the step ---
    ("the optimizer steps although a gradient is inf or NaN",
     "step() must skip optimizer.step() then: one NaN in a weight, and the run is lost",
     change(SKIP, SKIP.replace("not self.overflow", "True"))),
    ("an inf or NaN is replaced, and the optimizer steps",
     "the overflowed values are lost, and a step without them goes in another direction: skip the step",
     change(SKIP, f"        [p.grad.nan_to_num_(0, 0, 0) {GIVEN}]\n        optimizer.step()")),
    ("the gradients are never divided by the scale", "unscale_ divides them, or the optimizer steps with scaled ones",
     change(DIVIDE, "pass")),
    ("the gradients are multiplied by the scale, not divided", "the loss was multiplied: the gradients are divided",
     change(DIVIDE, "p.grad *= self.current")),
    ("only the first parameter group is unscaled",
     "all groups: for group in optimizer.param_groups, and in it for p in group['params']",
     change("optimizer.param_groups:", "optimizer.param_groups[:1]:")),
    ("only the first parameter group is stepped",
     "the gradients of the others are gone: optimizer.step() is called once, with all of them in .grad",
     change(SKIP, f"        for p in [p {ALL}][2:]: p.grad = None\n{SKIP}")),
    ("unscale_ does not divide in place",
     "p.grad = p.grad / scale makes a new tensor, and what holds the old one keeps scaled numbers: "
     "p.grad.div_(...) or mul_", change(DIVIDE, "p.grad = p.grad / self.current")),
    ("the gradients are divided twice", "step() must know that unscale_ has run, until update()",
     change("if not self.unscaled:", "if True:")),
    ("step does not call unscale_ where the caller has not", "the caller may leave it out: then step() does it",
     change(UNSCALE, "")),
    ("unscale_ works in the first iteration only", "update() ends the iteration: what is known of it is cleared there",
     change(CLEAR, CLEAR.replace("self.unscaled = ", ""))),
    ("a good step is skipped", "optimizer.step() is never called", change(STEP, "            pass")),
    ("after an overflow every step is skipped", "the flag that an overflow was found is not cleared by update()",
     change(CLEAR, CLEAR.replace("self.overflow = ", ""))),
    ("the step after an overflow is skipped",
     "the flag that an overflow was found is cleared by update(), not at the next step",
     (change(CLEAR, CLEAR.replace("self.unscaled", "self.old = self.overflow\n        self.unscaled")),
      change(SKIP, SKIP.replace("self.overflow", "(self.overflow or getattr(self, 'old', False))")))),
    ("unscale_ only looks, and step divides",
     "clipping comes between unscale_ and step, so unscale_ must divide at once",
     (change(DIVIDE, "pass"), change(SKIP, f"        [p.grad.div_(self.current) {GIVEN}]\n{SKIP}"))),
    ("the optimizer steps with what unscale_ left, not with the gradients as the caller changed them",
     "clipping changes .grad between unscale_ and step: step() takes the gradients as they are",
     (add(f"self.kept = [(p, p.grad.clone()) {GIVEN}]", before="self.unscaled = True"),
      change(SKIP, f"        for p, g in self.kept: p.grad.copy_(g)\n{SKIP}"))),
    ("the optimizer steps twice", "one optimizer.step() for each call of step()", change(STEP, f"{STEP}\n{STEP}")),
    ("the gradients are gone after step()",
     "zero_grad() is the caller's, who may still want them for a log: step() calls optimizer.step(), and no more",
     change(SKIP, f"{SKIP}\n            optimizer.zero_grad()"),
     change(SKIP, f"{SKIP}\n        else:\n            optimizer.zero_grad()")),
    ("something besides the optimizer's step changes the weights",
     "weight decay is the optimizer's: step() calls optimizer.step(), and no more",
     change(SKIP, f"{SKIP}\n            [p.data.mul_(0.99) {ALL}]")),
    ("a parameter that had no gradient is given zeros",
     "momentum and weight decay change every parameter with a gradient, even zeros: skip this one",
     change(SKIPS_NONE, "                p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
            "                if True:\n")),
    ("your class changed its argument optimizer: optimizer.param_groups[0]['lr'] is 0.1, not 0.5", "not put back",
     change(SKIP, f"{SKIP}\n        optimizer.param_groups[0]['lr'] = 0.1")),
    # --- the loss, and the form ---
    ("scale(loss) cuts the graph", "item(), detach() or torch.tensor() made a new number: multiply the loss itself",
     change(LOSS, "return torch.tensor(loss.item() * self.current)")),
    ("scale(loss) returns no tensor", "backward is called on what it returns: multiply the loss itself, without item()",
     change(LOSS, "return loss.item() * self.current"), change(LOSS, "loss = loss * self.current")),
    ("scale(loss) divides by the scale", "the loss is multiplied, so that small gradients are not lost",
     change(LOSS, "return loss / self.current")),
    ("scale(loss) returns the loss as it is", "the loss times the scale", change(LOSS, "return loss")),
    ("your class changed its argument loss", "a method that ends in _", change(LOSS, "return loss.mul_(self.current)")),
    ("get_scale() always returns the first scale",
     "return the current scale: one attribute, which update() changes",
     (change(f"        {SAID}", "        return self.at_first"),
      add("self.at_first = float(init_scale)", before="self.current, self.growth_factor = float"))),
    ("get_scale() does not return the scale as a float",
     "the number that the loss is multiplied by: .item() of a tensor",
     *(change(f"        {SAID}", f"        {instead}")
       for instead in ("return torch.tensor(self.current)", "return 1 / self.current", "self.current"))),
    ("backoff_factor and growth_factor are swapped",
     "__init__ takes (init_scale, growth_factor, backoff_factor, growth_interval), in this order",
     change("growth_factor=2.0, backoff_factor=0.5", "backoff_factor=0.5, growth_factor=2.0")),
    ("a method is missing, or is not a method", "five are called: scale, unscale_, step, update, get_scale",
     change("def update", "def end"), add("    @property", before=END)),
    ("no scaler is made", "the function ends without a return", lambda *four: None),
)  # fmt: skip
