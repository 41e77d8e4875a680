"""Answers to a script that was drawn for a name: those of its places that the lesson's script has in order."""

from pathlib import Path

from banks.bank import Bank

from gpulab.capstone.drawing import Drawn

from .capstone import Answer
from .repairs import RIGHT, WRONG

NAME = "Ada Lovelace"
BANK = Bank("capstone_drawn")


def drawn(name, text):
    """A function that returns the drawn script, its file holding `text`."""

    def answer():
        return Drawn(NAME, Path(Answer(name, text)))

    answer.__name__ = name
    return answer


for right in ("sound", "in_other_words"):
    BANK.right(drawn(right, RIGHT[right]))
for repair in WRONG:
    if repair.fault == "same_order":  # it is drawn for this name, so this repair shows no change
        continue
    if repair.place in ("dealing", "vocabulary", "parameters", "modes"):
        BANK.mistakes((repair.means, "", drawn(repair.name, repair.text)))
