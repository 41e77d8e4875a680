"""The check of a loop that is given notice: in a process of its own, with real signals at every kind of moment.

A handler can be set in the main thread alone, and a check runs an answer in another one; so the answer runs on a rank.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any

from ..contract import Clause, Contract, Facts
from ..scenes import Scene
from ..wording import is_whole, show
from .sections import NOTICE

STEPS, SAVES, HALF, CODE = "steps", "saves, by the steps done", "saves in the middle of a step", "what is returned"
HANDLER, RAISED, AFTER = "the handler afterwards", "what reaches the caller", "the handler after an exception"
SECOND, DURING, QUIET = "a second notice", "a notice during a save", "saves, without a notice"
LATE, NO_STEP = "steps begun after the notice", "what is done where first is last"
CLAUSES = [
    Clause(quote, facts, summary, likely, NOTICE)
    for quote, facts, summary, likely in (
        (
            "for each step from first to last - 1, in order",
            [STEPS, NO_STEP],
            "other steps are made",
            "range(first, last)",
        ),
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
        (
            "which reaches the caller, and nothing is saved after it",
            [RAISED],
            "an exception does not reach the caller",
            "no except",
        ),
    )
]
NEVER, EVEN, BROKEN, IN_STEP, LAST, TWICE, IN_SAVE, AFTER_IT, EMPTY = (
    "no notice",
    "no notice, and after the last step it is time to save anyway",
    "no notice, and an exception",
    "a notice within a step",
    "a notice within the last step",
    "a notice within a step, and another during the save",
    "a notice during a regular save",
    "two notices within a step",
    "no step to make",
)
RETURNS, FAILS, CTRL_C, SAVE_FAILS = "returns", "train_step raises", "Ctrl-C", "save raises"
RIGHT, BEFORE = "the right ones", "the one from before"
EDGES = {
    "when": (NEVER, EVEN, BROKEN, IN_STEP, LAST, TWICE, IN_SAVE, AFTER_IT, EMPTY),
    "ends": (RETURNS, FAILS, CTRL_C, SAVE_FAILS),
    "handler": ("the system's own", "one of Python's", "none: ignored"),
    "every": (3, 5, 1),
    "its_time": (False, True),  # after the step with the notice it is time to save anyway
}


class Broken(Exception):
    """What a step of the check raises, or a save."""


def possible(scene: Scene) -> bool:
    """With an exception there is no notice, or that of its step."""
    return bool(scene.when == IN_STEP or (scene.when == BROKEN) == (scene.ends != RETURNS))


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
    own_ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
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
            if job["ends"] == FAILS:
                raise Broken("a step that fails")
            signal.raise_signal(signal.SIGINT)
        state[1] = step + 1

    def save(done: int) -> None:
        saves.append(done)
        half[0] += state[0] != state[1]
        if job["save_fails_at"] == done:
            raise Broken("a save that fails")
        if done in in_save:
            in_save.remove(done)
            notice()

    try:
        seen["got"] = student(train_step, save, job["first"], job["last"], job["every"])
    except (Broken, KeyboardInterrupt, SystemExit) as error:
        seen["raised"], seen["got"] = type(error).__name__, None
    now = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGINT, own_ctrl_c)
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
    first, every = random.randint(3, 9), scene.every
    rest = 0 if scene.when == EVEN else every - 1 if scene.when == NEVER else random.randrange(every)
    last = first if scene.when == EMPTY else first + 3 * every + rest
    regular = [step for step in range(first + 1, last) if (step - first) % every == 0] + [last] * (last > first)
    within = first + every * random.randint(1, 2) - 1 if scene.its_time else first + every * (scene.when != AFTER_IT)
    at = {LAST: last - 1, IN_SAVE: first + every - 1}.get(scene.when, within)  # the step with the notice
    done = at + 1 if scene.when not in (NEVER, EVEN, BROKEN, EMPTY) else last
    fails_at = at if scene.ends in (FAILS, CTRL_C) else None
    save_fails_at = None if scene.ends != SAVE_FAILS else done if scene.when == IN_STEP else regular[0]
    in_save = [done] if scene.when in (IN_SAVE, TWICE) else []
    job: dict[str, Any] = {"first": first, "last": last, "every": every, "handler": scene.handler, "ends": scene.ends}
    job |= {"in_step": at if scene.when in (IN_STEP, LAST, TWICE, AFTER_IT) else None}
    job |= {"notices": 1 + (scene.when == AFTER_IT), "save_fails_at": save_fails_at}
    (found,) = call(on_rank, (job | {"in_save": in_save, "fails_at": fails_at},))

    steps = f"steps {first} to {last - 1}" if first < last else f"first and last are {first}"
    facts = Facts(f"{scene.when}; {scene.ends}; {steps}, saved every {every}")
    facts.add(HALF, found["half"], 0)
    if not facts.hold():
        return facts
    if scene.when == EMPTY:
        made = f"steps {', '.join(map(str, found['steps'])) or 'none'}; saves: {len(found['saves'])}"
        facts.add(NO_STEP, made, "steps none; saves: 0")
        if facts.hold():
            facts.add(CODE, found["code"], 0)
            facts.add(HANDLER, found["handler"], BEFORE)
        return facts
    saves = [step for step in regular if step < done] + [done]
    if save_fails_at is not None:
        facts.add(LATE, found["late"], 0)
        if not facts.hold():
            return facts
        kept = saves_of(found["saves"], [step for step in regular if step < save_fails_at] + [save_fails_at])
        facts.add(RAISED, [found["raised"], kept], ["Broken", RIGHT])
        facts.add(AFTER, found["handler"], BEFORE)
        return facts
    if fails_at is not None:
        facts.add(STEPS, others(found["steps"], first, at + 1), RIGHT)
        if facts.hold():
            kept = saves_of(found["saves"], [step for step in regular if step <= at])
            facts.add(
                RAISED, [found["raised"], kept], ["Broken" if scene.ends == FAILS else "KeyboardInterrupt", RIGHT]
            )
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
        facts.add(QUIET if scene.when in (NEVER, EVEN) else SAVES, saves_of(found["saves"], saves), RIGHT)
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


EXERCISE = Contract(
    __file__,
    says="the step to its end, one save, and the code that says so; whenever the notice comes",
    parameters=("train_step", "save", "first", "last", "every"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    ranks=1,
)
