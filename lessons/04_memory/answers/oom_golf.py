"""Answers to golf: how to have no 2 GiB with next to nothing alive, and how not to."""

import torch
from banks.bank import Bank
from banks.edits import add, change, drop

BANK = Bank("oom_golf", "fragment")
MIB, GIB = 2**20, 2**30
LOOP, SMALL = "while torch.cuda.mem_get_info()[0] >= large:", "2**20 + 512"
FILL, PIN, FILLER = (
    "        take(large)",
    "        alive.append(take(small))",
    "        fillers.append(take(large - small))",
)


def take(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


@BANK.right
def pins_in_the_middle():
    pins, fillers = [], []
    for size in (4 * GIB, 4 * GIB, 4 * GIB, 2 * GIB):
        gap = size // 2 - 512
        take(size)
        fillers.append(take(gap))
        pins.append(torch.zeros(MIB // 4 + 128, device="cuda"))
        fillers.append(take(size - gap - MIB - 512))
    return tuple(pins)


@BANK.right
def another_stream():
    """What is free in another stream's pool serves nobody here."""
    with torch.cuda.stream(torch.cuda.Stream()):
        take(torch.cuda.mem_get_info()[0] // (2 * MIB) * 2 * MIB)
        return [take(MIB + 512)]


@BANK.wrong(
    "the request succeeds: segments without a live block were given back",
    "each segment needs one of its own, but best fit may have put several into one segment: "
    "torch.cuda.memory_snapshot() shows where",
)
def pins_that_gather_in_one_segment():
    large, pins = [], []
    while torch.cuda.mem_get_info()[0] >= 2 * GIB:
        large.append(take(2 * GIB))
    while large:
        large.pop()
        pins.append(take(MIB + 512))
    return pins


BANK.mistakes(
    ("the request succeeds: nothing is alive on the GPU",
     "before it gives up, the allocator gives every segment without " "a live block back to the driver, and asks again",
     change("return alive", "return alive and []")),
    ("the request succeeds: nothing is on the GPU", "tensors belong on device='cuda'",
     (change('device="cuda")', 'device="cpu")'), change(LOOP, "for _ in range(2):"),
      change("large = 2 * 2**30", "large = 2**21"))),
    ("the request succeeds: it fits into one free block",
     "what is free beside a live block must be smaller than 2 GiB, before it and after it",
     (change("2 * 2**30", "14 * 2**30"), drop("fillers.append"))),
    ("the request succeeds: the driver still has 2 GiB",
     "continue until torch.cuda.mem_get_info() shows less than 2 GiB free", change(LOOP, "for _ in range(5):")),
    ("the request succeeds: a later large tensor went into an earlier one's segment",
     "each large segment needs a live block of its own: torch.cuda.memory_snapshot() shows where each lies",
     (change(LOOP, "for _ in range(7):"), change(FILL, "        big = take(large)"), drop("fillers.append"),
      change(PIN, f"{PIN}\n        del big")),
     (change(LOOP, "for _ in range(7):"), change("2 * 2**30", "2000 * 2**20"), drop("fillers.append"))),
    ("the request succeeds: the small live blocks are not in the large segments",
     "a request up to 1 MiB goes to the small pool, in segments of 2 MiB: request a little more",
     (change(SMALL, "512"), change(FILL, "        fillers.append(take(large))"),
      drop("fillers.append(take(large - small))"))),
    ("the memory is full, not fragmented", "nearly all that is reserved has to be free here",
     (change(FILL, "        alive.append(take(large // 2))"), drop("alive.append(take(small))"),
      drop("fillers.append"))),
    ("a slice keeps all of its tensor alive", "big[:n] is a view, and holds the storage of big to the last byte",
     (change(FILL, "        alive.append(take(large // 2)[:512])"), drop("alive.append(take(small))"),
      drop("fillers.append"))),
    ("above par: the live blocks hold segments of 20 MiB",
     "one can hold a segment of 2 GiB: make a large tensor, delete it, then ask",
     (drop("take(large)  #"), change("take(large - small)", "take(9 * 2**20)"),
      add("fillers.append(take(11 * 2**20 - small))", after="9 * 2**20"))),
    ("above par: there are too many live blocks", "one in each segment of 2 GiB is enough",
     change("2 * 2**30", "2**29")),
    ("above par: the tensors are large", "a little more than 1 MiB is enough to go into a large segment",
     change(SMALL, "100 * 2**20")),
    ("the request fails because of a limit", "a limit keeps you from using the whole GPU: use tensors only",
     *(change("    return alive", f"    torch.cuda.set_per_process_memory_fraction({limit})\n    return alive")
       for limit in (0.05, 0.5))),
    ("tensors that were not returned stay alive",
     "a global, a default argument or a cycle keeps them: only what you return may stay",
     (change("def fragment():", "def fragment(alive=[]):"), change("alive, fillers = [], []", "fillers = []"),
      change("return alive", "return []"))),
    ("what comes back is not a list of tensors", "a tensor that nobody holds is freed as the function ends",
     drop("return alive")),
    ("the function does not check how much is left", "torch.cuda.mem_get_info() before each large allocation",
     change(LOOP, "while True:")),
)  # fmt: skip
