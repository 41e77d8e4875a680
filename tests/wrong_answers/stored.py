"""What an answer of a bank shows on the fixed scenes, taken from the stored fingerprints but for one scene of each.

A wrong answer is played in drawn scenes until one fails it, as by every check, and then on fixed scenes to be told its
mistake: on all seven or twenty of them, though the build has stored what it shows there. So one is played here, another
for each answer, and what it shows takes the place of what is stored: of two answers one in which the mistake shows, and
any one. All of them are played by `make explore`, by `tools/fingerprints.py --check`, and in test_banks.py for the two
banks that it names.
"""

from gpulab.check.contract import CALL, Contract

AS_THE_SOLUTION = "as the solution"


def partly_stored(contract, name, index):
    """A `fingerprint` for the wrong answer `name` of this contract, the `index`th of its bank."""
    mistakes = contract.stored.mistakes
    differs = next(mistake.differs for mistake in mistakes if mistake.name == name)
    shown = sorted({scene for scene, _ in differs})
    fails = {scene for scene, fact in differs if fact == CALL}  # which tells nothing else there
    hangs = {scene for scene in fails if str(differs[scene, CALL]).startswith("hang of ")}  # so the drawn one has
    any_one = range(len(contract.fixed))[: shown[-1] + 1 if shown and shown[-1] in fails else None]  # it may have ended
    among = shown if shown and index % 2 else any_one
    played = {among[index // 2 % len(among)]} - hangs

    def fingerprint(answer, trial):
        found = Contract.fingerprint(contract, answer, trial, only=played)
        for scene, fact in {key for mistake in mistakes for key in mistake.differs}:
            key = scene, fact
            if scene in played or (scene in fails and fact != CALL):
                continue
            found.seen[key] = differs.get(key, AS_THE_SOLUTION)
            if key in differs and (fact == CALL or key in contract.stored.judged):
                found.broken.add(key)
        return found

    return fingerprint
