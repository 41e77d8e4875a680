"""The check of "what fits first": six ways to train, each with the peak that the lesson's arithmetic gives it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..base import Trial, check
from ..measure import virtual_gpu
from ..wording import as_float, is_number, is_whole, show
from .sections import OPTIMIZER

PLANS = (
    ("float32", "AdamW"),
    ("float32", "AdamW fused"),
    ("autocast", "AdamW fused"),
    ("autocast", "Adafactor"),
    ("bfloat16", "AdamW fused"),
    ("bfloat16", "Adafactor"),
)
Shapes = list[tuple[int, ...]]
Answer = tuple[str, str, float] | None


@dataclass(frozen=True)
class Counting:
    """How a plan's bytes are counted: right by default, or with the misconceptions named."""

    moments: str = "larger"  # or sum: both moments at once · step, forward: that moment only
    adam: int = 2  # numbers for each element
    temporaries: str = "kind"  # or none · always: fused has them too
    autocast_weights: int = 4
    autocast_gradients: int = 4
    autocast_activations: float = 0.5
    copies: str = "matrices"  # or none · all: of vectors too
    factored: str = "rows+columns"  # or none · full · product: of all dimensions of all shapes summed
    vectors: bool = True  # whether Adafactor has a number for each element of a vector
    largest: str = "largest"  # Adafactor's temporaries: two of the largest · the largest two · one · none · all ·
    # two of the one with the most rows · the largest sum · of the largest matrix
    bfloat16_state: int = 2
    bfloat16_activations: float = 0.5
    gradients: bool = True
    scale: float = 1  # of the result

    def peak(self, shapes: Shapes, activations: int, precision: str, optimizer: str) -> float:
        sizes = [math.prod(shape) for shape in shapes]
        n, low = sum(sizes), precision == "bfloat16"
        matrices = sum(
            size for size, shape in zip(sizes, shapes, strict=True) if len(shape) > 1 or self.copies == "all"
        )
        width = 2 if low else 4
        weights = (2 if low else self.autocast_weights if precision == "autocast" else 4) * n
        gradients = (2 if low else self.autocast_gradients if precision == "autocast" else 4) * n * self.gradients
        number = self.bfloat16_state if low else 4
        if optimizer == "Adafactor":
            state = number * self._factored(shapes)
            held = {
                "largest": 2 * max(sizes),
                "rows": 2 * math.prod(max(shapes)),
                "sum": 2 * math.prod(max(shapes, key=sum)),
                "matrix": 2 * max(map(math.prod, _matrices(shapes))),
                "two": sum(sorted(sizes)[-2:]),
                "one": max(sizes),
                "none": 0,
                "all": n,
            }[self.largest]
        else:
            state = number * self.adam * n
            with_temporaries = optimizer == "AdamW" or self.temporaries == "always"
            held = n if with_temporaries and self.temporaries != "none" else 0
        kept: float = activations
        if precision == "autocast":
            kept = activations * self.autocast_activations + (2 * matrices if self.copies != "none" else 0)
        elif low:
            kept = activations * self.bfloat16_activations
        moments = {"step": gradients + width * held, "forward": kept}
        most = {"larger": max(moments.values()), "sum": sum(moments.values())}
        return (weights + state + (moments | most)[self.moments]) * self.scale

    def _factored(self, shapes: Shapes) -> int:
        if self.factored == "none":
            return 0
        if self.factored == "full":
            return sum(map(math.prod, shapes))
        return sum(sum(shape) if len(shape) > 1 else shape[0] * self.vectors for shape in shapes)

    def answer(self, shapes: Shapes, activations: int, budget: int) -> Answer:
        for precision, optimizer in PLANS:
            peak = self.peak(shapes, activations, precision, optimizer)
            if peak <= budget:
                return precision, optimizer, peak
        return None


def _matrices(shapes: Shapes) -> Shapes:
    return [shape for shape in shapes if len(shape) > 1]


