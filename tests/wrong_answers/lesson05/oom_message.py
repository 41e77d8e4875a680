"""Answers to "read the message": the figures, what they add up to, and the remedy."""

import re

from gpulab.check.lesson05.sections import SECTIONS

from ..bank import Bank

BANK = Bank("oom_message", SECTIONS)

MIB = 2**20
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PATTERNS = {
    "tried": "Tried to allocate #",
    "capacity": "total capacity of #",
    "free": "of which # is free",
    "process": "this process has # memory in use",
    "allocated": "# is allocated by PyTorch",
    "cached": "# is reserved by PyTorch",
    "allowed": "# allowed;",
}


def figures(message, units=UNITS, patterns=PATTERNS):
    read = {}
    for name, pattern in patterns.items():
        found = re.search(pattern.replace("#", r"([\d.]+) (bytes|KiB|MiB|GiB)"), message)
        read[name] = round(float(found[1]) * units[found[2]]) if found else None
    return read


def left_over(read):
    others = read["capacity"] - read["free"] - read["process"]
    return others if others >= 64 * MIB else 0


def bounds(tried):
    return {2 * MIB: (1, MIB), 20 * MIB: (MIB, 20 * MIB)}.get(tried, (tried - 2 * MIB, tried))


def remedy(read, others):
    if read["tried"] > read["capacity"]:
        return "smaller request"
    if read["allowed"] is not None and read["free"] >= read["tried"]:
        return "raise the limit"
    if read["cached"] >= read["tried"]:
        return "expandable segments"
    if others >= read["tried"] - read["free"] > 0:
        return "end the other process"
    return "free tensors"


def answer(message, **changes):
    """A right answer, but for the parts that `changes` computes from the figures."""
    read = figures(message)
    others = left_over(read)
    tensor = bounds(read["tried"])
    right = {
        "others": others,
        "tensor": tensor,
        "need": read["allocated"] + tensor[0],
        "remedy": remedy(read, others),
    }
    return read | right | {name: compute(read) for name, compute in changes.items()}


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def reads_with_one_pattern_each(message):
    return answer(message)


@BANK.right
def reads_by_splitting(message):
    def after(text, end=None):
        part = message.split(text)[1] if end is None else message.split(end)[0].split(text)[-1]
        size, unit = part.replace(";", " ").replace(".  ", " ").split()[:2]
        return float(size.strip(",")) * UNITS[unit.strip(".,;")]

    read = {
        "tried": after("Tried to allocate "),
        "capacity": after("total capacity of "),
        "free": after("of which "),
        "process": after("this process has "),
        "allocated": after("Of the allocated memory "),
        "cached": after(" by PyTorch, and "),
        "allowed": after("memory in use. ", " allowed") if " allowed" in message else None,
    }
    others = left_over(read)
    tensor = list(bounds(read["tried"]))
    return {
        "others": others,
        "tensor": tensor,
        "need": read["allocated"] + tensor[0],
        "remedy": remedy(read, others),
    } | read


# --- wrong: the figures --------------------------------------------------------------------------------


@BANK.wrong("the figure for tried is wrong", "multiply by it")
def forgets_the_units(message):
    return figures(message, dict.fromkeys(UNITS, 1)) | {"others": 0, "tensor": (1, 1), "need": 1, "remedy": ""}


@BANK.wrong("the figure for tried is wrong", "10**6 and 10**9 are MB and GB")
def takes_powers_of_ten(message):
    return answer(message) | figures(message, {"bytes": 1, "KiB": 10**3, "MiB": 10**6, "GiB": 10**9})


@BANK.wrong("the figure for tried is wrong", "make a number of it")
def leaves_texts(message):
    return answer(message) | {"tried": re.search(r"allocate (.*?)\. GPU", message)[1]}


@BANK.wrong("the figure for process is wrong", "the line of another process")
def takes_the_neighbours_line(message):
    size, unit = re.search(r"[Pp]rocess (?:\d+ )?has ([\d.]+) (\w+) memory", message).groups()
    return answer(message) | {"process": float(size) * UNITS[unit]}


@BANK.wrong("the figure for free is wrong", "this is the figure for cached")
def takes_the_cache_for_free(message):
    return answer(message, free=lambda read: read["cached"])


