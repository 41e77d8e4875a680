"""Scenes for a check: combinations of the edges at which answers go wrong, few, and every two of them together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Scene = SimpleNamespace  # an edge's value by its name
MOST = 50_000  # combinations that are looked through
LOOKED_AT = 60  # of those that fit, to find a good one


def pairwise(
    edges: Mapping[str, Sequence[Any]], draw: random.Random, possible: Callable[[Scene], bool] = lambda scene: True
) -> list[Scene]:
    """Scenes in which any two values of two edges meet at least once, if there is a possible scene in which they do.

    `edges` names the values of each; `draw` decides which of many such lists it is. A greedy choice: close to the
    fewest scenes, and not always the fewest. Errors: ValueError for an edge without values, more than 50,000
    combinations, and edges of which no combination is possible.
    """
    for name, values in edges.items():
        if not values:
            raise ValueError(f"the edge {name!r} has no values")
    rows = list(itertools.product(*(range(len(values)) for values in edges.values())))
    if len(rows) > MOST:
        raise ValueError(f"{len(rows):,} combinations of edges; at most {MOST:,} are looked through")

    def scene(row: Sequence[int]) -> Scene:
        return Scene(**{name: values[i] for (name, values), i in zip(edges.items(), row, strict=True)})

    rows = [row for row in rows if possible(scene(row))]
    if not rows:
        raise ValueError(f"no combination of the edges {', '.join(edges)} is possible")
    draw.shuffle(rows)
    meets = {row: set(itertools.combinations(enumerate(row), min(2, len(row)))) for row in rows}
    missing, chosen = set[Any]().union(*meets.values()), []
    while missing:
        pair = min(missing)  # one after the other, each with the row that brings along most of the others
        fitting = itertools.islice((row for row in rows if pair in meets[row]), LOOKED_AT)
        best = max(fitting, key=lambda row: len(meets[row] & missing))
        missing -= meets[best]
        chosen.append(scene(best))
    return chosen