RIGHT = Counting()
# How it is counted wrongly, what to say of it, and what is likely.
KNOWN: tuple[tuple[Counting, str, str], ...] = (
    (
        Counting(moments="sum"),
        "two moments are added up that never meet",
        "activations are gone when the optimizer steps; gradients and temporaries are not there before. The larger of "
        "the two counts",
    ),
    (
        Counting(moments="step"),
        "the end of the forward pass is not counted",
        "with many activations the peak is there, before there is any gradient",
    ),
    (
        Counting(moments="forward"),
        "the optimizer's step is not counted",
        "after backward the activations are gone, and gradients and temporaries stand in their place",
    ),
    (
        Counting(gradients=False),
        "the gradients are left out",
        "each parameter has one, of its own dtype, until zero_grad() lets it go",
    ),
    (
        Counting(adam=1),
        "AdamW is given one number for each element",
        "it keeps two: the mean of the gradients and that of their squares",
    ),
    (
        Counting(temporaries="none"),
        "the default AdamW is counted as if it were fused",
        "foreach works on all parameters at once: one more number for each element during the step",
    ),
    (
        Counting(temporaries="always"),
        "the fused AdamW is given temporaries",
        "one kernel reads and writes each number once: that is why it is called fused",
    ),
    (
        Counting(autocast_weights=2),
        "autocast is taken to halve the weights",
        "it casts copies of them for the products; the weights that are trained stay float32",
    ),
    (
        Counting(autocast_gradients=2),
        "autocast is taken to halve the gradients",
        "a gradient has the dtype of its parameter, which stays float32",
    ),
    (
        Counting(autocast_weights=2, autocast_gradients=2, copies="none"),
        "autocast is taken to halve everything",
        "it halves activations. Weights, gradients and state stay float32, and 16-bit copies of matrices come on top",
    ),
    (
        Counting(autocast_activations=1),
        "autocast's activations are counted in full",
        "what products and attention keep is 16 bits wide: half of the bytes",
    ),
    (
        Counting(copies="none"),
        "the copies that autocast makes are left out",
        "backward needs each matrix in 16 bits, so the copies live as long as the activations",
    ),
    (
        Counting(copies="all"),
        "autocast's copies are counted for vectors too",
        "only matrices are cast here: the table says “of every matrix”",
    ),
    (
        Counting(factored="none"),
        "Adafactor's state is left out",
        "it is small, and not nothing: a number for each row and each column, and one for each element of a vector",
    ),
    (
        Counting(factored="full"),
        "Adafactor is given a number for each element",
        "of a matrix it keeps the means of rows and columns: r + c numbers, not r × c",
    ),
    (
        Counting(vectors=False),
        "Adafactor's vectors are left out",
        "there is nothing to factor in a vector: it keeps a number for each element",
    ),
    (
        Counting(largest="none"),
        "Adafactor's temporaries are left out",
        "its step holds as many numbers as two parameters of the largest size",
    ),
    (
        Counting(largest="one"),
        "Adafactor's temporaries are counted once",
        "its step holds as many numbers as two parameters of the largest size",
    ),
    (
        Counting(largest="two"),
        "Adafactor's temporaries are those of the two largest parameters",
        "twice the largest: two numbers for each of its elements, while it is its turn",
    ),
    *(
        (
            Counting(largest=by),
            "another parameter than the largest is taken for Adafactor's temporaries",
            "max(shapes) compares rows, and a vector may be the largest: take the largest product, math.prod(shape)",
        )
        for by in ("rows", "sum", "matrix")
    ),
    (
        Counting(largest="all"),
        "Adafactor's temporaries are counted for all parameters",
        "it goes from parameter to parameter: two of the largest size, not one of each",
    ),
    (
        Counting(bfloat16_state=4),
        "bfloat16's state is counted in float32",
        "an optimizer's numbers have the dtype of its parameters: 2 bytes",
    ),
    (
        Counting(bfloat16_activations=1),
        "bfloat16's activations are counted in full",
        "they are given for float32; in 16 bits they are half",
    ),
)
HELD, TOTAL = 2**30, 15 * 2**30  # bytes that lie on the GPU in force, and about all that it has
UNITS = ((2**20, "MiB"), (10**6, "MB"), (2**30, "GiB"), (10**9, "GB"))


