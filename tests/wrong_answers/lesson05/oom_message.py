"""Answers to "read the message": the figures, what they add up to, and the remedy."""

import re

from gpulab.check.lesson05.sections import SECTIONS

from ..by_hand import Bank
from ..edits import change, solution

BANK = Bank("oom_message", SECTIONS)

MIB = 2**20
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PATTERNS = {
    "tried": "Tried to allocate #",
    "capacity": "total capacity of #",
    "free": "of which # is free",
    "allocated": "# is allocated by PyTorch",
    "cached": "# is reserved by PyTorch but",
    "allowed": "# allowed;",
    "pools": "with # allocated in private pools",
}
NEEDED = ("tried", "capacity", "free", "allocated", "cached")
OWN, NUMBERED = "this process has # memory in use", r"Process \d+ has # memory in use"


def all_figures(message, pattern, units=UNITS):
    found = re.findall(pattern.replace("#", r"([\d.]+) (bytes|KiB|MiB|GiB)"), message)
    return [round(float(size) * units[unit]) for size, unit in found]


def figures(message, units=UNITS, patterns=PATTERNS):
    read = {name: next(iter(all_figures(message, pattern, units)), None) for name, pattern in patterns.items()}
    if missing := [name for name in NEEDED if name in patterns and read[name] is None]:
        raise ValueError(f"not found: {missing}")
    return read


def own_process(message, read):
    own = all_figures(message, OWN)
    if not own:
        own = sorted(size for size in all_figures(message, NUMBERED) if size >= read["allocated"] + read["cached"])
    return own[0] if own and own[0] <= read["capacity"] else None


def left_over(read):
    if read["process"] is None:
        return None
    others = read["capacity"] - read["free"] - read["process"]
    return others if others >= 64 * MIB else 0


def bounds(tried):
    return {2 * MIB: (1, MIB), 20 * MIB: (MIB, 20 * MIB)}.get(tried, (max(10 * MIB, tried - 2 * MIB), tried))


def remedy(read, message):
    tried, free, others = read["tried"], read["free"], read["others"]
    if tried > min(read["capacity"], read["allowed"] or read["capacity"]):
        return "smaller request"
    if (read["allowed"] is not None and free >= tried) or "exceeds the expandable-segment reserve" in message:
        return "raise the limit"
    if free > tried:
        return None
    if read["cached"] >= tried and "expandable_segments is enabled" not in message:
        return "expandable segments"
    if others is None:
        at_most = read["capacity"] - free - read["allocated"] - read["cached"]
        return None if at_most >= tried - free else "free tensors"
    return "end the other process" if others >= tried - free > 0 else "free tensors"


def answer(message, **changes):
    """A right answer, but for the parts that `changes` computes from the figures, each before what follows from it."""
    read = figures(message)
    parts = {
        "process": lambda read: own_process(message, read),
        "others": left_over,
        "tensor": lambda read: bounds(read["tried"]),
        "need": lambda read: read["allocated"] - (read["pools"] or 0) + read["tensor"][0],
        "remedy": lambda read: remedy(read, message),
    }
    right = dict(read)
    for name, compute in parts.items():
        right[name] = compute(right)
    return right | {name: compute(right) for name, compute in changes.items()}


# --- right ---------------------------------------------------------------------------------------------


@BANK.right
def reads_with_one_pattern_each(message):
    return answer(message)


