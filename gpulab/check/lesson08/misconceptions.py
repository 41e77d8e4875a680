"""The misconceptions of lesson 08 in words, one table for each exercise that is judged by its gradients.

`aspect` and `value` name the option of the exercise's reference loop that commits the mistake. Where several
are made at once, they are named in the order of the table. Text in braces is filled in by the check.
"""

from __future__ import annotations

from dataclasses import dataclass

# The sections of the lecture that a failed check sends its reader to.
FOUR_PIECES = "The same gradient in four pieces"
MEAN_OF_MEANS = "Mean of means"
LAST_WINDOW = "The last window"
TOKENS = "Token-weighted loss"
BATCH_NORM = "What accumulation cannot do: BatchNorm"
PRECISION = "With mixed precision and clipping"
BYTES = "What it saves: bytes kept for backward"
RATE = "Learning rate and schedule"
SECTIONS = (FOUR_PIECES, MEAN_OF_MEANS, LAST_WINDOW, TOKENS, BATCH_NORM, PRECISION, BYTES, RATE)


@dataclass(frozen=True)
class Mistake:
    """One misconception: the option that commits it, what it looks like from outside, why, and where to read."""

    aspect: str
    value: str
    summary: str
    likely: str
    read: str


_EVERY = Mistake(
    "boundary",
    "every",
    "the optimizer steps after every micro-batch",
    "nothing is accumulated: the step belongs behind the test for the window's end",
    FOUR_PIECES,
)
_INSIDE = Mistake(
    "boundary",
    "inside",
    "the optimizer steps after every micro-batch",
    "step stands inside the loop over the window, and each time steps with what has come together so far: take it out "
    "of that loop",
    FOUR_PIECES,
)
_ONCE = Mistake(
    "boundary",
    "once",
    "the optimizer steps once, at the end of the epoch",
    "the windows run into each other: step and clear after every `steps` micro-batches, inside the loop",
    LAST_WINDOW,
)
_NO_SINGLE = Mistake(
    "boundary",
    "no_single",
    "a last window of a single micro-batch makes no step",
    "what is left is a window, also if it is one micro-batch: its samples are in the epoch as others are",
    LAST_WINDOW,
)
_MERGED = Mistake(
    "boundary",
    "merge",
    "a single micro-batch that is left is put into the window before it",
    "a window has `steps` micro-batches, and what is left is one of its own, however few",
    LAST_WINDOW,
)
_NO_TAIL = Mistake(
    "boundary",
    "no_tail",
    "the last, incomplete window never makes a step",
    "a step only when (i + 1) % steps == 0 leaves the rest in .grad, where it is lost or, worse, counted in the "
    "next epoch",
    LAST_WINDOW,
)
_START = Mistake(
    "boundary",
    "start",
    "the step comes at the wrong end of the window",
    "i % steps == 0 is true for i = 0: the first update sees one micro-batch. Count from one: (i + 1) % steps",
    LAST_WINDOW,
)
_BEFORE = Mistake(
    "zero",
    "before",
    "the gradients are cleared just before the step",
    "the gradient is zero at the step: zero_grad stands between backward and step, or there is no backward",
    FOUR_PIECES,
)
_LATE = Mistake(
    "zero",
    "late",
    "what was in .grad before the call is counted in the first window",
    "clear the gradients before the first window too: the caller may have left some",
    FOUR_PIECES,
)
_MICRO = Mistake(
    "zero",
    "micro",
    "each update sees only the last micro-batch of its window",
    "zero_grad runs for every micro-batch and throws away what was accumulated; clear once a window",
    FOUR_PIECES,
)
_NEVER = Mistake(
    "zero",
    "never",
    "gradients of earlier windows are still in .grad",
    "nothing clears the gradients after a step, so each update repeats the ones before it",
    FOUR_PIECES,
)
_SUM = Mistake(
    "weight",
    "sum",
    "the gradients are added up and never divided",
    "backward adds to .grad; without a division the update is the sum over the window, so its size grows with the "
    "number of micro-batches",
    FOUR_PIECES,
)
_STEPS = Mistake(
    "weight",
    "steps",
    "the last window is divided by steps, though it holds fewer micro-batches",
    "the last window holds {last} of {steps} micro-batches: dividing by {steps} shrinks its update to {last}/{steps}. "
    "Divide by what the window holds",
    LAST_WINDOW,
)
_ALL = Mistake(
    "weight",
    "all",
    "the gradients are divided by the micro-batches of the whole epoch",
    "an update is the mean over its own window: divide by what the window holds, not by len(micro_batches)",
    FOUR_PIECES,
)

_OWN_LOSS = Mistake(
    "loss",
    "own",
    "the loss is another one than loss_fn",
    "F.cross_entropy is written into the loop: call loss_fn(outputs, targets), whatever the caller has chosen",
    FOUR_PIECES,
)

