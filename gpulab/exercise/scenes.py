"""Scenes for a check: combinations of the edges at which answers go wrong, few, and every two of them together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Scene = SimpleNamespace  # an edge's value by its name
MOST = 50_000  # combinations that are looked through
LOOKED_AT = 60  # of those that fit, to find a good one


class Pairs:
    """The possible combinations of the edges' values, and which two values of two edges meet in each: from these
    `draw` chooses scenes, or takes all if `every`.

    `edges` names the values of each. `hides` names the edges that do not matter in a scene: a mistake that needs one of
    their values does not show there, so they meet nobody in it. Errors: ValueError for an edge without values, more
    than 50,000 combinations, and edges of which no combination is possible.
    """

    def __init__(
        self,
        edges: Mapping[str, Sequence[Any]],
        possible: Callable[[Scene], bool],
        hides: Callable[[Scene], Iterable[str]] = lambda scene: (),
        *,
        every: bool = False,
    ) -> None:
        for name, values in edges.items():
            if not values:
                raise ValueError(f"the edge {name!r} has no values")
        self.edges, self.every = edges, every
        rows = list(itertools.product(*(range(len(values)) for values in edges.values())))
        if len(rows) > MOST:
            raise ValueError(f"{len(rows):,} combinations of edges; at most {MOST:,} are looked through")
        rows = [row for row in rows if possible(self._scene(row))]
        if not rows:
            raise ValueError(f"no combination of the edges {', '.join(edges)} is possible")
        meets = [set(self._met(row, set(hides(self._scene(row))))) for row in rows]
        # A set of pairs is a number, with a bit for each.
        bits = {pair: 1 << bit for bit, pair in enumerate(sorted(set().union(*meets)))}
        self.rows = [(row, sum(bits[pair] for pair in met)) for row, met in zip(rows, meets, strict=True)]
        self.all = sum(bits.values())

    def _met(self, row: Sequence[int], hidden: Container[str]) -> Iterable[tuple[tuple[int, int], ...]]:
        """The pairs of values in this row, of edges that matter in it; where one alone matters its value, and where
        none does nothing: such a scene is drawn too."""
        shown = [(i, value) for i, (name, value) in enumerate(zip(self.edges, row, strict=True)) if name not in hidden]
        return itertools.combinations(shown, min(2, len(shown)))

    def _scene(self, row: Sequence[int]) -> Scene:
        return Scene(**{name: values[i] for (name, values), i in zip(self.edges.items(), row, strict=True)})

    def draw(self, draw: random.Random) -> list[Scene]:
        """Scenes in which any two values of two edges meet at least once, if there is a possible scene in which they
        do; `draw` decides which of many such lists. A greedy choice: close to the fewest scenes, and not always."""
        rows, missing, chosen = list(self.rows), self.all, []
        draw.shuffle(rows)
        if self.every:
            return [self._scene(row) for row, _ in rows]
        while missing:
            pair = missing & -missing  # one after the other, each with the row that brings along most of the others
            fitting = itertools.islice((row for row in rows if row[1] & pair), LOOKED_AT)
            best, met = max(fitting, key=lambda row: (row[1] & missing).bit_count())
            missing &= ~met
            chosen.append(self._scene(best))
        return chosen