@BANK.wrong("the figure for cached is wrong", "nothing was found in the text")
def looks_for_other_words(message):
    return answer(message) | {"cached": figures(message, patterns={"cached": "cached #"})["cached"]}


@BANK.wrong("a message without a limit gives no “allowed”")
def takes_the_capacity_for_the_limit(message):
    read = answer(message)
    return read | {"allowed": read["allowed"] or read["capacity"]}


@BANK.wrong("your function raised TypeError", "“allowed” is there only with a limit")
def expects_a_limit(message):
    limit = re.search(r"([\d.]+) (\w+) allowed;", message)
    return answer(message) | {"allowed": float(limit[1]) * UNITS[limit[2]]}


@BANK.wrong("your function raised ValueError", "take digits and dot only")
def cuts_too_much(message):
    return answer(message) | {"tried": float(message.split("allocate ")[1].split("GPU")[0])}


@BANK.wrong("your function raised KeyError", "a dot or a semicolon may follow the unit")
def takes_the_dot_with_the_unit(message):
    size, unit = message.split("allocate ")[1].split(" ")[:2]
    return answer(message) | {"tried": float(size) * UNITS[unit]}


@BANK.wrong("what came back is no dictionary", "ends without a return")
def returns_nothing(message):
    answer(message)


@BANK.wrong("keys are missing")
def stops_at_the_figures(message):
    return figures(message)


# --- wrong: what they add up to ------------------------------------------------------------------------


@BANK.wrong("what other processes hold is wrong", "own context and cache are taken for somebody else's")
def takes_the_context_for_others(message):
    return answer(message, others=lambda read: read["process"] - read["allocated"])


@BANK.wrong(
    "what other processes hold is wrong",
    "own context and cache are taken for somebody else's",
    same_as="takes_the_context_for_others",
)
def takes_all_but_its_tensors_for_others(message):
    return answer(message, others=lambda read: read["capacity"] - read["free"] - read["allocated"])


@BANK.wrong("what other processes hold is wrong", "less than 64 MiB counts as 0")
def takes_roundings_for_others(message):
    return answer(message, others=lambda read: max(0, read["capacity"] - read["free"] - read["process"]))


@BANK.wrong("what other processes hold is wrong", "what is left over in the first of the two sums")
def finds_no_others(message):
    return answer(message, others=lambda read: None)


@BANK.wrong("the bounds of the tensor's size are wrong", "is the segment, not the tensor")
def takes_20_mib_for_the_tensor(message):
    return answer(message, tensor=lambda read: (read["tried"], read["tried"]))


@BANK.wrong("the bounds of the tensor's size are wrong", "18 to 20 is another")
def forgets_the_second_way(message):
    return answer(message, tensor=lambda read: (MIB, 10 * MIB) if read["tried"] == 20 * MIB else bounds(read["tried"]))


@BANK.wrong("the bounds of the tensor's size are wrong", "give the smallest and the largest")
def gives_one_size(message):
    return answer(message, tensor=lambda read: read["tried"])


@BANK.wrong("the bounds of the tensor's size are wrong", "rounded up to 2 MiB")
def thinks_all_segments_are_20_mib(message):
    return answer(message, tensor=lambda read: (MIB, read["tried"]) if read["tried"] > 2 * MIB else (1, MIB))


@BANK.wrong("the bounds of the tensor's size are wrong", "is 2 MiB below")
def takes_a_large_segment_for_the_tensor(message):
    def tensor(read):
        tried = read["tried"]
        return bounds(tried) if tried in (2 * MIB, 20 * MIB) else (tried, tried)

    return answer(message, tensor=tensor)


@BANK.wrong("the least need is wrong", "is the segment: at the least")
def takes_the_segment_for_the_need(message):
    return answer(message, need=lambda read: read["allocated"] + read["tried"])


@BANK.wrong("the least need is wrong", "what is allocated already is needed too")
def takes_tried_for_the_need(message):
    return answer(message, need=lambda read: read["tried"])


@BANK.wrong("the least need is wrong", "what is missing, not what is needed")
def takes_what_is_missing_for_the_need(message):
    return answer(message, need=lambda read: read["tried"] - read["free"])


