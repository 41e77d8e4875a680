"""Grades an answer by a contract: clauses, generated scenes that test them, and a diagnosis by fingerprint.

The author of a check writes `play(call, scene)`, which runs the student's object in one scene and returns `Facts`, seen
and wanted. A `Clause` is a sentence of the exercise with the facts that it needs. A check plays freshly drawn scenes
and fails with the first broken clause.

The diagnosis compares with known mistakes. For each wrong answer in the bank the build stores a fingerprint: the facts
in which it differs from the solution, on fixed scenes. An answer that fails is played on these scenes too, and gets the
message of each mistake of which it shows all facts. Two mistakes in one answer are both named; an answer that matches
none gets the general message of its clause.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from . import settings
from .audit import Kind
from .base import CheckFailed, Trial, check, home_of
from .rank_worker import Watched
from .scenes import Pairs, Scene
from .wording import clip, is_finite

FIXED_SEED = 20261122  # draws the scenes of fingerprints
CALL = "the call"  # a fact: how the call failed
_CLOSE = 0.02  # relative tolerance of facts that are not judged
_DIGITS = 5
_ALIKE = 1e-4  # relative tolerance of a mistake's numbers: processors sum in different orders


Key = tuple[int, str]  # the number of a scene, the name of a fact


@dataclass(frozen=True)
class Near:
    """A number or a vector with a relative tolerance `within` (for a vector of its norm)."""

    value: Any
    within: float = _CLOSE


@dataclass
class Facts:
    """The facts of one scene: `seen` and `wanted` values by name, numbers wanted as `Near`. A fact that is only seen is
    not judged; it helps to distinguish mistakes. `about` describes the scene in a few words."""

    about: str
    seen: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, seen: Any, wanted: Any) -> None:
        self.seen[name], self.wanted[name] = seen, wanted

    def hold(self) -> bool:
        """Return True if all facts are as wanted."""
        return all(holds(self, name) for name in self.wanted)


@dataclass(frozen=True)
class Clause:
    """A sentence of the exercise, quoted word for word, and the facts that must hold for it.

    An answer that breaks it by an unknown mistake gets `summary`, the quote and `rule`, which must be true whatever the
    mistake is.
    """

    quote: str
    facts: Sequence[str]
    summary: str
    rule: str = ""
    read: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer of the bank: its message, and the facts of fixed scenes in which it differs from the solution."""

    name: str
    summary: str
    likely: str
    differs: Mapping[Key, Any]


@dataclass
class Fingerprint:
    """The facts of an answer on the fixed scenes; the keys of those that are judged, and of those that are wrong."""

    seen: dict[Key, Any] = field(default_factory=dict)
    judged: set[Key] = field(default_factory=set)
    broken: set[Key] = field(default_factory=set)
    within: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """The stored fingerprints: the facts judged, the tolerance of each, and the mistakes of the bank."""

    judged: set[Key]
    within: Mapping[str, float]
    mistakes: list[Mistake]


# `play` of a check. `call(*args, may_change=…)` is `Trial.call` of the student's object; `through` is a function of
# (student, *args) that runs in the student's thread, and calls it.
Play = Callable[[Callable[..., Any], Scene], Facts]


