"""Answers to "read the message": the figures, what they add up to, and the remedy."""

from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("oom_message", "read_oom")
RETURN, FIGURE, MISSING = "return read | {", "round(float(number) * units[unit])", "{', '.join(missing)}"
MINE = 'min(figures("this process has # memory in use") or lines, default=None)'
ANY, NUMBERED = 'figures(r"[Pp]rocess (?:\\d+ )?has # memory in use")', "size >= allocated + cached"
OTHERS, SMALL_OTHERS = "capacity - free - process", "others < 64 * 2**20"
BOUNDS, TWENTY = "(max(10 * 2**20, tried - 2 * 2**20), tried)", "20 * 2**20: (2**20, 20 * 2**20)"
NEED, FIVE = "need = allocated - (pools or 0) + tensor[0]", '("tried", "capacity", "free", "allocated", "cached")'
TOO_LARGE, LIMITED = "tried > min(capacity, allowed or capacity)", "allowed is not None and free >= tried"
CACHED, BOUND = "cached >= tried and", "capacity - free - allocated - cached >= tried - free"
ENOUGH, LAST = "others and others >= tried - free", 'remedy = "free tensors"'


def end(line):
    """With this line before the return."""
    return add(line, before="more = {")


ALL_NAMES = change(MISSING, "one of tried, capacity, free, allocated, cached")
NUMPY = add("import numpy", before="units ="), change(FIGURE, "numpy.float64(number) * units[unit]")
BANK.right((*NUMPY, end("tensor = [*tensor]")), (change(FIGURE, "int(float(number) * units[unit])"), ALL_NAMES))
BANK.mistakes(
    # the figures
    ("the figures come without their units", "a number stands in the message with a unit: multiply by it",
     change(FIGURE, "float(number)")),
    ("the units are powers of ten", "MiB is 2**20 bytes and GiB is 2**30; 10**6 and 10**9 are MB and GB",
     change('"KiB": 2**10, "MiB": 2**20, "GiB": 2**30', '"KiB": 10**3, "MiB": 10**6, "GiB": 10**9'),
     change('"KiB": 2**10', '"KiB": 10**3'), end("read |= {k: v and round(v * 0.9537) for k, v in read.items()}")),
    ("what was tried is left a text", "make a number of it, and multiply by its unit",
     end('read["tried"] = re.search(r"allocate (.*?)[.] GPU", message)[1]')),
    ("the cache is taken for what is free", "“of which … is free” is what the driver has left",
     end('read["free"] = cached')),
    ("the limit is never found", "it has words of its own: “… allowed;”", end('read["allowed"] = None')),
    ("the capacity is taken for the limit", "without a limit “allowed” is not in the message: None",
     end('read["allowed"] = allowed or capacity')),
    ("sizes in KiB are not known", "sizes up to 1 MiB are in KiB, 2**10 bytes", change("(bytes|KiB|", "(bytes|")),
    ("a decimal point is asked for", "a number of bytes has none", change(r"([\d.]+)", r"(\d+\.\d+|0)")),
    ("only messages about GPU 0 are read", "“GPU 3 has a total capacity of …” is one too",
     change("total capacity of #", "GPU 0 has a total capacity of #")),
    ("nothing is returned", "the function ends without a return", drop(RETURN)),
    ("only the figures come back", "process, others, tensor, need and remedy are asked for too",
     change(RETURN, "return read or {")),
    # the lines of processes, and private pools
    ("the line of another process is taken for this one's", "this one's begins with “Including non-PyTorch memory”",
     change(MINE, f"next(iter({ANY}), None)"), change(MINE, f"next(reversed({ANY}), None)"),
     change(MINE, "min(figures('this process has # memory in use') + lines, default=None)")),
    ("no process is found in a container", "the driver numbers processes as the host does: yours is one of them",
     change(" or lines, default", ", default"), change(r"Process \d+ has", r"Process \d{3,5} has")),
    ("in a container another process is taken for this one",
     "yours is the smallest of those that have at least what PyTorch has reserved, allocated + cached",
     change(NUMBERED, "True"), change(NUMBERED, "size >= allocated"), change(MINE, MINE.replace("min", "max")),
     change(MINE, MINE.replace("min(", "sum(").replace(", default=None", "") + " or None")),
    ("a size that the driver does not know is believed", "17179869184.00 GiB are 2**64 bytes: it says “unknown” by it",
     change("process is not None and process <= capacity", "True"),
     (change(NUMBERED, "capacity >= size >= allocated + cached"),
      change("process is not None and process <= capacity", "True"))),
    ("what PyTorch has reserved is put for this process", "the context is in its share too, and is not told here",
     add("process = process or allocated + cached", before="others = None")),
    ("what is in private pools is taken for all that is allocated", "“with … in private pools” is a part of it",
     end('read["allocated"] = pools or allocated')),
    ("private pools are passed over", "“with … allocated in private pools” stands among the figures",
     end('read["pools"] = None')),
    ("0 is said where no private pools are named", "what the message does not say is None",
     end('read["pools"] = pools or 0')),
    # messages of another form
    ("a message of another form is answered", "an answer from half of the figures is silently wrong: refuse it",
     change('raise ValueError(f"', 'return (f"')),
    ("of the five figures only some are looked for", "any one of them can be missing: ask for each",
     change(FIVE, "()"), change(FIVE, '("capacity",)'), change('"allocated", "cached") if', '"allocated") if')),
    ("a message without a limit is refused", "tried, capacity, free, allocated and cached belong to every one",
     change('"allocated", "cached") if', '"allocated", "cached", "allowed") if')),
    ("a message is refused without a word", "the error has the names of what is missing", change(MISSING, "something")),
    ("only the first that is missing is named", "the error has the names of all", change(MISSING, "{missing[0]}")),
    # what they add up to
    ("this process's own context and cache are taken for others'", "“this process has … in use” counts them in",
     change(OTHERS, "process - allocated"), change(OTHERS, "capacity - free - allocated")),
    ("the limit is taken for the capacity", "others share the GPU, whatever the limit on this process is",
     change(OTHERS, "(allowed or capacity) - free - process")),
    ("roundings are taken for others'", "the figures have two decimals: less than 64 MiB counts as 0",
     change(SMALL_OTHERS, "others < 0"), change(SMALL_OTHERS, "others < 32 * 2**20")),
    ("others are never found", "they are what is left over in the first of the two sums", end("others = None")),
    ("a bound is given for others", "capacity − free − allocated − cached has the context of this process in it",
     end("others = capacity - free - allocated - cached if others is None else others")),
    ("the segment is taken for the tensor", "a segment of 20 MiB is tried from just over 1 MiB on",
     end("tensor = (tried, tried)")),
    ("one of two ways to 20 MiB is missing", "from 10 MiB on sizes are rounded up to 2 MiB: 18 to 20 is the other",
     change(TWENTY, "20 * 2**20: (2**20, 10 * 2**20)"), change(TWENTY, "20 * 2**20: (18 * 2**20, 20 * 2**20)")),
    ("one size came alone", "several lead to a segment: the smallest and the largest", end("tensor = tried")),
    ("all segments are taken for one of 20 MiB", "from 10 MiB on the size is rounded up to 2 MiB, and no more",
     change(BOUNDS, "(2**20, tried)")),
    ("a large segment is taken for the tensor", "it is rounded up to 2 MiB: the smallest is 2 MiB below",
     change(BOUNDS, "(tried, tried)")),
    ("a tensor below 10 MiB is given a segment of its own", "there the segment is one of 20 MiB",
     change("max(10 * 2**20, tried - 2 * 2**20)", "tried - 2 * 2**20")),
    ("the lower bound is another", "2**20 for 20 MiB, and 1 for 2 MiB, as no tensor has 0 bytes",
     change(TWENTY, "20 * 2**20: (2**20 + 1, 20 * 2**20)"), change("(1, 2**20)", "(0, 2**20)")),
    ("the segment is taken for the need", "at the least, the tensor is the smallest that leads to it",
     change("+ tensor[0]", "+ tried"), change(NEED, "need = allocated + tried")),
    ("what is allocated is missing from the need", "live tensors are needed too, and not only what was tried",
     change(NEED, "need = tried"), change(NEED, "need = tried - free"), change(NEED, "need = tensor[0]")),
    ("the cache is counted as needed", "live tensors are, and one more",
     change(NEED, "need = allocated + cached + tensor[0]"), change(NEED, "need = (process or 0) + tried")),
    ("private pools are counted as needed", "they are kept for CUDA graphs: no live tensor is in them",
     change(NEED, "need = allocated + tensor[0]")),
    ("the largest tensor is counted as needed", "at the least, it is the smallest",
     change("+ tensor[0]", "+ tensor[1]")),
    ("a tensor is thought to have a MiB at the least", "the smallest tensor of a segment of 2 MiB has 1 byte",
     change("+ tensor[0]", "+ max(tensor[0], 2**20)")),
    # the remedy
    ("free and cached are added", "they are not one piece of memory: the cache alone must be enough",
     change(CACHED, "free + cached >= tried and")),
    ("emptying the cache is prescribed", "it frees no tensor, and PyTorch has done it before it raised the error",
     change(LAST, 'remedy = "empty_cache"')),
    ("another process is blamed for everything", "capacity − free − this process is 0, or less than is missing",
     change(LAST, 'remedy = "end the other process"')),
    ("pieces are never seen", "the cache is enough, if it were in one piece", change(CACHED, "False and"),
     end('remedy = "free tensors" if remedy == "expandable segments" else remedy')),
    ("others are never blamed", "this process holds little; compare what others hold with tried − free",
     change(ENOUGH, "False")),
    ("a limit is never seen", "free ≥ tried, and “allowed” is there", change(LIMITED, "False"),
     end('remedy = "free tensors" if remedy == "raise the limit" else remedy')),
    ("nothing is too large", "nothing that is freed makes room for more than the GPU has: look at its shape",
     change(TOO_LARGE, "False"), end('remedy = "free tensors" if remedy == "smaller request" else remedy')),
    ("a request above the limit is not seen", "tried > allowed", change(TOO_LARGE, "tried > capacity")),
    ("the cache is asked for before the limit", "the table asks for the limit first, whatever the cache has",
     change("elif (allowed", "elif tried <= cached:\n        remedy = 'expandable segments'\n    elif (allowed")),
    ("every limit is blamed", "less is free than was tried: the limit is not what failed",
     change(LIMITED, "allowed is not None")),
    ("others are asked for before the cache", "the cache alone would be enough: the table asks for it first",
     change("elif cached >=", f"elif {ENOUGH}:\n        remedy = 'end the other process'\n    elif cached >=")),
    ("any others are blamed", "they must hold at least what is missing, tried − free", change(ENOUGH, "others")),
    ("others are compared with all that was tried", "what is missing is tried − free",
     change(ENOUGH, "others and others >= tried")),
    ("expandable segments are prescribed where they are on", "the last sentence of the message says that they are",
     change(' and "expandable_segments is enabled" not in message', "")),
    ("the reserve of expandable segments is not seen", "the last sentence of the message names that limit",
     change('"exceeds the expandable-segment reserve" in message', "False"),
     end('remedy = "free tensors" if "reserve of" in message else remedy')),
    ("a remedy is given where the message does not tell who holds the rest", "None: nvidia-smi is read next",
     change("elif others is None and", "elif False and")),
    ("a remedy is given where more is free than was tried", "None without a limit: its last sentence is read next",
     change("elif free > tried", "elif False"), 
     end("remedy = 'free tensors' if free > tried and not remedy else remedy")),
    ("None is said wherever this process's share is not told", "others may hold less than is missing all the same",
     change(f"others is None and {BOUND}", "others is None")),
    ("the cache is counted as the others'", "others hold at most capacity − free − allocated − cached",
     change(BOUND, "capacity - free - allocated >= tried - free")),
    ("of two equal figures the wrong row is taken", "where both are equal ≥ holds, and > does not",
     change(LIMITED, "allowed is not None and free > tried"), change("elif free > tried", "elif free >= tried"),
     change(CACHED, "cached > tried and"), change(ENOUGH, "others and others > tried - free"),
     change(BOUND, BOUND.replace(">=", ">")), change(TOO_LARGE, TOO_LARGE.replace(">", ">="))),
)  # fmt: skip