@BANK.right
def reads_by_splitting(message):
    def size(text):
        number, unit = text.split()[:2]
        return float(number) * UNITS[unit.strip(".,;")]

    def before(text):
        return size(" ".join(message.split(text)[0].split()[-2:])) if text in message else None

    ends = (
        "Tried to allocate ",
        "total capacity of ",
        "of which ",
        " is allocated by PyTorch",
        " is reserved by PyTorch",
    )
    if not all(end in message for end in ends):
        raise ValueError(f"no figure for {' or '.join(NEEDED)}")
    read = {
        "tried": size(message.split("Tried to allocate ")[1]),
        "capacity": size(message.split("total capacity of ")[1]),
        "free": size(message.split("of which ")[1]),
        "allocated": before(" is allocated by PyTorch"),
        "cached": before(" is reserved by PyTorch"),
        "allowed": before(" allowed;"),
        "pools": before(" allocated in private pools"),
    }
    sentences = [part.split(" has ")[-1] for part in message.split(" memory in use")[:-1]]
    whose = ["this process" in part for part in message.split(" memory in use")[:-1]]
    sizes = [size(part) for part in sentences]
    mine = [value for value, own in zip(sizes, whose, strict=True) if own] or [
        value for value in sorted(sizes) if value >= read["allocated"] + read["cached"]
    ]
    read["process"] = mine[0] if mine and mine[0] <= read["capacity"] else None
    read["others"] = left_over(read)
    read["tensor"] = list(bounds(read["tried"]))
    read["need"] = read["allocated"] - (read["pools"] or 0) + read["tensor"][0]
    return read | {"remedy": remedy(read, message)}


@BANK.right
def asks_for_the_unknown_first(message):
    named = dict.fromkeys(NEEDED, "?") | {k: v[0] for k in NEEDED if (v := all_figures(message, PATTERNS[k]))}
    if "?" in named.values():
        unknown = ", ".join(name for name, value in named.items() if value == "?")
        raise ValueError(f"I do not know this form: {unknown}")
    return answer(message)


# --- wrong: the figures --------------------------------------------------------------------------------


@BANK.wrong("the figure for tried is wrong", "multiply by it")
def forgets_the_units(message):
    rest = {"process": 0, "others": 0, "tensor": (1, 1), "need": 1, "remedy": ""}
    return figures(message, dict.fromkeys(UNITS, 1)) | rest


@BANK.wrong("the figure for tried is wrong", "10**6 and 10**9 are MB and GB")
def takes_powers_of_ten(message):
    return answer(message) | figures(message, {"bytes": 1, "KiB": 10**3, "MiB": 10**6, "GiB": 10**9})


@BANK.wrong("the figure for tried is wrong", "make a number of it")
def leaves_texts(message):
    return answer(message) | {"tried": re.search(r"allocate (.*?)\. GPU", message)[1]}


@BANK.wrong("the figure for process is wrong", "the line of another process")
def takes_the_neighbours_line(message):
    own = all_figures(message, r"[Pp]rocess (?:\d+ )?has # memory")
    return answer(message) | {"process": own[0] if own else None}


@BANK.wrong("the figure for free is wrong", "this is the figure for cached")
def takes_the_cache_for_free(message):
    return answer(message, free=lambda read: read["cached"])


@BANK.wrong("the figure for cached is wrong", "nothing was found in the text")
def looks_for_other_words(message):
    return answer(message) | {"cached": next(iter(all_figures(message, "cached #")), None)}


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


# --- wrong: the forms of the message -------------------------------------------------------------------


@BANK.wrong("your function raised TypeError", "in a container yours is one of")
def expects_this_process(message):
    own = re.search(r"this process has ([\d.]+) (\w+) memory", message)
    return answer(message) | {"process": float(own[1]) * UNITS[own[2]]}


@BANK.wrong("your function raised IndexError", "in a container yours is one of")
def cuts_at_this_process(message):
    size, unit = message.split("this process has ")[1].split()[:2]
    return answer(message) | {"process": float(size) * UNITS[unit]}


@BANK.wrong("the figure for process is wrong", "there is no “this process” in a container")
def finds_no_process_in_a_container(message):
    return answer(message, process=lambda read: next(iter(all_figures(message, OWN)), None))


@BANK.wrong("the figure for process is wrong", "at least what PyTorch has reserved")
def takes_the_first_line_in_a_container(message):
    lines = all_figures(message, OWN) or all_figures(message, NUMBERED)
    return answer(message, process=lambda read: lines[0] if lines else None)