def cases() -> Iterator[tuple[Shapes, int, int]]:
    """Shapes, activations and a budget: each plan is the answer for few and for many activations; then none is."""
    for many, vector in ((0, False), (1, False), (0, True)):
        width = random.choice((12_000, 16_000) if vector else (96, 128, 160))  # the former for more than a GPU has
        shapes: Shapes = [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width, width)]
        shapes = shapes * random.randint(2, 4) + [(width,)] * random.randint(3, 9)
        shapes.append((width, 1))  # a matrix all the same
        random.shuffle(shapes)
        # The one largest, neither first nor last: nearly square, with fewer rows than others; or a vector.
        largest = (6 * width**2,) if vector else (2 * width, 3 * width - 1)
        shapes.insert(random.randrange(1, len(shapes)), largest)
        elements = sum(map(math.prod, shapes))
        activations = 2 * random.randint(10 * elements, 14 * elements) if many else 2 * random.randint(1000, elements)
        peaks = sorted({int(RIGHT.peak(shapes, activations, *plan)) for plan in PLANS}, reverse=True)
        for peak, above in itertools.pairwise([*peaks, peaks[-1] // 2]):
            yield shapes, activations, peak  # to the byte
            yield shapes, activations, peak - random.randint(1, max(1, (peak - above) // 50))


@check(lesson=6, says="the first plan that fits, with the larger of its two moments")
def fit_budget(student: Any, trial: Trial) -> None:
    """Check a function of (shapes, activations, budget): the first of the six plans whose peak is within the budget,
    as (precision, optimizer, bytes), or None."""
    trial.function(student, ("shapes", "activations", "budget"))
    asked: list[tuple[Shapes, int, int]] = []
    answers: list[Any] = []
    for shapes, activations, budget in cases():
        given = list(shapes)
        with virtual_gpu(compute=False):  # on which something lies already: not to be asked
            held = torch.empty(HELD, dtype=torch.uint8, device="cuda")
            answer = trial.call(student, given, activations, budget, explain=_explain)
            del held
        _judge_form(trial, answer, RIGHT.answer(shapes, activations, budget))
        asked.append((shapes, activations, budget))
        answers.append(answer)
    wanted = [RIGHT.answer(*inputs) for inputs in asked]
    wrong = next((i for i, pair in enumerate(zip(answers, wanted, strict=True)) if not _same(*pair)), None)
    if wrong is not None:
        _fail(trial, asked, answers, wanted, wrong)
    for answer in answers:
        trial.expect(
            answer is None or is_whole(answer[2]),
            "the peak is not a whole number",
            expected="an int: bytes",
            got=show(answer),
            likely="/ gives a float, // an int",
            read=OPTIMIZER,
        )


def _judge_form(trial: Trial, answer: Any, want: Answer) -> None:
    fits = isinstance(answer, tuple | list) and len(answer) == 3
    fits = fits and all(isinstance(word, str) for word in answer[:2])
    fits = fits and is_number(answer[2])
    trial.expect(
        answer is None or fits,
        "the answer has another form",
        expected=f"(precision, optimizer, bytes) such as {show(want or (*PLANS[0], 123))}, or None",
        got=show(answer),
        likely="return the words of PLANS and the peak, in this order",
        read=OPTIMIZER,
    )
    trial.expect(
        answer is None or tuple(answer[:2]) in PLANS,
        "this is none of the plans",
        expected="a pair of PLANS",
        got=show(answer),
        read=OPTIMIZER,
    )


def _fail(
    trial: Trial, asked: list[tuple[Shapes, int, int]], answers: list[Any], wanted: list[Answer], at: int
) -> None:
    shapes, activations, budget = asked[at]
    n = sum(map(math.prod, shapes))
    rows = {
        "expected": f"{_words(wanted[at])}, for {n:,} elements, {activations:,} bytes of activations, "
        f"a budget of {budget:,}",
        "got": _words(answers[at]),
        "read": OPTIMIZER,
    }
    for counting, summary, likely in KNOWN:
        if _explains(answers, [counting.answer(*inputs) for inputs in asked]):
            trial.fail(summary, likely=likely, **rows)
    for size, unit in UNITS:
        scaled = [None if want is None else (*want[:2], want[2] / size) for want in wanted]
        if _explains(answers, scaled, 2e-2):
            trial.fail(f"the peak is returned in {unit}", likely="bytes were asked for, an int", **rows)
    if all(answer is None for answer in answers):
        trial.fail("nothing is ever returned", likely="the function ends without a return", **rows)
    peaks = [[RIGHT.peak(shapes, activations, *plan) for plan in PLANS] for shapes, activations, _ in asked]
    smallest = [_best(row, inputs[2]) for row, inputs in zip(peaks, asked, strict=True)]
    if _explains(answers, smallest):
        trial.fail(
            "the last plan is returned, the smallest, not the first that fits",
            likely="the order of PLANS is that of what they ask of you: stop at the first",
            **rows,
        )
    budgets = [budget for *_, budget in asked]
    for less in [budget - HELD for budget in budgets], [min(budget, TOTAL) for budget in budgets]:
        by_the_gpu = [RIGHT.answer(*inputs[:2], budget) for inputs, budget in zip(asked, less, strict=True)]
        if _explains(answers, by_the_gpu):
            trial.fail(
                "what is on a GPU is taken from the budget",
                likely="budget is an argument, perhaps that of another machine: no GPU is asked",
                **rows,
            )
    strict = [RIGHT.answer(shapes, activations, budget - 1) for shapes, activations, budget in asked]
    if _explains(answers, strict):
        trial.fail("a peak of exactly the budget is refused", likely="it fits: peak <= budget", **rows)
    got, want = answers[at], wanted[at]
    if got is not None:
        right = RIGHT.peak(shapes, activations, *got[:2])
        if abs(got[2] - right) <= 1:
            trial.fail(
                "another plan comes first",
                likely="its peak is right: is each plan compared with the budget, in the order of PLANS?",
                **rows,
            )
        trial.fail(
            f"the peak of {got[0]} with {got[1]} is wrong",
            likely=f"it is {right:,.0f} bytes; count each part by hand for one matrix and one vector",
            **rows,
        )
    trial.fail(
        "a plan that fits is not found",
        likely=f"the peak of {want[0]} with {want[1]} is overestimated" if want else "",
        **rows,
    )


def _best(peaks: list[float], budget: int) -> Answer:
    peak, plan = min(zip(peaks, PLANS, strict=True))
    return (*plan, peak) if peak <= budget else None


def _explains(answers: list[Any], by: list[Answer], within: float = 1.0) -> bool:
    return all(_same(a, b, within) for a, b in zip(answers, by, strict=True))


def _same(got: Any, want: Answer, within: float = 1.0) -> bool:
    if got is None or want is None:
        return got is None and want is None
    return tuple(got[:2]) == want[:2] and abs(as_float(got[2]) - want[2]) <= within


def _words(answer: Any) -> str:
    return (
        "None: nothing fits" if answer is None else f"{answer[0]}, {answer[1]}, {answer[2]:,} bytes".replace(".0 ", " ")
    )


def _explain(error: str) -> str:
    return next((why for part, why in _ERRORS.items() if part in error), "")


_ERRORS = {
    "not enough values to unpack": "a vector's shape has one number: not every shape is rows and columns",
    "tuple index out of range": "a vector's shape has one number: not every shape is rows and columns",
    "KeyError": "the names of PLANS are “AdamW”, “AdamW fused” and “Adafactor”; “float32”, “autocast” and “bfloat16”",
    "'PLANS'": "run the cell with PLANS first",
}
