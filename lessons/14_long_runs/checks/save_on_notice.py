"""Checks a loop that saves on a signal: in a process of its own, with real signals at every kind of moment.

A handler can be set in the main thread alone, and a check runs an answer in another one; so the answer runs on a rank.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

from gpulab.exercise.contract import Clause, Contract, Facts
from gpulab.exercise.scenes import Scene
from gpulab.exercise.wording import brief, is_whole

NOTICE = "The notice"
STEPS, SAVES, HALF, CODE = "steps", "saves, by the steps done", "saves in the middle of a step", "what is returned"
HANDLER, RAISED, AFTER = "the handler afterwards", "what reaches the caller", "the handler after an exception"
SECOND, DURING, QUIET = "a second notice", "a notice during a save", "saves, without a notice"
LATE, AGAIN = "steps begun after the notice", "a call after another one, which had a notice"
CLAUSES = [
    Clause(quote, facts, summary, rule, NOTICE)
    for facts, quote, summary, rule in (
        ([STEPS, AGAIN], "call it for each step from first to last - 1, in order", "the wrong steps are made",
         "none if first is last; and only notices during this call count"),
        ([QUIET], "call it after every `every` steps and after the last one", "it saves at the wrong times",
         "the first number is first + every, the last one is last"),
        ([HALF], "The current step runs to its end", "it saves in the middle of a step",
         "a signal may come between any two instructions"),
        ([LATE], "no other one begins", "it continues after the notice",
         "the step during which the notice comes is the last one"),
        ([SAVES], "and save is called once", "the notice causes a wrong number of saves", "save once, after the step"),
        ([DURING], "A notice during save does not change that", "a notice during a save goes wrong",
         "what is being saved is not saved again, and no step begins"),
        ([SECOND], "A second notice has no effect", "a second notice goes wrong", "everything is as after one"),
        ([CODE], "75 if a notice has left steps undone, else 0", "the wrong code is returned", "as a whole number"),
        ([HANDLER], "the handler of SIGTERM is the previous one", "the handler stays", "whatever it was"),
        ([AFTER], "even after an exception", "after an exception the handler stays", "of train_step or of save"),
        ([RAISED], "which reaches the caller, and nothing is saved after it",
         "an exception does not reach the caller, or something is saved after it", "raise the very same exception"),
    )
]  # fmt: skip
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
    handlers: list[Any] = [signal.SIG_DFL, lambda number, frame: None, signal.SIG_IGN]
    before = handlers[EDGES["handler"].index(job["handler"])]
    own = signal.signal(signal.SIGTERM, before), signal.signal(signal.SIGINT, signal.default_int_handler)
    steps, saves, noticed = list[int](), list[int](), list[bool]()
    seen: dict[str, Any] = {"steps": steps, "saves": saves, "half": 0, "late": 0, "raised": "nothing", "code": ""}
    begun, made, in_save = job["first"], job["first"], job["in_save"]

    def notice(count: int) -> None:
        for _ in range(count):
            signal.raise_signal(signal.SIGTERM)
            noticed.append(True)

    def train_step(step: int) -> None:
        nonlocal begun, made
        seen["late"] += bool(noticed)
        steps.append(step)
        begun = step + 1
        notice((job["in_step"] == step) * job["notices"])
        if job["fails_at"] == step:
            made = step + 1  # what is saved after this is judged by itself
            if job["ends"] == FAILS:
                raise Broken("a step that fails")
            signal.raise_signal(signal.SIGINT)
        made = step + 1

    def save(done: int) -> None:
        nonlocal in_save
        saves.append(done)
        seen["half"] += begun != made
        if job["save_fails_at"] == done:
            raise Broken("a save that fails")
        if done == in_save:
            in_save = None
            notice(1)

    try:
        if job["earlier"]:
            student(lambda step: signal.raise_signal(signal.SIGTERM), lambda done: None, 0, 2, 1)
            signal.signal(signal.SIGTERM, before)
        code = student(train_step, save, job["first"], job["last"], job["every"])
        seen["code"] = int(code) if is_whole(code) else brief(code, 40)
    except (Broken, KeyboardInterrupt, SystemExit) as error:
        seen["raised"] = type(error).__name__
    seen["handler"] = BEFORE if signal.getsignal(signal.SIGTERM) == before else "another"
    signal.signal(signal.SIGTERM, own[0])
    signal.signal(signal.SIGINT, own[1])
    return seen


def play(call: Callable[..., Any], scene: Scene) -> Facts:
    first, every = random.randint(3, 9), scene.every
    rest = 0 if scene.when == EVEN else every - 1 if scene.when == NEVER else random.randrange(every)
    last = first if scene.when == EMPTY else first + 3 * every + rest
    within = first + every * random.randint(1, 2) - 1 if scene.its_time else first + every * (scene.when != AFTER_IT)
    at = {LAST: last - 1, IN_SAVE: first + every - 1}.get(scene.when, within)  # the step with the notice
    done = last if scene.when in (NEVER, EVEN, BROKEN, EMPTY) else at + 1
    steps = f"steps {first} to {last - 1}" if first < last else f"first and last are {first}"
    facts = Facts(f"{scene.when}; {scene.ends}; {steps}, saved every {every}")
    regular = range(first + every, last + 1, every)
    job = {"first": first, "last": last, "every": every, "handler": scene.handler, "ends": scene.ends}
    job |= {
        "in_step": at if scene.when in (IN_STEP, LAST, TWICE, AFTER_IT) else None,
        "notices": 1 + (scene.when == AFTER_IT),
        "in_save": done if scene.when in (IN_SAVE, TWICE) else None,
        "fails_at": at if scene.ends in (FAILS, CTRL_C) else None,
        "save_fails_at": None if scene.ends != SAVE_FAILS else done if scene.when == IN_STEP else regular[0],
        "earlier": scene.when == NEVER,
    }
    stop = at + 1 if job["fails_at"] is not None else job["save_fails_at"] or done
    saves = [step for step in regular if step < stop] + [stop] * (job["fails_at"] is None and first < last)

    def story() -> Iterator[None]:
        """What is judged: it ends at the first `yield` where a fact does not hold."""
        (found,) = call(on_rank, (job,))
        kept, code = saves_of(found["saves"], saves), 75 if done < last else 0
        facts.add(HALF, found["half"], 0)
        yield
        if scene.when in (NEVER, TWICE, AFTER_IT):
            (once,) = call(on_rank, (job | {"in_save": None, "notices": 1, "earlier": False},))
            name = AGAIN if scene.when == NEVER else SECOND
            facts.add(name, RIGHT if once == found else "another course than without it", RIGHT)
            yield
        if scene.ends == RETURNS and found["raised"] != "nothing":
            facts.add(CODE, found["raised"], code)
            yield
        if scene.when == IN_SAVE:
            facts.add(DURING, [f"{found['late']} more steps begun", kept], ["0 more steps begun", RIGHT])
        else:
            facts.add(LATE, found["late"], 0)
        yield
        facts.add(STEPS, others(found["steps"], first, stop), RIGHT)
        yield
        if scene.ends != RETURNS:
            wanted = "KeyboardInterrupt" if scene.ends == CTRL_C else "Broken"
            facts.add(RAISED, [found["raised"], kept], [wanted, RIGHT])
            facts.add(AFTER, found["handler"], BEFORE)
            return
        if scene.when != IN_SAVE:
            facts.add(QUIET if scene.when in (NEVER, EVEN, EMPTY) else SAVES, kept, RIGHT)
            yield
        facts.add(CODE, found["code"], code)
        facts.add(HANDLER, found["handler"], BEFORE)

    next((None for _ in story() if not facts.hold()), None)
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
    says="the step finished, one save, and the right code, whenever the notice comes",
    parameters=("train_step", "save", "first", "last", "every"),
    clauses=CLAUSES,
    edges=EDGES,
    play=play,
    possible=possible,
    ranks=1,
)