class Contract:
    """An exercise graded by clauses, which are judged in their order; `edges` and `play` make the scenes.

    `file` is the check's `__file__`; the fingerprints are in NAME.json beside it. `says` is printed for a right answer;
    `imports` and `draws_once` are as in `check`. `hides` returns the edges that have no effect in a scene; with `every`
    all possible scenes are played. `errors` maps a part of an exception's "Type: text" to its likely cause. `own_gpu`:
    the student's code runs on GPUs of the check, never on the notebook's. `parameters` are those of the function asked
    for; for another object, as a class, `accept(student, trial)` judges its kind and returns the function to call.

    With `ranks`, their greatest number, the function runs on real ranks: `call(on_rank, args of rank 0, …)` returns the
    list of the results of `on_rank(student, *args)`. Then `may_change` says, as in `Trial.call`, what the student may
    change of the arguments, and `may_seed` is the one option of `call`. `alike` is the relative tolerance of a
    mistake's numbers on another processor.
    """

    def __init__(
        self,
        file: str,
        *,
        says: str,
        parameters: Sequence[str],
        clauses: Sequence[Clause],
        edges: Mapping[str, Sequence[Any]],
        play: Play,
        possible: Callable[[Scene], bool] = lambda scene: True,
        accept: Callable[[Any, Trial], Callable[..., Any]] | None = None,
        ranks: int = 0,
        may_change: Mapping[str, Iterable[Kind]] = MappingProxyType({}),
        alike: float = _ALIKE,
        hides: Callable[[Scene], Iterable[str]] = lambda scene: (),
        every: bool = False,
        errors: Mapping[str, str] = MappingProxyType({}),
        imports: Sequence[str] = (),
        draws_once: bool = False,
        own_gpu: bool = True,
    ) -> None:
        self.lesson, self.name = home_of(file)
        self.says, self.imports, self.draws_once, self.own_gpu = says, imports, draws_once, own_gpu
        self.hides, self.every, self.errors = hides, every, errors
        self.alike = alike
        self.path, self.parameters = Path(file).with_suffix(".json"), tuple(parameters)
        self.accept = accept or self._accept
        self.clauses, self.edges, self.play, self.possible = tuple(clauses), dict(edges), play, possible
        self.ranks, self.may_change = ranks, dict(may_change)

    @cached_property
    def check(self) -> Callable[..., None]:
        """The function `gpulab.check.NAME`."""
        doc = f"Check a function of ({', '.join(self.parameters)}): {self.says}."
        made = check(
            lesson=self.lesson,
            says=self.says,
            imports=self.imports,
            draws_once=self.draws_once,
            name=self.name,
            doc=doc,
        )
        return made(self.judge)

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs(self.edges, self.possible, self.hides, every=self.every)

    def scenes(self, seed: int) -> list[tuple[int, Scene]]:
        """Return the scenes, each with the seed for the values drawn in it."""
        draw = random.Random(seed)
        return [(draw.randrange(2**31), scene) for scene in self._pairs.draw(draw)]

    def judge(self, student: Any, trial: Trial) -> None:
        """Fail with the first clause that the answer breaks in freshly drawn scenes, and with the mistake if known."""
        function = self.accept(student, trial)
        with self._on_ranks(trial):
            for seed, scene in self.scenes(random.randrange(2**31)):
                try:
                    facts = self._play(function, trial, seed, scene)
                except CheckFailed as failed:
                    if failed.raised:
                        self._name(failed, [CALL], student, trial)
                    raise
                self._judge(facts, student, trial)

    def _on_ranks(self, trial: Trial) -> AbstractContextManager[Any]:
        if not self.ranks:
            return nullcontext()
        from .ranks import Ranks

        return Ranks(self.ranks, trial)

    def _accept(self, student: Any, trial: Trial) -> Callable[..., Any]:
        trial.function(student, self.parameters)
        function: Callable[..., Any] = student
        return function

    def _judge(self, facts: Facts, student: Any, trial: Trial) -> None:
        for clause in self.clauses:
            broken = [name for name in clause.facts if name in facts.wanted and not holds(facts, name)]
            if not broken:
                continue
            name = broken[0]
            expected, got = contrast(facts.wanted[name], facts.seen.get(name))
            try:
                trial.fail(
                    clause.summary,
                    expected=f"{name}: {expected} ({facts.about})",
                    got=f"{name}: {got}",
                    asked=f"“{clause.quote}”" + (f": {clause.rule}" if clause.rule else ""),
                    read=clause.read,
                )
            except CheckFailed as failed:
                self._name(failed, [*broken, *clause.facts], student, trial)
                raise

    def _name(self, failed: CheckFailed, broken: Sequence[str], student: Any, trial: Trial) -> None:
        """Add the messages of the mistakes found in this answer to `failed`, that of the first broken fact first."""
        again = Trial(trial.name, trial.lesson)
        again.ranks = trial.ranks
        made, all_told = self.explained(self.fingerprint(student, again))
        if not made:
            return
        breaking = (m for fact in broken for m in made if fact in {name for _, name in m.differs})
        first = next(breaking, made[0] if all_told else None)
        others = dict.fromkeys(m.summary for m in made if not (first and m.summary == first.summary))
        if first:
            failed.summary = f"{failed.summary}: {first.summary}" if failed.raised else first.summary
            failed.rows["likely"], failed.rows["asked"] = first.likely or failed.rows["likely"], ""
        if others:
            failed.rows["also"] = "; ".join(others)

    def _play(self, function: Callable[..., Any], trial: Trial, seed: int, scene: Scene) -> Facts:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)

        def call(*args: Any, through: Callable[..., Any] | None = None, **options: Any) -> Any:
            if self.ranks:
                on_rank, *of_ranks = args
                watched = Watched(function, self.parameters, self.may_change)
                functions = [partial(on_rank, watched, *args) for args in of_ranks]
                return trial.ranks.call(trial, functions, function, **options)
            options.setdefault("explain", self._explain)
            return trial.call(partial(through, function) if through else function, *args, **options)

        return self.play(call, scene)

    def _explain(self, error: str) -> str:
        return next((likely for text, likely in self.errors.items() if text in error), "")

    @cached_property
    def fixed(self) -> list[tuple[int, Scene]]:
        return self.scenes(FIXED_SEED)

    def fingerprint(self, answer: Any, trial: Trial, only: Container[int] | None = None) -> Fingerprint:
        """Return the facts of `answer` on the fixed scenes, all or those numbered `only`, up to one where it hangs or
        changes an argument."""
        found = Fingerprint()
        function = self.accept(answer, trial)
        for number, (seed, scene) in enumerate(self.fixed):
            if only is not None and number not in only:
                continue
            try:
                facts = settings.in_clean_state(partial(self._play, function, trial, seed, scene), seed=seed)
            except CheckFailed as failed:
                found.seen[number, CALL] = failed.raised or failed.summary
                found.broken.add((number, CALL))
                if not failed.raised or failed.hung:
                    break
                continue
            for name, seen in facts.seen.items():
                found.seen[number, name] = json_value(seen)
            found.judged |= {(number, name) for name in facts.wanted}
            found.broken |= {(number, name) for name in facts.wanted if not holds(facts, name)}
            found.within |= {name: wanted.within for name, wanted in facts.wanted.items() if isinstance(wanted, Near)}
        return found

    @cached_property
    def stored(self) -> Stored:
        """The fingerprints, read from the file."""
        kept = json.loads(self.path.read_text("utf-8"))
        mistakes = [Mistake(m["name"], m["summary"], m["likely"], _flat(m["differs"])) for m in kept["mistakes"]]
        return Stored({(scene, name) for scene, name in kept["judged"]}, kept["within"], mistakes)

    def explained(self, found: Fingerprint) -> tuple[list[Mistake], bool]:
        """Return the mistakes found in this fingerprint, the one that explains most facts first, and True if together
        they explain all that is wrong on the fixed scenes."""
        within = self.stored.within

        def made(mistake: Mistake) -> bool:
            """Return True if all its facts are found here, and its exceptions in no other scene."""
            differs = mistake.differs
            raised = {value for (_, name), value in differs.items() if name == CALL}
            elsewhere = any(
                name == CALL and (scene, name) not in differs and any(_says(value, one) for one in raised)
                for (scene, name), value in found.seen.items()
            )

            def shows(key: Key, value: Any) -> bool:
                seen = found.seen.get(key)
                if key[1] == CALL:
                    return _says(seen, value)
                return _is_close(seen, value, max(within.get(key[1], _CLOSE), self.alike))

            return bool(differs) and not elsewhere and all(shows(key, value) for key, value in differs.items())

        left, fits, chosen = set(found.broken), list(filter(made, self.stored.mistakes)), []
        while fits:
            best = max(fits, key=lambda mistake: len(left & mistake.differs.keys()))
            if not left & best.differs.keys():
                break
            left -= best.differs.keys()
            chosen.append(best)
        return chosen, not left

    def broken_by(self, mistake: Mistake) -> set[str]:
        """Return the judged facts that this mistake breaks."""
        judged = {fact for clause in self.clauses for fact in clause.facts} | {CALL}
        return {fact for _, fact in mistake.differs} & judged

    def store(self, solution: Any, answers: Sequence[tuple[str, str, str, Any]]) -> str:
        """Return the text of the file of fingerprints for `answers`: (name, summary, likely, answer)."""

        def alone(answer: Any) -> Fingerprint:
            """Run on fresh ranks: ranks that were called often are never idle, so that none would seem to wait."""
            with self._on_ranks(trial := Trial(self.path.stem, 0)):
                return self.fingerprint(answer, trial)

        right = alone(solution)
        if right.broken:
            raise ValueError(f"the solution of {self.path.stem} breaks {sorted(right.broken)}")
        mistakes = []
        for name, summary, likely, answer in answers:
            found = alone(answer)
            differs = {key: found.seen.get(key) for key in found.broken}
            for key, value in found.seen.items():
                within = right.within.get(key[1], _CLOSE)
                if key not in found.judged and not (key in right.seen and _is_close(value, right.seen[key], within)):
                    differs[key] = value
            mistakes.append({"name": name, "summary": summary, "likely": likely, "differs": _nested(differs)})
        return _text({"judged": sorted(right.judged), "within": right.within, "mistakes": mistakes})


