"""Answers to the capstone: scripts with eleven repairs and one that is none, each in a file."""

import os
import tempfile
from pathlib import Path

from gpulab.capstone.faults import FIRST, places_of, sound

from ..by_hand import ENDLESS_SECONDS, Bank, Wrong
from .repairs import RIGHT, WRONG, edited

BANK = Bank("capstone", ())
_FOLDER = tempfile.TemporaryDirectory()
PLACES = places_of(FIRST)


class Answer(os.PathLike):
    """The path of a script that is written when it is asked for."""

    def __init__(self, name, text):
        self.__name__, self.text = name, text

    def __fspath__(self):
        path = Path(_FOLDER.name) / f"{os.getpid()}-{self.__name__}.py"
        path.write_text(self.text, encoding="utf-8")
        return str(path)


def wrong(name, text, summary, likely="", same_as=""):
    BANK.wrong_answers.append(Wrong(Answer(name, text), summary, likely, "", same_as, False))


for right in RIGHT:
    BANK.right(Answer(right, RIGHT[right]))

# Those that show what the fault showed are told so; the others in their place's words.
AS_FOUND = {
    "masks_in_place": "memory",
    "calls_square": "memory",
    "casts_back": "memory",
    "squares_in_float32": "memory",
    "deletes_the_name": "memory",
    "copies_the_sum": "memory",
    "only_evaluates": "memory",
    "names_the_default": "speed",
    "steps_a_tensor_at_a_time": "speed",
    "adds_up_numbers": "speed",
    "asks_on_the_host": "speed",
    "asks_for_what_is_not_pinned": "speed",
    "forgets_to_unscale": "correctness",
    "divides_by_a_full_one": "correctness",
    "means_of_batches": "correctness",
    "saves_all_and_loads_the_weights": "correctness",
}
first_of = {}
for repair in WRONG:
    if repair.place not in PLACES or repair.name == "never_clears":  # which an overflow shows first
        continue
    if repair.name not in AS_FOUND:
        first = first_of.setdefault(repair.means, repair.name)
        wrong(repair.name, repair.text, repair.means, same_as="" if first == repair.name else first)
        continue
    summary = f"11 of 12 faults are repaired; one of {AS_FOUND[repair.name]} shows as before"
    first = first_of.setdefault(AS_FOUND[repair.name], repair.name)
    wrong(repair.name, repair.text, summary, "does not change by that", same_as="" if first == repair.name else first)

wrong(
    "gives_memory_back",
    edited(
        sound(),
        (
            "        optimizer.zero_grad()\n    return",
            "        optimizer.zero_grad()\n        torch.cuda.empty_cache()\n    return",
        ),
    ),
    "memory is given back to the driver, and taken again",
    "empty_cache frees nothing that is in use",
)
wrong("cannot_be_read", sound().replace("import time\n", "import tme\n"), "your script raised ModuleNotFoundError")
wrong(
    "never_ends",
    sound().replace("    model.train()\n", "    model.train()\n    while True:\n        pass\n"),
    f"your script did not return after {ENDLESS_SECONDS:g} s of processor time, while “history” was measured",
)