@BANK.wrong(
    "the figure for process is wrong",
    "at least what PyTorch has reserved",
    same_as="takes_the_first_line_in_a_container",
)
def takes_the_largest_line_in_a_container(message):
    lines = all_figures(message, OWN) or all_figures(message, NUMBERED)
    return answer(message, process=lambda read: max(lines, default=None))


@BANK.wrong(
    "the figure for process is wrong",
    "at least what PyTorch has reserved",
    same_as="takes_the_first_line_in_a_container",
)
def adds_all_lines_in_a_container(message):
    lines = all_figures(message, OWN) or all_figures(message, NUMBERED)
    return answer(message, process=lambda read: sum(lines) if lines else None)


@BANK.wrong("a message that does not say what this process has gives no “process”", "are 2**64 bytes")
def believes_the_driver(message):
    lines = all_figures(message, OWN) or [
        size for size in all_figures(message, NUMBERED) if size >= figures(message)["allocated"]
    ]
    return answer(message) | {"process": min(lines, default=None)}


@BANK.wrong("a message that does not say what this process has gives no “process”", "can be this process's")
def puts_reserved_for_the_process(message):
    return answer(message, process=lambda read: read["process"] or read["allocated"] + read["cached"])


@BANK.wrong("a message that does not say what this process has does not say what others have", "an upper bound")
def takes_the_bound_for_others(message):
    def others(read):
        return max(0, read["capacity"] - read["free"] - read["allocated"] - read["cached"])

    return answer(message, others=lambda read: others(read) if read["others"] is None else read["others"])


@BANK.wrong("the figure for allocated is wrong", "this is the figure for pools")
def takes_the_pools_for_allocated(message):
    return answer(message, allocated=lambda read: read["pools"] or read["allocated"])


@BANK.wrong("the figure for pools is wrong", "nothing was found in the text")
def passes_the_pools_over(message):
    return answer(message, pools=lambda read: None)


@BANK.wrong("a message without private pools gives no “pools”")
def writes_zero_for_no_pools(message):
    return answer(message, pools=lambda read: read["pools"] or 0)


@BANK.wrong("a message of another form is not refused", "silently wrong")
def answers_whatever_comes(message):
    try:
        return answer(message)
    except ValueError:
        return dict.fromkeys((*PATTERNS, "process", "others", "tensor", "need")) | {"remedy": "free tensors"}


@BANK.wrong("the error does not say what was not found", "look for what is missing yourself")
def refuses_without_a_word(message):
    try:
        return answer(message)
    except ValueError:
        raise ValueError("no out-of-memory message") from None


@BANK.wrong("your function raised TypeError", "is the sign: look for it")
def stumbles_over_other_forms(message):
    read = {name: next(iter(all_figures(message, pattern)), None) for name, pattern in PATTERNS.items()}
    return {"left": read["capacity"] - read["free"]} and answer(message)


@BANK.wrong("your function raised ValueError", "this message has all that is needed")
def refuses_what_has_no_limit(message):
    if "allowed;" not in message:
        raise ValueError("not found: allowed")
    return answer(message)


# --- wrong: what they add up to ------------------------------------------------------------------------


@BANK.wrong("what other processes hold is wrong", "own context and cache are taken for somebody else's")
def takes_the_context_for_others(message):
    return answer(message, others=lambda read: (read["process"] or 0) - read["allocated"])


@BANK.wrong(
    "what other processes hold is wrong",
    "own context and cache are taken for somebody else's",
    same_as="takes_the_context_for_others",
)
def takes_all_but_its_tensors_for_others(message):
    return answer(message, others=lambda read: read["capacity"] - read["free"] - read["allocated"])


@BANK.wrong("what other processes hold is wrong", "less than 64 MiB counts as 0")
def takes_roundings_for_others(message):
    def others(read):
        return max(0, read["capacity"] - read["free"] - (read["process"] or 0))

    return answer(message, others=others)


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
    return answer(message, need=lambda read: (read["process"] or 0) + read["tried"])


