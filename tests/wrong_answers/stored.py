"""What an answer of a bank shows on the fixed scenes, taken from the stored fingerprints where it is not seen anyway.

A wrong answer is played in drawn scenes until one fails it, as by every check, and then on fixed scenes to be told its
mistake: on all seven or twenty of them, though the build has stored what it shows there. So less is played here, and
what is stored takes the place of the rest: either the fixed scenes are those that are drawn, and what is seen up to
the one that fails counts for both; or one of the fixed scenes is played after the drawn ones, another for each answer,
of two answers one in which the mistake shows, and any one. All are played by `make explore`, by
`tools/fingerprints.py --check`, and in test_banks.py for the bank that it names.
"""

from gpulab.exercise.base import CheckFailed
from gpulab.exercise.contract import CALL, Contract

AS_THE_SOLUTION = "as the solution"


def draws_the_fixed_scenes(patch, contract, name):
    """Until `patch` is undone `contract` draws its fixed scenes, and plays none of them a second time for `name`."""
    fixed, played, play = contract.fixed, {}, contract._play

    def once(function, trial, seed, scene):
        number = fixed.index((seed, scene))
        if number not in played:
            try:
                played[number] = play(function, trial, seed, scene)
            except CheckFailed as failed:
                played[number] = failed
        if isinstance(played[number], CheckFailed):
            raise played[number]
        return played[number]

    patch.setattr(contract, "scenes", lambda seed: fixed)
    patch.setattr(contract, "_play", once)
    patch.setattr(contract, "fingerprint", _fingerprint(contract, name, played))


def plays_one_fixed_scene(patch, contract, name, index):
    """Until `patch` is undone `contract` plays one of its fixed scenes for `name`, the `index`th of its bank."""
    differs = _differs(contract, name)
    shown = sorted({scene for scene, _ in differs})
    fails = {scene for scene, fact in differs if fact == CALL}  # which tells nothing else there
    hangs = {scene for scene in fails if str(differs[scene, CALL]).startswith("hang of ")}  # so the drawn one has
    any_one = range(len(contract.fixed))[: shown[-1] + 1 if shown and shown[-1] in fails else None]  # it may have ended
    among = shown if shown and index % 2 else any_one
    played = {among[index // 2 % len(among)]} - hangs
    patch.setattr(contract, "fingerprint", _fingerprint(contract, name, played))


def _differs(contract, name):
    return next(mistake.differs for mistake in contract.stored.mistakes if mistake.name == name)


def _fingerprint(contract, name, played):
    """A `fingerprint` for the wrong answer `name` of this contract, of which the scenes `played` are played."""
    differs, mistakes = _differs(contract, name), contract.stored.mistakes
    fails = {scene for scene, fact in differs if fact == CALL}

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
