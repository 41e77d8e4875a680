"""Answers to "optimizer and precision for a budget": the peak of each plan, and which is returned."""

import math

import numpy as np
import torch

from gpulab.check.lesson06.sections import SECTIONS

from ..by_hand import Bank

BANK = Bank("fit_budget", SECTIONS)

PLANS = [
    ("float32", "AdamW"),
    ("float32", "AdamW fused"),
    ("autocast", "AdamW fused"),
    ("autocast", "Adafactor"),
    ("bfloat16", "AdamW fused"),
    ("bfloat16", "Adafactor"),
]


def parts(shapes, activations, precision, optimizer):
    """Weights, state, what is kept after forward, gradients, temporaries; all in bytes."""
    n = sum(map(math.prod, shapes))
    width = 2 if precision == "bfloat16" else 4
    if optimizer == "Adafactor":
        state = sum(sum(s) if len(s) == 2 else s[0] for s in shapes)
        temporary = 2 * max(map(math.prod, shapes))
    else:
        state, temporary = 2 * n, n if optimizer == "AdamW" else 0
    kept = activations if precision == "float32" else activations // 2
    if precision == "autocast":
        kept += 2 * sum(math.prod(s) for s in shapes if len(s) == 2)
    return width * n, width * state, kept, width * n, width * temporary


def first(shapes, activations, budget, peak_of, plans=PLANS):
    for plan in plans:
        peak = peak_of(*parts(shapes, activations, *plan), *plan)
        if peak <= budget:
            return (*plan, peak)
    return None


def right_peak(weights, state, kept, gradients, temporary, *plan):
    return weights + state + max(kept, gradients + temporary)


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def larger_of_two_moments(shapes, activations, budget):
    return first(shapes, activations, budget, right_peak)


@BANK.right
def counts_with_numpy(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and (*found[:2], np.int64(found[2]))


@BANK.right
def asks_for_one_plan_after_another(shapes, activations, budget):
    elements = [math.prod(shape) for shape in shapes]
    bytes_of = {"float32": 4, "autocast": 4, "bfloat16": 2}
    fitting = []
    for precision, optimizer in PLANS:
        numbers, half = sum(elements), precision != "float32"
        forward = activations / (2 if half else 1)
        if precision == "autocast":
            forward += sum(2 * e for e, s in zip(elements, shapes, strict=True) if len(s) > 1)
        adam = optimizer.startswith("AdamW")
        state = numbers * 2 if adam else sum(s[0] if len(s) == 1 else s[0] + s[1] for s in shapes)
        step = numbers + (0 if "fused" in optimizer else numbers if adam else max(elements) * 2)
        peak = int(
            max(bytes_of[precision] * (numbers + state) + forward, bytes_of[precision] * (numbers + state + step))
        )
        fitting += [[precision, optimizer, peak]] if peak <= budget else []
    return fitting[0] if fitting else None


# --- wrong: what is counted ----------------------------------------------------------------------------


@BANK.wrong("two moments are added up that never meet", "The larger of")
def adds_everything(shapes, activations, budget):
    return first(shapes, activations, budget, lambda *p: sum(p[:5]))


@BANK.wrong("the end of the forward pass is not counted", "before there is any gradient")
def forgets_activations(shapes, activations, budget):
    return first(shapes, activations, budget, lambda w, s, k, g, t, *plan: w + s + g + t)


@BANK.wrong("the optimizer's step is not counted", "stand in their place")
def forgets_the_step(shapes, activations, budget):
    return first(shapes, activations, budget, lambda w, s, k, g, t, *plan: w + s + k)


@BANK.wrong("the gradients are left out", "until zero_grad()")
def forgets_gradients(shapes, activations, budget):
    return first(shapes, activations, budget, lambda w, s, k, g, t, *plan: w + s + max(k, t))


@BANK.wrong("AdamW is given one number for each element", "it keeps two")
def one_moment(shapes, activations, budget):
    def peak(w, s, k, g, t, precision, optimizer):
        return right_peak(w, s if optimizer == "Adafactor" else s // 2, k, g, t)

    return first(shapes, activations, budget, peak)


@BANK.wrong("the default AdamW is counted as if it were fused", "foreach works on all parameters")
def no_temporaries(shapes, activations, budget):
    return first(
        shapes, activations, budget, lambda w, s, k, g, t, *plan: right_peak(w, s, k, g, t * (plan[1] == "Adafactor"))
    )


@BANK.wrong("the fused AdamW is given temporaries", "reads and writes each number once")
def always_temporaries(shapes, activations, budget):
    return first(
        shapes,
        activations,
        budget,
        lambda w, s, k, g, t, *plan: right_peak(w, s, k, g, t if "fused" not in plan[1] else w),
    )


def under_autocast(change):
    """A peak with weights, state, kept, gradients, temporaries changed for autocast's plans."""

    def peak(*args):
        found, (precision, _) = args[:5], args[5:]
        return right_peak(*(change(*found) if precision == "autocast" else found))

    return peak


@BANK.wrong("autocast is taken to halve the weights", "stay float32")
def halves_weights(shapes, activations, budget):
    return first(shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w // 2, s, k, g, t)))


@BANK.wrong("autocast is taken to halve the gradients", "the dtype of its parameter")
def halves_gradients(shapes, activations, budget):
    return first(shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w, s, k, g // 2, t)))


@BANK.wrong("autocast is taken to halve everything", "16-bit copies of matrices come on top")
def halves_everything(shapes, activations, budget):
    return first(
        shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w // 2, s, activations // 2, g // 2, t))
    )


@BANK.wrong("autocast's activations are counted in full", "half of the bytes")
def keeps_activations(shapes, activations, budget):
    return first(shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w, s, k + activations // 2, g, t)))


@BANK.wrong("the copies that autocast makes are left out", "live as long as the activations")
def forgets_copies(shapes, activations, budget):
    return first(shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w, s, activations // 2, g, t)))


@BANK.wrong("autocast's copies are counted for vectors too", "only matrices are cast")
def copies_vectors(shapes, activations, budget):
    return first(
        shapes, activations, budget, under_autocast(lambda w, s, k, g, t: (w, s, activations // 2 + w // 2, g, t))
    )


def with_adafactor(change):
    def peak(w, s, k, g, t, precision, optimizer):
        width = 2 if precision == "bfloat16" else 4
        return right_peak(w, *(change(s, k, g, t, w, width) if optimizer == "Adafactor" else (s, k, g, t)))

    return peak


@BANK.wrong("Adafactor's state is left out", "small, and not nothing")
def no_state(shapes, activations, budget):
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (0, k, g, t)))


@BANK.wrong("Adafactor is given a number for each element", "r + c numbers")
def full_state(shapes, activations, budget):
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (w, k, g, t)))


@BANK.wrong("Adafactor's vectors are left out", "nothing to factor")
def matrices_only(shapes, activations, budget):
    matrices = sum(sum(s) for s in shapes if len(s) == 2)
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (width * matrices, k, g, t)))


@BANK.wrong("Adafactor's temporaries are left out", "two parameters of the largest size")
def no_temporaries_of_adafactor(shapes, activations, budget):
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (s, k, g, 0)))