@BANK.wrong("the least need is wrong", "no live tensor is in it")
def counts_the_pools_as_need(message):
    return answer(message, need=lambda read: read["allocated"] + read["tensor"][0])


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
    return changed(
        message, "end the other process", lambda read: (read["others"] or 0) >= read["tried"] - read["free"] > 0
    )


@BANK.wrong(WHY + "others hold less than is missing, and live tensors nearly all", "at least what is missing")
def blames_any_other_process(message):
    def blamed(read):
        return (read["others"] or 0) > 0 and read["remedy"] == "free tensors"

    read = answer(message)
    return read | {"remedy": "end the other process" if blamed(read) else read["remedy"]}


@BANK.wrong(
    WHY + "others hold what is missing, tried − free, though less than was tried", "not with all that was tried"
)
def compares_others_with_all_that_was_tried(message):
    read = answer(message)
    little = read["remedy"] == "end the other process" and read["others"] < read["tried"]
    return read | {"remedy": "free tensors" if little else read["remedy"]}


@BANK.wrong(WHY + "expandable segments are on already, and others hold what is missing", "says that they are on")
def prescribes_what_is_on(message):
    read = answer(message)
    on = "expandable_segments is enabled" in message
    return read | {"remedy": "expandable segments" if on and read["cached"] >= read["tried"] else read["remedy"]}


@BANK.wrong(
    WHY + "expandable segments are on already: live tensors are in the way",
    "says that they are on",
)
def prescribes_what_is_on_where_nobody_else_is(message):
    read = answer(message)
    on = "expandable_segments is enabled" in message and not read["others"]
    return read | {"remedy": "expandable segments" if on and read["cached"] >= read["tried"] else read["remedy"]}


@BANK.wrong(
    WHY + "one request exceeds the reserve of an expandable segment, which is a limit", "the reserve of an expandable"
)
def never_reads_the_last_sentence(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if "reserve of" in message else read["remedy"]}


@BANK.wrong(
    WHY + "no line of a process, or none that can be this one's: the figures do not say who holds the rest",
    "the answer is None",
)
def guesses_where_the_message_is_silent(message):
    read = answer(message)
    return read | {"remedy": read["remedy"] or "free tensors"}


@BANK.wrong(
    WHY + "more is free than was tried, and no limit is named: the figures do not explain it",
    "nvidia-smi or its last sentence",
)
def explains_what_is_not_explained(message):
    read = answer(message)
    return read | {"remedy": "free tensors" if read["free"] > read["tried"] and not read["remedy"] else read["remedy"]}


@BANK.wrong(WHY + "PyTorch's own memory is all of the capacity", "the figures do tell")
def gives_up_without_a_process(message):
    read = answer(message)
    return read | {"remedy": None if read["process"] is None else read["remedy"]}


def edited(name, summary, likely, *edits, same_as=""):
    BANK.wrong(summary, likely, same_as=same_as)(solution(5, "read_oom", *edits, called=name))


