"""A check as a contract: clauses, the scenes that test them, and what a broken clause likely means.

An author writes `play(call, scene)`, which runs the student's object in one scene and returns `Facts`: those seen, and
those wanted. A `Clause` names a sentence of the exercise and the facts that tell whether it holds. A check plays scenes
that are drawn afresh, and the first broken clause fails it.

Why it is broken is told by resemblance. Of each wrong answer in the bank the build stores its fingerprint: the facts in
which it differs from the solution, on scenes that are always the same. An answer that fails is played on those scenes
too, and is told the mistakes that it makes wherever they show: all facts of a fingerprint must be found in it. Two
mistakes in one answer are both named; an answer that resembles none is told its clause's general sentence.
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

FIXED_SEED = 20261122  # of the scenes that fingerprints are taken on
CALL = "the call"  # the fact that it returned; else how it failed
_CLOSE = 0.02  # for numbers that nobody judges
_DIGITS = 5
_ALIKE = 1e-4  # for a mistake's numbers on another processor, which adds in another order


Key = tuple[int, str]  # of a fact: the number of the scene, and its name


@dataclass(frozen=True)
class Near:
    """A number, or a vector, that may be off: by `within` of itself (of a vector's length)."""

    value: Any
    within: float = _CLOSE


@dataclass
class Facts:
    """What one scene showed: `seen` by name, and `wanted`, where a number is a `Near`. What is seen and not wanted is
    not judged; it helps to tell mistakes apart. `about` says in a few words which scene it was."""

    about: str
    seen: dict[str, Any] = field(default_factory=dict)
    wanted: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, seen: Any, wanted: Any) -> None:
        self.seen[name], self.wanted[name] = seen, wanted

    def hold(self) -> bool:
        """Whether all that is wanted was seen."""
        return all(holds(self, name) for name in self.wanted)


@dataclass(frozen=True)
class Clause:
    """One sentence that the exercise promises, word for word as it stands there, and the facts that hold it.

    An answer that breaks it in a way that nobody foresaw is told `summary`, the sentence itself and `rule`, which holds
    whatever the mistake is: it names no cause.
    """

    quote: str
    facts: Sequence[str]
    summary: str
    rule: str = ""
    read: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer of the bank: its words, and in which facts of which fixed scene it differs from the solution."""

    name: str
    summary: str
    likely: str
    differs: Mapping[Key, Any]


@dataclass
class Fingerprint:
    """What an answer showed on the fixed scenes, by scene and fact; what of it is judged, and what is not as wanted."""

    seen: dict[Key, Any] = field(default_factory=dict)
    judged: set[Key] = field(default_factory=set)
    broken: set[Key] = field(default_factory=set)
    within: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """What is judged of the solution, how far each fact may be off, and the mistakes of the bank."""

    judged: set[Key]
    within: Mapping[str, float]
    mistakes: list[Mistake]


# What an author writes. `call(*args, may_change=…)` is `Trial.call` of the student's object; `through` is a function of
# (student, *args) that runs in the student's thread, and calls it.
Play = Callable[[Callable[..., Any], Scene], Facts]


class Contract:
    """The clauses of one check, in the order in which they are judged; its edges; and `play`.

    `file` is the check's own `__file__`: the fingerprints lie beside it, in NAME.json. `says` is what a right answer is
    told; `imports` and `draws_once` are as in `check`. `hides` names the edges that do not matter in a scene; with
    `every`, all possible scenes are played. `errors` says what an exception likely means of which the text, as "Type:
    text", holds this one. `own_gpu`: the student's code never meets the notebook's GPU. `parameters` are those of the
    function that is asked for. Where another object is asked for, as a class, `accept(student, trial)` judges what kind
    of object came, and returns the function that `call` calls. With `ranks`, at most so many of them, the function is
    called on real ones: `call(on_rank, args of rank 0, …)` is the list of what `on_rank(student, *args)` returned; then
    `may_change` says, as in `Trial.call`, what the student may change of what `on_rank` hands over, and the one option
    of `call` is `may_seed`. `alike` is by how much a mistake's numbers may differ on another processor.
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
        """What a student calls: `gpulab.check.NAME`."""
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
        """Scenes, each with the seed of what is drawn in it."""
        draw = random.Random(seed)
        return [(draw.randrange(2**31), scene) for scene in self._pairs.draw(draw)]

    def judge(self, student: Any, trial: Trial) -> None:
        """Fail with the first clause that the answer breaks in scenes drawn afresh, and why where that can be told."""
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
        """Within it `trial` has ranks, if this contract is about them."""
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
        """Put the words of the mistakes that this answer makes into `failed`; first of one that breaks the first of
        these facts that any of them breaks."""
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
        """What `answer` shows on the fixed scenes, all or the numbers `only`, up to where it hangs or changes what it
        was handed: that is told."""
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
                found.seen[number, name] = plain(seen)
            found.judged |= {(number, name) for name in facts.wanted}
            found.broken |= {(number, name) for name in facts.wanted if not holds(facts, name)}
            found.within |= {name: wanted.within for name, wanted in facts.wanted.items() if isinstance(wanted, Near)}
        return found

    @cached_property
    def stored(self) -> Stored:
        """What the file of fingerprints holds."""
        kept = json.loads(self.path.read_text("utf-8"))
        mistakes = [Mistake(m["name"], m["summary"], m["likely"], _flat(m["differs"])) for m in kept["mistakes"]]
        return Stored({(scene, name) for scene, name in kept["judged"]}, kept["within"], mistakes)

    def explained(self, found: Fingerprint) -> tuple[list[Mistake], bool]:
        """The mistakes of the bank that are in an answer of this fingerprint, the one that tells most first; and
        whether they are all that is wrong with it on the fixed scenes."""
        within = self.stored.within

        def made(mistake: Mistake) -> bool:
            """All that it breaks is found here; and what it raises is raised nowhere else."""
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
                return _close(seen, value, max(within.get(key[1], _CLOSE), self.alike))

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
        """The facts that this mistake breaks, and that are judged."""
        judged = {fact for clause in self.clauses for fact in clause.facts} | {CALL}
        return {fact for _, fact in mistake.differs} & judged

    def store(self, solution: Any, answers: Sequence[tuple[str, str, str, Any]]) -> str:
        """The text of the file of fingerprints, of `answers` as (name, summary, likely, answer)."""

        def alone(answer: Any) -> Fingerprint:
            """On ranks of its own: those that were called often are never quiet, and none of them seems to wait."""
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
                if key not in found.judged and not (key in right.seen and _close(value, right.seen[key], within)):
                    differs[key] = value
            mistakes.append({"name": name, "summary": summary, "likely": likely, "differs": _nested(differs)})
        return _text({"judged": sorted(right.judged), "within": right.within, "mistakes": mistakes})