def holds(facts: Facts, name: str) -> bool:
    seen, wanted, within = facts.seen.get(name), facts.wanted[name], 0.0
    if isinstance(wanted, Near):
        wanted, within = wanted.value, wanted.within
    if isinstance(wanted, torch.Tensor) and isinstance(seen, torch.Tensor):
        if seen.shape != wanted.shape:
            return False
        seen, wanted = seen.detach().cpu().double(), wanted.detach().cpu().double()
        return bool(torch.equal(seen, wanted) or (seen - wanted).norm() <= within * wanted.norm())
    return _is_close(json_value(seen, math.inf), json_value(wanted, math.inf), within)


def json_value(value: Any, digits: float = _DIGITS) -> Any:
    """Return a fact as a JSON value: numbers to five digits, tuples as lists, a tensor as its norm and three weighted
    sums of its elements. With `digits` infinite, numbers stay exact and a tensor is the list of its elements."""
    if isinstance(value, Near):
        value = value.value
    if isinstance(value, torch.Tensor):
        vector = value.detach().double().flatten().cpu()
        if digits < math.inf:
            vector = torch.stack([vector.norm(), *((vector * weights).sum() for weights in _weights(vector.numel()))])
        value = vector.tolist()
    if isinstance(value, list | tuple):
        return [json_value(item, digits) for item in value]
    if isinstance(value, float) and math.isfinite(value) and digits < math.inf:
        return float(f"{value:.{int(digits)}g}")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@lru_cache(8)