WINDOW: tuple[Mistake, ...] = (
    _OWN_LOSS,
    _EVERY,
    _INSIDE,
    _ONCE,
    _NO_SINGLE,  # before the next: in the scenes before it makes every step
    _MERGED,
    _NO_TAIL,
    _START,
    Mistake(
        "boundary",
        "after",
        "the windows end one micro-batch late",
        "i > 0 and i % steps == 0 is true after steps + 1 micro-batches the first time. Count from one: "
        "(i + 1) % steps",
        LAST_WINDOW,
    ),
    Mistake(
        "boundary",
        "extra",
        "one more step follows a last window that was full",
        "the step for the rest runs even where there is no rest; with momentum or weight decay it moves the weights. "
        "Make it only when micro-batches are left",
        LAST_WINDOW,
    ),
    _BEFORE,
    _MICRO,
    _NEVER,
    _SUM,
    _STEPS,
    _ALL,
    Mistake(
        "weight",
        "micro",
        "micro-batches of different size count the same",
        "the mean of the micro-batches' means is not the mean over the samples when the last one is smaller. Weight "
        "each by its number of samples",
        MEAN_OF_MEANS,
    ),
    Mistake(
        "weight",
        "again",
        "the gradients are divided after every micro-batch",
        "what is in .grad is divided again each time, so the first micro-batch counts least. Divide each loss before "
        "backward, or the sum once at the end of the window",
        FOUR_PIECES,
    ),
    _LATE,
    Mistake(
        "zero",
        "group",
        "gradients are cleared in the first parameter group only",
        "an optimizer may have several groups: optimizer.zero_grad() clears all of them",
        FOUR_PIECES,
    ),
)

AMP: tuple[Mistake, ...] = (
    _OWN_LOSS,
    _EVERY,
    _INSIDE,
    _ONCE,
    _NO_TAIL,
    _START,
    _BEFORE,
    _MICRO,
    _NEVER,
    _LATE,
    Mistake(
        "clip",
        "none_tail",
        "the gradient of the last, short window is not clipped",
        "the lines that end a window stand twice, and clipping is missing in those for the rest, or comes after the "
        "step: all that ends a full window ends a short one",
        PRECISION,
    ),
    Mistake(
        "clip",
        "scaled_tail",
        "the gradient of the last, short window is clipped while it is still scaled",
        "the lines that end a window stand twice, and scaler.unscale_ is missing in those for the rest: all that ends "
        "a full window ends a short one",
        PRECISION,
    ),
    Mistake(
        "clip",
        "scaled",
        "the gradients are clipped while they are still scaled",
        "the scaler multiplied them by its scale, so nearly every norm is above max_norm. Call "
        "scaler.unscale_(optimizer) once, then clip, then scaler.step",
        PRECISION,
    ),
    Mistake(
        "clip",
        "scaled_micro",
        "scaled gradients are clipped, after every micro-batch",
        "clip once a window, and what scaler.unscale_(optimizer) has divided: a scaled norm is above max_norm nearly "
        "always",
        PRECISION,
    ),
    Mistake(
        "clip",
        "micro",
        "clipping happens for every micro-batch",
        "clip the gradient of the window, once, before the step: clipping the pieces changes their weights",
        PRECISION,
    ),
    Mistake(
        "clip",
        "value",
        "single elements are clipped, not the norm",
        "clip_grad_value_ turns the gradient into another direction; clip_grad_norm_ keeps it and shortens it",
        PRECISION,
    ),
    Mistake(
        "clip",
        "largest",
        "the largest element is clipped to max_norm, not the norm",
        "norm_type=inf takes the largest element for the norm; the norm is the root of the sum of squares, as "
        "clip_grad_norm_ has it by itself",
        PRECISION,
    ),
    Mistake(
        "clip",
        "each",
        "each parameter is clipped by itself",
        "the norm is that of all gradients together: one clip_grad_norm_ over model.parameters()",
        PRECISION,
    ),
    Mistake(
        "clip",
        "group",
        "the first parameter group alone is clipped",
        "the norm is that of all gradients together: one clip_grad_norm_ over model.parameters(), or over all groups",
        PRECISION,
    ),
    Mistake(
        "clip",
        "none",
        "the gradient is not clipped",
        "its norm is above max_norm = {max_norm:g} at the step: clip_grad_norm_ is missing, or comes after scaler.step",
        PRECISION,
    ),
    Mistake(
        "autocast",
        "epoch",
        "later windows run with the weights of the first",
        "one autocast block around the whole epoch keeps its 16-bit copies of the weights after a step has changed "
        "them: open it for each forward pass",
        PRECISION,
    ),
    Mistake(
        "weight",
        "after",
        "the gradient is divided after it was clipped",
        "clipping sees the sum over the window, and the division shrinks what it left; a max_norm that is divided does "
        "the same. Divide first, then clip to max_norm",
        PRECISION,
    ),
    _SUM,
    _STEPS,
    _ALL,
)
