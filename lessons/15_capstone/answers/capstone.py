"""Answers to the capstone: scripts with eleven repairs and one that is none, each in a file."""

import os
import tempfile
from pathlib import Path

from banks.bank import ENDLESS_SECONDS, Bank

from gpulab.capstone.faults import FIRST, places_of, sound

from .repairs import RIGHT, WRONG, edited

BANK = Bank("capstone")
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


def wrong(name, text, summary, likely=""):
    BANK.mistakes((summary, likely, Answer(name, text)))


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
for repair in WRONG:
    if repair.place not in PLACES or repair.name == "never_clears":  # which an overflow shows first
        continue
    if repair.name in AS_FOUND:
        summary = f"11 of 12 faults are repaired; one of {AS_FOUND[repair.name]} shows no change"
        wrong(repair.name, repair.text, summary, "does not affect what is measured")
    else:
        wrong(repair.name, repair.text, repair.means)

wrong(
    "gives_memory_back",
    edited(
        sound(),
        (
            "        optimizer.zero_grad()\n    return",
            "        optimizer.zero_grad()\n        torch.cuda.empty_cache()\n    return",
        ),
    ),
    "memory is returned to the driver and allocated again",
    "empty_cache frees nothing that is in use",
)
MAKES = "optimizer, scaler = make_optimizer(model), torch"
for name, old, new, summary, likely in (
    ("takes_sgd", MAKES, "optimizer, scaler = torch.optim.SGD(model.parameters(), lr=3e-4), torch",
     "main() does not train with make_optimizer()'s optimizer", "AdamW at 3e-4"),
    ("one_epoch", "for epoch in range(epochs)", "for epoch in range(1)",
     "main() does not return its losses by epoch", "of each epoch"),
    ("half_the_updates", "accumulate)\n        losses", "2 * accumulate)\n        losses",
     "main() does not make the number of updates asked for", "each of them one window"),
    ("another_warm_up", "(done + 1) / 4", "(done + 1) / 400", "main() ends with another learning rate", "four updates"),
    ("twice_as_deep", "GPT(words, width, depth,", "GPT(words, width, 2 * depth,",
     "main() trains a model of another size, or with other names", "are arguments"),
    ("no_seed", "    torch.manual_seed(0)\n", "", "main() gives other losses each time", "at its beginning"),
    ("returns_one_loss", "(trained, *evaluate(model, on_gpu(held_out)))", "(trained, trained, 0.5)",
     "main() returns other losses", "of the part that is held out"),
):  # fmt: skip
    wrong(name, edited(sound(), (old, new)), summary, likely)
wrong("cannot_be_read", sound().replace("import time\n", "import tme\n"), "your script raised ModuleNotFoundError")
wrong(
    "never_ends",
    sound().replace("    model.train()\n", "    model.train()\n    while True:\n        pass\n"),
    f"your script did not return after {ENDLESS_SECONDS:g} s of processor time, while “history” was measured",
)