@BANK.wrong("the least need is wrong", "the cache is no need")
def counts_the_cache_as_need(message):
    return answer(message, need=lambda read: read["process"] + read["tried"])


# --- wrong: the remedy ---------------------------------------------------------------------------------

WHY = "the remedy is not what this message calls for: "


@BANK.wrong(WHY + "neither what is free nor the cache is enough alone, and they do not add up", "are not one piece")
def adds_free_and_cached(message):
    read = answer(message)
    enough = read["free"] + read["cached"] >= read["tried"] and read["remedy"] == "free tensors"
    return read | {"remedy": "expandable segments" if enough and read["tried"] > 100 * MIB else read["remedy"]}


@BANK.wrong(
    WHY + "live tensors are nearly all of the capacity; neither the cache nor anyone else holds 20 MiB",
    "PyTorch has done it by itself",
)
def prescribes_empty_cache(message):
    read = answer(message)
    return read | {"remedy": "empty_cache" if read["remedy"] == "free tensors" else read["remedy"]}


@BANK.wrong(
    WHY + "live tensors are nearly all of the capacity; neither the cache nor anyone else holds 20 MiB",
    "nobody else holds memory here",
)
def blames_another_process(message):
    read = answer(message)
    return read | {"remedy": "end the other process" if read["remedy"] == "free tensors" else read["remedy"]}


@BANK.wrong(WHY + "more is reserved but unallocated than was tried: it lies in pieces", "if it were in one piece")
def never_sees_fragments(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if read["remedy"] == "expandable segments" else read["remedy"]}


@BANK.wrong(WHY + "another process holds most of the GPU", "shows who holds the rest")
def never_looks_at_others(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if read["remedy"] == "end the other process" else read["remedy"]}


@BANK.wrong(WHY + "more is free than was tried, and “allowed” says that a limit is what failed", "it is the limit")
def never_sees_the_limit(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if read["remedy"] == "raise the limit" else read["remedy"]}


@BANK.wrong(WHY + "one request is larger than the whole GPU", "look at its shape")
def frees_for_a_request_that_never_fits(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if read["remedy"] == "smaller request" else read["remedy"]}


@BANK.wrong(
    WHY + "live tensors are nearly all of the capacity; neither the cache nor anyone else holds 20 MiB", "one of:"
)
def answers_in_own_words(message):
    read = answer(message)
    return read | {"remedy": "reduce the batch size"}


def changed(message, remedy, condition):
    """A right answer, but for this remedy where `condition` holds and the request is not larger than the GPU."""
    read = answer(message)
    hold = read["tried"] <= read["capacity"] and condition(read)
    return read | {"remedy": remedy if hold else read["remedy"]}


@BANK.wrong(WHY + "more is free than was tried, and a limit failed, whatever the cache has", "for the limit before")
def asks_for_pieces_before_the_limit(message):
    return changed(message, "expandable segments", lambda read: read["cached"] >= read["tried"])


@BANK.wrong(
    WHY + "less is free than was tried, and the limit is not reached: another process holds the GPU",
    "the limit is not what failed",
)
def blames_every_limit(message):
    return changed(message, "raise the limit", lambda read: read["allowed"] is not None)


@BANK.wrong(WHY + "the cache would be enough, whoever else holds memory", "before it asks for others")
def asks_for_others_before_pieces(message):
    return changed(message, "end the other process", lambda read: read["others"] >= read["tried"] - read["free"] > 0)


@BANK.wrong(WHY + "others hold less than is missing, and live tensors nearly all", "at least what is missing")
def blames_any_other_process(message):
    def blamed(read):
        return read["others"] > 0 and read["remedy"] == "free tensors"

    read = answer(message)
    return read | {"remedy": "end the other process" if blamed(read) else read["remedy"]}


@BANK.wrong(
    WHY + "others hold what is missing, tried − free, though less than was tried", "not with all that was tried"
)
def compares_others_with_all_that_was_tried(message):
    read = answer(message)
    little = read["remedy"] == "end the other process" and read["others"] < read["tried"]
    return read | {"remedy": "free tensors" if little else read["remedy"]}
