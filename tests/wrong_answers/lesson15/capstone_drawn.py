"""Answers to a script that was drawn for a name: those of its places that the lesson's script has in order."""

from pathlib import Path

from gpulab.capstone.drawing import Drawn, faults_of
from gpulab.capstone.faults import places_of

from ..bank import Bank, Wrong
from .capstone import Answer
from .repairs import RIGHT, WRONG

NAME = "Ada Lovelace"
BANK = Bank("capstone_drawn", ())
PLACES = places_of(faults_of(NAME))


def drawn(name, text):
    """A function that returns the drawn script, its file holding `text`."""

    def answer():
        return Drawn(NAME, Path(Answer(name, text)))

    answer.__name__ = name
    return answer


for right in ("sound", "in_other_words"):
    BANK.right(drawn(right, RIGHT[right]))
# Those that only show again what the script drawn for this name showed are in the bank of the lesson's script.
AS_FOUND = {"drops_for_both", "a_multiple_of_four", "only_blocks", "trains_without_dropout"}
for repair in WRONG:
    if repair.place in ("dealing", "vocabulary", "parameters", "modes") and repair.name not in AS_FOUND:
        answer = drawn(repair.name, repair.text)
        BANK.wrong_answers.append(Wrong(answer, repair.means, "", "", "", False))
