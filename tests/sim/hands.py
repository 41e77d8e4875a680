"""What can be touched in a picture on a living page, as `front.js` reads it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any, NamedTuple

from virtualgpu.pictures.svg import Picture


class Held(NamedTuple):
    """A grip: its control from `low` to `high`, between `start` and `end` in the picture's pixels."""

    start: float
    end: float
    low: float
    high: float
    axis: str
    piece: ET.Element

    def at(self, value: float) -> float:
        """Where the pointer has to be for this value."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def _marked(picture: Picture, mark: str) -> Iterator[ET.Element]:
    return (element for element in ET.fromstring(picture.inner()).iter() if element.get(f"data-{mark}"))


def grip(picture: Picture, name: str) -> Held:
    """The one grip of the control `name`."""
    (found,) = (element for element in _marked(picture, "drag") if name in element.get("data-drag", "").split())
    place = found.get("data-drag", "").split().index(name)
    start, end, low, high = (
        float(found.get(f"data-{key}", "").split()[place]) for key in ("from", "to", "low", "high")
    )
    assert found.get("data-log", "").split()[place] == "0"
    return Held(start, end, low, high, found.get("data-axis", "").split()[place], found)


def clicks(picture: Picture) -> list[dict[str, Any]]:
    """The values that each thing sets that can be clicked."""
    return [json.loads(element.get("data-set", "")) for element in _marked(picture, "set")]


def names(picture: Picture) -> list[str]:
    """What is said where the pointer rests."""
    found = ET.fromstring(picture.inner()).iter("{http://www.w3.org/2000/svg}title")
    return [element.text or "" for element in found]
