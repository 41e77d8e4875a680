"""Answers to "what the whole job gains": Amdahl's law with an overhead, and the crossover point."""

import math
from fractions import Fraction

import numpy as np
import torch

from gpulab.check.lesson01.common import SECTIONS

from ..bank import Bank

BANK = Bank("amdahl", SECTIONS)


def with_gpu(seconds, share, factor, overhead):
    return seconds * (1 - share + share / factor) + overhead


def right_speedup(seconds, share, factor, overhead):
    return seconds / with_gpu(seconds, share, factor, overhead)


def right_crossover(seconds, share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return overhead / saved if saved > 0 else math.inf


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def adds_up_the_times(seconds, share, factor, overhead):
    return right_speedup(seconds, share, factor, overhead), right_crossover(seconds, share, factor, overhead)


@BANK.right
def goes_by_cases(seconds, share, factor, overhead):
    stays = seconds * (1 - share)
    moved = 0.0 if math.isinf(factor) else seconds * share / factor
    speedup = seconds / (stays + moved + overhead)
    if share == 0 or factor <= 1:
        return speedup, math.inf
    if overhead == 0:
        return speedup, 0
    remaining = (stays + moved) / seconds
    return speedup, overhead / (1 - remaining)


@BANK.right
def uses_numpy(seconds, share, factor, overhead):
    remaining = np.float64(1 - share + share / factor)
    crossover = np.float64(overhead) / (1 - remaining) if share > 0 and factor > 1 else np.inf
    return [np.float64(seconds) / (seconds * remaining + overhead), crossover]


@BANK.right
def uses_fractions(seconds, share, factor, overhead):
    share, rest = Fraction(share), 0 if math.isinf(factor) else 1 / Fraction(factor)
    time = Fraction(seconds) * (1 - share + share * rest) + Fraction(overhead)
    saved = share * (1 - rest)
    return Fraction(seconds) / time, Fraction(overhead) / saved if saved > 0 else math.inf


@BANK.right
def solves_with_the_time_saved(seconds, share, factor, overhead):
    saved = seconds * share - seconds * share / factor  # of this job
    speedup = 1 / (1 - saved / seconds + overhead / seconds)
    return speedup, (seconds * overhead / saved if saved > 0 else float("inf"))


@BANK.right
def halves_the_distance(seconds, share, factor, overhead):
    """Looks for the length at which both take the same time; without an overhead it comes as near to 0 as it halves."""
    speedup = right_speedup(seconds, share, factor, overhead)
    if share == 0 or factor <= 1:
        return speedup, math.inf
    low, high = 0.0, 1e9
    for _ in range(230):
        middle = (low + high) / 2
        low, high = (low, middle) if with_gpu(middle, share, factor, overhead) <= middle else (middle, high)
    return speedup, high


# --- wrong: the speed-up -------------------------------------------------------------------------------


def and_the_right_crossover(answer):
    """A wrong speed-up beside the right crossover."""

    def both(seconds, share, factor, overhead):
        return answer(seconds, share, factor, overhead), right_crossover(seconds, share, factor, overhead)

    both.__name__ = answer.__name__
    return both


@BANK.wrong("the overhead is missing from the speed-up", "part of the time with the GPU")
@and_the_right_crossover
def forgets_the_overhead(seconds, share, factor, overhead):
    return 1 / (1 - share + share / factor)


@BANK.wrong("the overhead was taken for a share of the job", "it is in seconds")
@and_the_right_crossover
def adds_the_overhead_to_the_shares(seconds, share, factor, overhead):
    return 1 / (1 - share + share / factor + overhead)


@BANK.wrong("the overhead was divided by the factor", "do not get faster")
@and_the_right_crossover
def speeds_up_the_overhead(seconds, share, factor, overhead):
    return seconds / (seconds * (1 - share) + (seconds * share + overhead) / factor)


@BANK.wrong("the overhead was added to the CPU's time too", "copies nothing")
@and_the_right_crossover
def adds_the_overhead_on_both_sides(seconds, share, factor, overhead):
    return (seconds + overhead) / with_gpu(seconds, share, factor, overhead)


@BANK.wrong("the overhead was subtracted", "longer")
@and_the_right_crossover
def subtracts_the_overhead(seconds, share, factor, overhead):
    return seconds / with_gpu(seconds, share, factor, -overhead)


@BANK.wrong("share was taken for the part that stays on the CPU", "share is what the GPU takes over")
@and_the_right_crossover
def takes_share_for_the_serial_part(seconds, share, factor, overhead):
    return seconds / (seconds * (share + (1 - share) / factor) + overhead)


@BANK.wrong("the time came back, and not the speed-up", "divide the time on the CPU")
@and_the_right_crossover
def returns_the_time(seconds, share, factor, overhead):
    return with_gpu(seconds, share, factor, overhead)


@BANK.wrong("the speed-up is upside down", "above 1 where the GPU helps")
@and_the_right_crossover
def turns_it_upside_down(seconds, share, factor, overhead):
    return with_gpu(seconds, share, factor, overhead) / seconds


@BANK.wrong("the speed-up came in per cent", "two thirds")
@and_the_right_crossover
def returns_per_cent(seconds, share, factor, overhead):
    return (right_speedup(seconds, share, factor, overhead) - 1) * 100


@BANK.wrong("speeds were added, and not times", "Gustafson")
@and_the_right_crossover
def uses_gustafson(seconds, share, factor, overhead):
    return 1 - share + share * factor


@BANK.wrong("share · factor is no speed-up", "times add up")
@and_the_right_crossover
def multiplies_share_and_factor(seconds, share, factor, overhead):
    return share * factor


@BANK.wrong("the part that stays on the CPU is missing", "the factor holds for the share")
@and_the_right_crossover
def returns_the_factor(seconds, share, factor, overhead):
    return factor


@BANK.wrong("the part that stays on the CPU is missing", "the factor holds for the share", same_as="returns_the_factor")
@and_the_right_crossover
def speeds_up_the_whole_job(seconds, share, factor, overhead):
    return seconds / (seconds / factor + overhead)


@BANK.wrong("the part that stays on the CPU is missing", "only the share on the GPU was timed")
@and_the_right_crossover
def times_the_gpu_only(seconds, share, factor, overhead):
    return seconds / (seconds * share / factor + overhead)


@BANK.wrong("the speed-up is not right", "(1 - share) of it")
@and_the_right_crossover
def rounds_to_two_digits(seconds, share, factor, overhead):
    return round(right_speedup(seconds, share, factor, overhead), 2)


# --- wrong: the crossover ------------------------------------------------------------------------------


def after_the_right_speedup(answer):
    """A wrong crossover beside the right speed-up."""

    def both(seconds, share, factor, overhead):
        return right_speedup(seconds, share, factor, overhead), answer(seconds, share, factor, overhead)

    both.__name__ = answer.__name__
    return both


@BANK.wrong("the factor is missing from the crossover", "what a second of the job saves")
@after_the_right_speedup
def forgets_the_factor(seconds, share, factor, overhead):
    return overhead / share if share else math.inf


@BANK.wrong("the share is missing from the crossover", "only the share")
@after_the_right_speedup
def forgets_the_share(seconds, share, factor, overhead):
    return overhead / (1 - 1 / factor) if factor > 1 else math.inf


@BANK.wrong("the overhead itself is not the crossover", "saves less than its own length")
@after_the_right_speedup
def returns_the_overhead(seconds, share, factor, overhead):
    return overhead


@BANK.wrong("the crossover was reckoned with the part that stays on the CPU", "drops out")
@after_the_right_speedup
def divides_by_what_stays(seconds, share, factor, overhead):
    return overhead / (1 - share) if share < 1 else math.inf


@BANK.wrong("the crossover was reckoned with what remains, and not with what is saved", "at the crossover t =")
@after_the_right_speedup
def divides_by_what_remains(seconds, share, factor, overhead):
    return overhead / (1 - share + share / factor)


@BANK.wrong("the crossover is not in seconds", "in seconds")
@after_the_right_speedup
def returns_milliseconds(seconds, share, factor, overhead):
    return right_crossover(seconds, share, factor, overhead) * 1000


@BANK.wrong("the crossover came as a part of this job's length", "does not depend on how long")
@after_the_right_speedup
def returns_a_part_of_the_job(seconds, share, factor, overhead):
    return right_crossover(seconds, share, factor, overhead) / seconds


@BANK.wrong("the crossover is the length itself, not what is missing to it")
@after_the_right_speedup
def returns_the_distance(seconds, share, factor, overhead):
    return seconds - right_crossover(seconds, share, factor, overhead)


@BANK.wrong("the crossover is the length of this job", "whatever this job is")
@after_the_right_speedup
def returns_this_job(seconds, share, factor, overhead):
    return seconds


@BANK.wrong("the crossover is negative", "used beyond its range: where it is no faster at its part")
@after_the_right_speedup
def goes_below_zero(seconds, share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return overhead / saved if saved else math.inf


@BANK.wrong("a GPU that never pays has a crossover", "is no faster at its part")
@after_the_right_speedup
def clamps_at_zero(seconds, share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return max(0.0, overhead / saved) if saved else math.inf


@BANK.wrong("a GPU that never pays has a crossover", "takes over nothing")
@after_the_right_speedup
def says_zero_where_nothing_is_moved(seconds, share, factor, overhead):
    return right_crossover(seconds, share, factor, overhead) if share else 0.0


@BANK.wrong("a GPU without overhead has a crossover", "ahead from the start")
@after_the_right_speedup
def gives_this_job_where_all_pay(seconds, share, factor, overhead):
    return right_crossover(seconds, share, factor, overhead) or seconds


@BANK.wrong("the GPU is said never to pay", "in each second of the job")
@after_the_right_speedup
def judges_by_this_job(seconds, share, factor, overhead):
    if with_gpu(seconds, share, factor, overhead) > seconds:
        return math.inf
    return right_crossover(seconds, share, factor, overhead)


@BANK.wrong("the crossover is not right", "set the two times equal")
@after_the_right_speedup
def takes_the_time_with_the_gpu(seconds, share, factor, overhead):
    return with_gpu(seconds, share, factor, overhead)


@BANK.wrong("crossover is not a number", "has a number here")
@after_the_right_speedup
def returns_none_for_never(seconds, share, factor, overhead):
    crossover = right_crossover(seconds, share, factor, overhead)
    return None if math.isinf(crossover) else crossover


@BANK.wrong("your function raised ZeroDivisionError", "look for that before you divide")
@after_the_right_speedup
def divides_by_nothing_saved(seconds, share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return math.inf if saved < 0 else overhead / saved


# --- wrong: what is returned ---------------------------------------------------------------------------


@BANK.wrong("the two numbers are swapped")
def returns_the_crossover_first(seconds, share, factor, overhead):
    return right_crossover(seconds, share, factor, overhead), right_speedup(seconds, share, factor, overhead)


@BANK.wrong("two values are wanted", "one number came back: both speedup and crossover")
def returns_the_speedup_only(seconds, share, factor, overhead):
    return right_speedup(seconds, share, factor, overhead)


@BANK.wrong("two values are wanted", "without a return")
def prints_it(seconds, share, factor, overhead):
    print(right_speedup(seconds, share, factor, overhead))


@BANK.wrong("two values are wanted")
def returns_three(seconds, share, factor, overhead):
    time = with_gpu(seconds, share, factor, overhead)
    return time, seconds / time, right_crossover(seconds, share, factor, overhead)


@BANK.wrong("speedup is not a number", "formatting is for printing")
def returns_text(seconds, share, factor, overhead):
    speedup = right_speedup(seconds, share, factor, overhead)
    return f"{speedup:.2f}×", right_crossover(seconds, share, factor, overhead)


@BANK.wrong("speedup is not a number", "arithmetic on a tensor")
def returns_a_tensor(seconds, share, factor, overhead):
    speedup = torch.tensor(right_speedup(seconds, share, factor, overhead), dtype=torch.float64)
    return speedup, right_crossover(seconds, share, factor, overhead)


@BANK.wrong("the GPU is said never to pay", "in each second of the job", same_as="judges_by_this_job")
def takes_little_for_nothing(seconds, share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return right_speedup(seconds, share, factor, overhead), overhead / saved if saved > 1e-3 else math.inf


# --- wrong: where two of the values are at an end ------------------------------------------------------


def crossover(share, factor, overhead):
    saved = share * (1 - 1 / factor)
    return overhead / saved if saved > 0 else math.inf


@BANK.wrong("a GPU that never pays has a crossover", "takes over nothing", same_as="says_zero_where_nothing_is_moved")
@after_the_right_speedup
def asks_for_the_overhead_first(seconds, share, factor, overhead):
    return 0 if overhead == 0 and factor > 1 else crossover(share, factor, overhead)


@BANK.wrong("a GPU that never pays has a crossover", "is no faster at its part", same_as="clamps_at_zero")
@after_the_right_speedup
def says_zero_where_nothing_is_saved_for_nothing(seconds, share, factor, overhead):
    return 0 if overhead == 0 and share * (1 - 1 / factor) == 0 and share else crossover(share, factor, overhead)


@BANK.wrong("a GPU without overhead has a crossover", "ahead from the start", same_as="gives_this_job_where_all_pay")
@after_the_right_speedup
def takes_an_endless_factor_for_never(seconds, share, factor, overhead):
    return math.inf if math.isinf(factor) and not overhead else crossover(share, factor, overhead)


@BANK.wrong(
    "your function raised ZeroDivisionError", "look for that before you divide", same_as="divides_by_nothing_saved"
)
@after_the_right_speedup
def divides_by_a_share_of_0(seconds, share, factor, overhead):
    return overhead / share if math.isinf(factor) else crossover(share, factor, overhead)
