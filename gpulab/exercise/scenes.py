"""Generates test scenes by pairwise combination: few scenes in which any two values of two edge cases meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Scene = SimpleNamespace  # the value of each edge, by name
MOST = 50_000  # combinations searched
LOOKED_AT = 60  # fitting combinations compared for each choice


class Pairs:
    """The possible combinations of the edges' values, with the pairs of values that meet in each; `draw` chooses scenes
    from them, or all if `every`.

    `edges` gives the values of each edge. `hides` returns the edges that have no effect in a scene: a mistake that
    needs one of their values does not show there, so no pair with it counts. ValueError for an edge without values,
    more than 50,000 combinations, or no possible one.
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
        # A set of pairs is an integer with a bit for each.
        bits = {pair: 1 << bit for bit, pair in enumerate(sorted(set().union(*meets)))}
        self.rows = [(row, sum(bits[pair] for pair in met)) for row, met in zip(rows, meets, strict=True)]
        self.all = sum(bits.values())

    def _met(self, row: Sequence[int], hidden: Container[str]) -> Iterable[tuple[tuple[int, int], ...]]:
        """Return the pairs of values in this row, without hidden edges; a single value where only one is left, () where
        none is, so that such scenes are drawn too."""
        shown = [(i, value) for i, (name, value) in enumerate(zip(self.edges, row, strict=True)) if name not in hidden]
        return itertools.combinations(shown, min(2, len(shown)))

    def _scene(self, row: Sequence[int]) -> Scene:
        return Scene(**{name: values[i] for (name, values), i in zip(self.edges.items(), row, strict=True)})

    def draw(self, draw: random.Random) -> list[Scene]:
        """Return scenes in which any two values of two edges meet at least once, if a possible scene has both; `draw`
        chooses among such lists. The greedy choice is close to the fewest scenes."""
        rows, missing, chosen = list(self.rows), self.all, []
        draw.shuffle(rows)
        if self.every:
            return [self._scene(row) for row, _ in rows]
        while missing:
            pair = missing & -missing  # choose the row with this pair and most other missing ones
            fitting = itertools.islice((row for row in rows if row[1] & pair), LOOKED_AT)
            best, met = max(fitting, key=lambda row: (row[1] & missing).bit_count())
            missing &= ~met
            chosen.append(self._scene(best))
        return chosen