edited(
    "forgets_that_ten_is_the_least",
    "the bounds of the tensor's size are wrong",
    "10 MiB and no less",
    change("max(10 * 2**20, tried - 2 * 2**20)", "tried - 2 * 2**20"),
)
edited(
    "takes_a_process_that_holds_what_is_live",
    "the figure for process is wrong",
    "that has at least what PyTorch has reserved",
    change("size >= allocated + cached", "size >= allocated"),
    same_as="takes_the_first_line_in_a_container",
)
edited(
    "rounds_at_half_of_it",
    "what other processes hold is wrong",
    "less than 64 MiB counts as 0",
    change("others < 64 * 2**20", "others < 32 * 2**20"),
    same_as="takes_roundings_for_others",
)
edited(
    "counts_the_cache_as_the_others",
    WHY + "whoever holds the rest, it is less than is missing",
    "the figures do tell",
    change("capacity - free - allocated - cached >= tried - free", "capacity - free - allocated >= tried - free"),
)
edited(
    "forgets_the_limit_of_a_request",
    WHY + "one request is larger than this process may have",
    "",
    change("min(capacity, allowed or capacity)", "capacity"),
)
edited(
    "knows_no_kibibytes",
    "your function raised ValueError",
    "up to 1 MiB are in KiB",
    change('"bytes": 1, "KiB": 2**10', '"bytes": 1'),
    change("(bytes|KiB|MiB|GiB)", "(bytes|MiB|GiB)"),
)
edited(
    "takes_a_kibibyte_for_a_thousand",
    "the figure for cached is wrong",
    "MiB is 2**20 bytes",
    change('"KiB": 2**10', '"KiB": 10**3'),
)
edited(
    "needs_a_decimal_point",
    "your function raised ValueError",
    "has no decimal point",
    change(r"([\d.]+) (bytes|KiB|MiB|GiB)", r"(\d+\.\d+|0) (bytes|KiB|MiB|GiB)"),
)
edited(
    "reads_gpu_0_only",
    "your function raised ValueError",
    "need not be GPU 0",
    change('"total capacity of #"', '"GPU 0 has a total capacity of #"'),
)
edited(
    "knows_processes_of_five_digits",
    "the figure for process is wrong",
    "there is no “this process” in a container",
    change(r"Process \d+ has", r"Process \d{3,5} has"),
    same_as="finds_no_process_in_a_container",
)
edited(
    "believes_the_own_line",
    "a message that does not say what this process has gives no “process”",
    "are 2**64 bytes",
    change("    process = process if process is not None and process <= capacity else None\n", ""),
    change("if size >= allocated + cached]", "if capacity >= size >= allocated + cached]"),
    same_as="believes_the_driver",
)
edited(
    "looks_for_the_capacity_only",
    "your function raised TypeError",
    "any one of the five can be missing",
    change('("tried", "capacity", "free", "allocated", "cached")', '("capacity",)'),
)
edited(
    "gives_the_names_of_two_only",
    "the error does not say what was not found",
    "",
    change("{', '.join(missing)}", "capacity or free"),
    same_as="refuses_without_a_word",
)
edited(
    "needs_a_mebibyte_at_the_least",
    "the least need is wrong",
    "the smallest tensor of this segment has 1 byte",
    change("+ tensor[0]", "+ max(tensor[0], 2**20)"),
)
edited(
    "leaves_out_the_lower_bound",
    "the bounds of the tensor's size are wrong",
    "give the lower bound itself",
    change("20 * 2**20: (2**20, 20 * 2**20)", "20 * 2**20: (2**20 + 1, 20 * 2**20)"),
)
edited(
    "gives_a_tensor_of_0_bytes",
    "the bounds of the tensor's size are wrong",
    "give the lower bound itself",
    change("2 * 2**20: (1, 2**20)", "2 * 2**20: (0, 2**20)"),
    same_as="leaves_out_the_lower_bound",
)
for name, why, old, new in (
    ("free_as_much_as_tried", "as much is free as was tried, and “allowed” says that a limit is what failed",
     "allowed is not None and free >= tried", "allowed is not None and free > tried"),
    ("cached_as_much_as_tried", "as much is reserved but unallocated as was tried",
     "cached >= tried and", "cached > tried and"),
    ("others_just_what_is_missing", "others hold just what is missing, tried − free",
     "others and others >= tried - free", "others and others > tried - free"),
    ("tried_as_much_as_there_is", "the request is as large as the GPU, and not larger",
     "tried > min(capacity", "tried >= min(capacity"),
    ("rest_just_what_is_missing", "whoever holds the rest, it is just what is missing",
     "cached >= tried - free:", "cached > tried - free:"),
):  # fmt: skip
    edited(name, WHY + why, "", change(old, new))


@BANK.wrong("the figure for process is wrong", "the line of another process", same_as="takes_the_neighbours_line")
def takes_the_last_line(message):
    lines = all_figures(message, r"(?:[Pp]rocess \d+|this process) has # memory in use")
    return answer(
        message, process=lambda read: lines[-1] if read["process"] and OWN[:16] in message else read["process"]
    )