def _weights(count: int) -> list[torch.Tensor]:
    """Return the weights of the three sums, cached: cos() wakes all threads, milliseconds on a busy machine."""
    along = torch.arange(1.0, count + 1, dtype=torch.float64)
    return [(turn * along).cos() for turn in (1.0, 2.3, 3.1)]


def fact_text(value: Any) -> str:
    value = value.value if isinstance(value, Near) else value
    if isinstance(value, torch.Tensor):
        return f"{value.numel():,} numbers, of norm {float(value.norm()):.4g}"
    value = json_value(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(fact_text, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return {None: "nothing", True: "yes", False: "no"}.get(value, str(value))


def contrast(wanted: Any, seen: Any) -> tuple[str, str]:
    """Return two facts that differ as texts, in more detail where the short texts are equal."""
    expected, got = fact_text(wanted), fact_text(seen)
    if expected != got:
        return expected, got
    wanted = wanted.value if isinstance(wanted, Near) else wanted
    if isinstance(wanted, torch.Tensor) and isinstance(seen, torch.Tensor) and wanted.shape == seen.shape:
        apart = float((seen.detach().cpu().double() - wanted.detach().cpu().double()).norm())
        return expected, f"{got}; their difference has norm {apart:.4g}"
    return clip(repr(json_value(wanted, math.inf))), clip(repr(json_value(seen, math.inf)))


def _text(kept: Mapping[str, Any]) -> str:
    """Return JSON with each mistake on its own line, for readable diffs."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    mistakes = ",\n".join(map(line, kept["mistakes"]))
    rest = ",\n".join(f'"{name}":{line(value)}' for name, value in kept.items() if name != "mistakes")
    return f'{{{rest},\n"mistakes":[\n{mistakes}\n]}}\n'


def _says(a: Any, b: Any) -> bool:
    """Return True if two exception texts have the same words: versions of PyTorch differ in punctuation, and so in
    where a long text is cut."""
    one, other = (re.findall(r"\w+", str(text)) for text in (a, b))
    both_cut = str(a).endswith("…") and str(b).endswith("…")
    count = max(1, min(len(one), len(other)) - 1) if both_cut else None
    return one[:count] == other[:count]


def _is_close(a: Any, b: Any, within: float) -> bool:
    """Return True if equal, or numbers or lists of numbers that differ by at most `within` times `b`."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return False
        if not all(_is_real(v) for v in (*a, *b)):
            return all(_is_close(x, y, within) for x, y in zip(a, b, strict=True))
        return math.dist(a, b) <= within * math.hypot(*b) or a == b
    if _is_real(a) and _is_real(b):
        return bool(abs(a - b) <= within * abs(b))
    return bool((a == b and isinstance(a, bool) == isinstance(b, bool)) or (a != a and b != b))


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value)


def _nested(facts: Mapping[Key, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (scene, name), value in sorted(facts.items()):
        nested.setdefault(str(scene), {})[name] = value
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[Key, Any]:
    return {(int(scene), name): value for scene, facts in nested.items() for name, value in facts.items()}