@BANK.wrong("Adafactor's temporaries are counted once", "two parameters of the largest size")
def half_the_temporaries(shapes, activations, budget):
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (s, k, g, t // 2)))


@BANK.wrong("Adafactor's temporaries are those of the two largest parameters", "twice the largest")
def temporaries_of_the_two_largest(shapes, activations, budget):
    second = sorted(math.prod(shape) for shape in shapes)[-2]

    def in_place_of_twice(s, k, g, t, w, width):
        return s, k, g, t // 2 + width * second

    return first(shapes, activations, budget, with_adafactor(in_place_of_twice))


@BANK.wrong("Adafactor's temporaries are counted for all parameters", "from parameter to parameter")
def temporaries_of_all(shapes, activations, budget):
    return first(shapes, activations, budget, with_adafactor(lambda s, k, g, t, w, width: (s, k, g, w)))


@BANK.wrong("bfloat16's state is counted in float32", "the dtype of its parameters")
def float32_state(shapes, activations, budget):
    return first(
        shapes,
        activations,
        budget,
        lambda w, s, k, g, t, *plan: right_peak(w, s * (2 if plan[0] == "bfloat16" else 1), k, g, t),
    )


@BANK.wrong("bfloat16's activations are counted in full", "in 16 bits they are half")
def float32_activations(shapes, activations, budget):
    return first(
        shapes,
        activations,
        budget,
        lambda w, s, k, g, t, *plan: right_peak(w, s, k * (2 if plan[0] == "bfloat16" else 1), g, t),
    )


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("the last plan is returned, the smallest, not the first that fits", "stop at the first")
def smallest(shapes, activations, budget):
    found = [(*plan, right_peak(*parts(shapes, activations, *plan))) for plan in PLANS]
    best = min(found, key=lambda plan: plan[2])
    return best if best[2] <= budget else None


@BANK.wrong("the last plan is returned, the smallest, not the first that fits", "stop at the first", same_as="smallest")
def last(shapes, activations, budget):
    found = None
    for plan in PLANS:
        peak = right_peak(*parts(shapes, activations, *plan))
        if peak <= budget:
            found = (*plan, peak)
    return found


@BANK.wrong("a peak of exactly the budget is refused", "peak <= budget")
def refuses_equality(shapes, activations, budget):
    return first(shapes, activations, budget - 1, right_peak)


@BANK.wrong("the peak is returned in MiB", "bytes were asked for")
def mebibytes(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and (*found[:2], found[2] / 2**20)


@BANK.wrong("the peak is returned in MB", "bytes were asked for")
def megabytes(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and (*found[:2], round(found[2] / 1e6, 1 + 2))


@BANK.wrong("the peak is not a whole number", "// an int")
def a_float(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and (*found[:2], found[2] / 1)


@BANK.wrong("another plan comes first", "in the order of PLANS")
def another_order(shapes, activations, budget):
    return first(shapes, activations, budget, right_peak, [*PLANS[1:], PLANS[0]])


@BANK.wrong("the answer has another form", "the words of PLANS and the peak")
def only_the_peak(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and found[2]


@BANK.wrong("this is none of the plans")
def the_other_way_round(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    return found and (found[1], found[0], found[2])


@BANK.wrong("nothing is ever returned", "without a return")
def returns_nothing(shapes, activations, budget):
    larger_of_two_moments(shapes, activations, budget)


@BANK.wrong("your function raised ValueError", "a vector's shape has one number")
def unpacks_every_shape(shapes, activations, budget):
    return sum(rows * columns for rows, columns in shapes)


@BANK.wrong("your function changed its argument shapes", "pop or sort")
def takes_the_shapes_apart(shapes, activations, budget):
    found = larger_of_two_moments(shapes, activations, budget)
    shapes.sort()
    return found


@BANK.wrong("a plan that fits is not found", "the peak of bfloat16 with AdamW fused is overestimated")
def never_all_in_16_bits(shapes, activations, budget):
    return first(shapes, activations, budget, right_peak, PLANS[:4])


@BANK.wrong("the peak of autocast with Adafactor is wrong", "count each part by hand")
def counts_gradients_twice(shapes, activations, budget):
    return first(shapes, activations, budget, lambda w, s, k, g, t, *plan: 3 * w + s + max(k, g + t))


@BANK.wrong("the peak of float32 with AdamW is wrong", "count each part by hand")
def forgets_the_weights(shapes, activations, budget):
    return first(shapes, activations, budget, lambda w, s, k, g, t, *plan: s + max(k, g + t))


def counted(shapes, activations, budget, state=sum, is_matrix=lambda shape: len(shape) == 2, largest=max):
    """With the plans' parts counted otherwise: Adafactor's numbers of a matrix, which shapes are matrices, and the size
    of the largest parameter."""

    def peak(weights, _, kept, gradients, temporary, precision, optimizer):
        width, sizes = 2 if precision == "bfloat16" else 4, [math.prod(shape) for shape in shapes]
        if optimizer == "Adafactor":
            mine = width * sum(state(shape) if len(shape) == 2 else shape[0] for shape in shapes)
            temporary = width * 2 * largest(sizes)
        else:
            mine = 2 * weights
        if precision == "autocast":
            kept = activations // 2 + 2 * sum(math.prod(shape) for shape in shapes if is_matrix(shape))
        return weights + mine + max(kept, gradients + temporary)

    return first(shapes, activations, budget, peak)


@BANK.right
def counts_otherwise_and_rightly(shapes, activations, budget):
    return counted(shapes, activations, budget)


@BANK.wrong("the peak of autocast with AdamW fused is wrong", "count each part by hand")
def takes_one_column_for_a_vector(shapes, activations, budget):
    return counted(shapes, activations, budget, is_matrix=lambda shape: len(shape) == 2 and min(shape) > 1)


@BANK.wrong("the peak of autocast with Adafactor is wrong", "count each part by hand", same_as="counts_gradients_twice")
def keeps_each_element_of_one_column(shapes, activations, budget):
    return counted(shapes, activations, budget, state=lambda shape: sum(shape) if min(shape) > 1 else math.prod(shape))


@BANK.wrong("the peak of autocast with Adafactor is wrong", "count each part by hand", same_as="counts_gradients_twice")
def takes_the_first_for_the_largest(shapes, activations, budget):
    return counted(shapes, activations, budget, largest=lambda sizes: sizes[0])


def of_another_parameter(size):
    """Adafactor's temporaries are twice `size(shapes)`."""

    def answer(shapes, activations, budget):
        def peak(w, s, k, g, t, precision, optimizer):
            width = 2 if precision == "bfloat16" else 4
            return right_peak(w, s, k, g, 2 * width * size(shapes) if optimizer == "Adafactor" else t)

        return first(shapes, activations, budget, peak)

    return answer


ANOTHER = "another parameter than the largest is taken for Adafactor's temporaries"


@BANK.wrong(ANOTHER, "max(shapes) compares rows")
def compares_shapes(*inputs):
    return of_another_parameter(lambda shapes: math.prod(max(shapes)))(*inputs)


@BANK.wrong(ANOTHER, "max(shapes) compares rows", same_as="compares_shapes")
def compares_sums(*inputs):
    return of_another_parameter(lambda shapes: math.prod(max(shapes, key=sum)))(*inputs)


@BANK.wrong(ANOTHER, "a vector may be the largest", same_as="compares_shapes")
def looks_at_matrices_only(*inputs):
    return of_another_parameter(lambda shapes: max(math.prod(s) for s in shapes if len(s) > 1))(*inputs)


@BANK.wrong("what is on a GPU is taken from the budget", "budget is an argument")
def asks_the_gpu(shapes, activations, budget):
    taken = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    return first(shapes, activations, budget - taken, right_peak)


@BANK.wrong("what is on a GPU is taken from the budget", "budget is an argument", same_as="asks_the_gpu")
def asks_how_large_the_gpu_is(shapes, activations, budget):
    most = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else budget
    return first(shapes, activations, min(budget, most), right_peak)