def holds(facts: Facts, name: str) -> bool:
    """Whether what was seen is what is wanted."""
    seen, wanted, within = facts.seen.get(name), facts.wanted[name], 0.0
    if isinstance(wanted, Near):
        wanted, within = wanted.value, wanted.within
    if isinstance(wanted, torch.Tensor) and isinstance(seen, torch.Tensor):
        if seen.shape != wanted.shape:
            return False
        seen, wanted = seen.detach().cpu().double(), wanted.detach().cpu().double()
        return bool(torch.equal(seen, wanted) or (seen - wanted).norm() <= within * wanted.norm())
    return _close(plain(seen, math.inf), plain(wanted, math.inf), within)


def plain(value: Any, digits: float = _DIGITS) -> Any:
    """A fact as JSON holds it: numbers to five digits unless more are asked for, tuples as lists. A tensor is all of
    its numbers then; else its norm and three sums of them with weights, which tell what was done to it."""
    if isinstance(value, Near):
        value = value.value
    if isinstance(value, torch.Tensor):
        vector = value.detach().double().flatten().cpu()
        if digits < math.inf:
            vector = torch.stack([vector.norm(), *((vector * weights).sum() for weights in _weights(vector.numel()))])
        value = vector.tolist()
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in value]
    if isinstance(value, float) and math.isfinite(value) and digits < math.inf:
        return float(f"{value:.{int(digits)}g}")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


@lru_cache(8)
def _weights(count: int) -> list[torch.Tensor]:
    """Those of the three sums. A cosine wakes all threads, which on a busy machine takes milliseconds."""
    along = torch.arange(1.0, count + 1, dtype=torch.float64)
    return [(turn * along).cos() for turn in (1.0, 2.3, 3.1)]


def words(value: Any) -> str:
    """A fact for a message."""
    value = value.value if isinstance(value, Near) else value
    if isinstance(value, torch.Tensor):
        return f"{value.numel():,} numbers, of norm {float(value.norm()):.4g}"
    value = plain(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(words, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return {None: "nothing", True: "yes", False: "no"}.get(value, str(value))


def contrast(wanted: Any, seen: Any) -> tuple[str, str]:
    """Two facts that differ, for a message: in more detail where their words are the same."""
    expected, got = words(wanted), words(seen)
    if expected != got:
        return expected, got
    wanted = wanted.value if isinstance(wanted, Near) else wanted
    if isinstance(wanted, torch.Tensor) and isinstance(seen, torch.Tensor) and wanted.shape == seen.shape:
        apart = float((seen.detach().cpu().double() - wanted.detach().cpu().double()).norm())
        return expected, f"{got}; their difference has norm {apart:.4g}"
    return clip(repr(plain(wanted, math.inf))), clip(repr(plain(seen, math.inf)))


def _text(kept: Mapping[str, Any]) -> str:
    """JSON with one mistake on a line, so that a change of one is a change of one line."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    mistakes = ",\n".join(map(line, kept["mistakes"]))
    rest = ",\n".join(f'"{name}":{line(value)}' for name, value in kept.items() if name != "mistakes")
    return f'{{{rest},\n"mistakes":[\n{mistakes}\n]}}\n'


def _says(a: Any, b: Any) -> bool:
    """Whether two texts of what a call raised have the same words: versions of PyTorch differ in a comma or a colon,
    and so in where a long text is cut."""
    one, other = (re.findall(r"\w+", str(text)) for text in (a, b))
    both_cut = str(a).endswith("…") and str(b).endswith("…")
    count = max(1, min(len(one), len(other)) - 1) if both_cut else None
    return one[:count] == other[:count]


def _close(a: Any, b: Any, within: float) -> bool:
    """Equal; or two numbers, or two lists of such, of which the difference is within that part of `b`."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return False
        if not all(_is_real(v) for v in (*a, *b)):
            return all(_close(x, y, within) for x, y in zip(a, b, strict=True))
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
