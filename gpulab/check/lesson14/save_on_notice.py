"""The check of a loop that is given notice: in a process of its own, with real signals at every kind of moment.

A handler can be set in the main thread alone, and a check runs an answer in another one; so the answer runs on a rank.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

from ..base import Trial, check
from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import is_whole, show
from .sections import NOTICE

STEPS, SAVES, HALF, CODE = "steps", "saves, by the steps done", "saves in the middle of a step", "what is returned"
HANDLER, RAISED, AFTER = "the handler afterwards", "what reaches the caller", "the handler after an exception"
SECOND, DURING, QUIET = "a second notice", "a notice during a save", "saves, without a notice"
LATE = "steps begun after the notice"
CLAUSES = [
    Clause(quote, facts, summary, likely, NOTICE)
    for quote, facts, summary, likely in (
        ("for each step from first to last - 1, in order", [STEPS], "other steps are made", "range(first, last)"),
        (
            "after every `every` steps and after the last one",
            [QUIET],
            "it saves at other times",
            "steps done, not the number",
        ),
        ("The step that is being made comes to its end", [HALF], "it saves a step that is half done", "a flag"),
        ("no other one begins", [LATE], "it goes on after the notice", "look at the flag after each step"),
        ("and save is called once", [SAVES], "the notice brings another number of saves", "once, after the step"),
        (
            "A notice during save changes nothing of that",
            [DURING],
            "a notice during a save goes wrong",
            "it may do already",
        ),
        ("A second notice does nothing more", [SECOND], "a second notice goes wrong", "the flag is set already"),
        ("75 if a notice has left steps undone, else 0", [CODE], "another code is returned", "return it, without exit"),
        (
            "the handler of SIGTERM is the one from before",
            [HANDLER],
            "the handler stays",
            "signal.signal returns the old one",
        ),
        ("also after an exception", [AFTER], "after an exception the handler stays", "try … finally"),
        ("which reaches the caller, without a save", [RAISED], "an exception does not reach the caller", "no except"),
    )
]
NEVER, IN_STEP, LAST, TWICE, IN_SAVE, AFTER_IT = (
    "no notice",
    "a notice within a step",
    "a notice within the last step",
    "a notice within a step, and another during the save",
    "a notice during a regular save",
    "two notices within a step",
)
RIGHT, BEFORE = "the right ones", "the one from before"
EDGES = {
    "when": (NEVER, IN_STEP, LAST, TWICE, IN_SAVE, AFTER_IT),
    "ends": ("returns", "train_step raises", "it is interrupted"),
    "handler": ("the system's own", "one of Python's", "none: ignored"),
}


class Broken(Exception):
    """What a step of the check raises."""


def possible(scene: Scene) -> bool:
    """An exception comes at a step that a notice would keep from being made, but for the one of that step."""
    return scene.ends == "returns" or scene.when in (NEVER, IN_STEP)


def on_rank(student: Callable[..., Any], job: dict[str, Any]) -> dict[str, Any]:
    """Run it here, in the main thread."""
    told: list[int] = []
    handlers: dict[str, Any] = {
        "the system's own": signal.SIG_DFL,
        "one of Python's": lambda number, frame: told.append(number),
        "none: ignored": signal.SIG_IGN,
    }
    before = handlers[job["handler"]]
    own = signal.signal(signal.SIGTERM, before)
    steps, saves, half = list[int](), list[int](), [0]
    seen: dict[str, Any] = {"raised": "nothing", "late": 0}
    state, noticed, in_save = [job["first"]] * 2, [False], list(job["in_save"])

    def notice() -> None:
        signal.raise_signal(signal.SIGTERM)
        noticed[0] = True

    def train_step(step: int) -> None:
        seen["late"] += noticed[0]
        steps.append(step)
        state[0] = step + 1  # half of it
        for _ in range(job["in_step"] == step and job["notices"]):
            notice()
        if job["fails_at"] == step:
            seen["half"] = half[0]
            raise job["error"]("a step that fails")
        state[1] = step + 1

    def save(done: int) -> None:
        saves.append(done)
        half[0] += state[0] != state[1]
        if done in in_save:
            in_save.remove(done)
            notice()

    try:
        seen["got"] = student(train_step, save, job["first"], job["last"], job["every"])
    except (Broken, KeyboardInterrupt, SystemExit) as error:
        seen["raised"], seen["got"] = type(error).__name__, None
    now = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, own)
    code = seen["got"]
    return {
        "steps": steps,
        "saves": saves,
        "half": seen.get("half", half[0]),  # before a step that fails
        "late": seen["late"],
        "raised": seen["raised"],
        "code": int(code) if is_whole(code) else show(code, 40),
        "handler": BEFORE if now == before else "another",
    }


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    first, every = random.randint(3, 9), random.randint(3, 4)
    last = first + 2 * every + 2
    regular = [step for step in range(first + 1, last) if (step - first) % every == 0] + [last]
    at = {LAST: last - 1, IN_SAVE: regular[0] - 1}.get(scene.when, first + every + 1)  # the step with the notice
    fails_at = {"returns": None}.get(scene.ends, at)
    error = KeyboardInterrupt if scene.ends == "it is interrupted" else Broken
    done = last if scene.when == NEVER else at + 1
    in_save = {IN_SAVE: [done], TWICE: [done]}.get(scene.when, [])
    job: dict[str, Any] = {"first": first, "last": last, "every": every, "handler": scene.handler, "error": error}
    job |= {"in_step": None if scene.when in (NEVER, IN_SAVE) else at, "notices": 1 + (scene.when == AFTER_IT)}
    (found,) = call(on_rank, (job | {"in_save": in_save, "fails_at": fails_at},))

    facts = Facts(f"{scene.when}; {scene.ends}; steps {first} to {last - 1}, saved every {every}")
    facts.add(HALF, found["half"], 0)
    if not facts.hold():
        return facts
    saves = [step for step in regular if step < done] + [done]
    if fails_at is not None:
        facts.add(STEPS, others(found["steps"], first, at + 1), RIGHT)
        if facts.hold():
            kept = saves_of(found["saves"], [step for step in regular if step <= at])
            facts.add(RAISED, [found["raised"], kept], [error.__name__, RIGHT])
            facts.add(AFTER, found["handler"], BEFORE)
        return facts
    if found["raised"] != "nothing":
        facts.add(CODE, found["raised"], 75 if done < last else 0)
        return facts
    if scene.when in (TWICE, AFTER_IT):
        (once,) = call(on_rank, (job | {"in_save": [], "notices": 1, "fails_at": None},))
        facts.add(SECOND, RIGHT if once == found else "another course than with one notice", RIGHT)
        if not facts.hold():
            return facts
    if found["steps"][:1] != [first]:
        facts.add(STEPS, others(found["steps"], first, done), RIGHT)
        return facts
    if scene.when == IN_SAVE:
        kept = saves_of(found["saves"], saves)
        facts.add(DURING, [f"{found['late']} more steps begun", kept], ["0 more steps begun", RIGHT])
    else:
        facts.add(LATE, found["late"], 0)
    if facts.hold():
        facts.add(STEPS, others(found["steps"], first, done), RIGHT)
    if facts.hold() and scene.when != IN_SAVE:
        facts.add(QUIET if scene.when == NEVER else SAVES, saves_of(found["saves"], saves), RIGHT)
    if facts.hold():
        facts.add(CODE, found["code"], 75 if done < last else 0)
        facts.add(HANDLER, found["handler"], BEFORE)
    return facts


def others(steps: list[int], first: int, done: int) -> str:
    """How these steps differ from those that are wanted."""
    if steps == [*range(first, done)]:
        return RIGHT
    if not steps or steps != sorted(steps):
        return "in another order" if steps else "none"
    ends = [("earlier" if steps[0] < first else "later") + " begin"] * (steps[0] != first)
    return ", ".join([*ends, *[("more" if steps[-1] >= done else "fewer") + " at the end"] * (steps[-1] + 1 != done)])


def saves_of(saves: list[int], wanted: list[int]) -> str:
    """How the saves differ from those that are wanted."""
    if saves == wanted:
        return RIGHT
    if len(saves) == len(wanted):
        return f"as many, {'at other steps' if sorted(saves) == saves else 'in another order'}"
    twice = len(saves) != len(set(saves))
    return f"{'more' if len(saves) > len(wanted) else 'fewer'}{', some twice' if twice else ''}"


CONTRACT = Contract(
    __file__,
    parameters=("train_step", "save", "first", "last", "every"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    ranks=1,
)


@check(lesson=14, says="the step to its end, one save, and the code that says so; whenever the notice comes")
def save_on_notice(student: Any, trial: Trial) -> None:
    """Check a function of (train_step, save, first, last, every), called in the main thread of a process that is given
    SIGTERM: it trains and saves until then, and returns 0 or 75."""
    CONTRACT.judge(student, trial)
