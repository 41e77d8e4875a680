"""What every picture has to keep to; the fixtures `check_picture` and `contrast` hand it to tests."""

import math
import re
import xml.etree.ElementTree as ET

from virtualgpu.pictures import style, svg

SVG = "{http://www.w3.org/2000/svg}"


def check_picture(text: str) -> None:
    """Well-formed, titled, letters large enough, nothing outside, no words over words."""
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text
    assert root[1].tag == f"{SVG}desc"
    _, _, width, height = map(float, root.get("viewBox").split())
    boxes = []
    for shift, element in placed(root, 0.0):
        for name in ("x", "y", "width", "height", "x1", "x2", "y1", "y2"):
            value = element.get(name)
            # each letter of a text may have an x of its own
            one = value is None or all(re.fullmatch(r"-?\d+(\.\d)?", part) for part in value.split(" "))
            assert one, (element.attrib, name)
            assert value is None or name == "x" or " " not in value, (element.attrib, name)
        if element.tag == f"{SVG}text":
            letters = float(element.get("font-size"))
            assert letters >= 13
            places = element.get("x").split(" ")
            assert len(places) in (1, len(element.text))
            pieces = [element.text] if len(places) == 1 else element.text
            for place, piece in zip(places, pieces, strict=True):
                long = svg.length(piece, letters, bold=element.get("font-weight") == "bold")
                left = float(place) - {None: 0.0, "middle": long / 2, "end": long}[element.get("text-anchor")]
                bottom = shift + float(element.get("y"))
                boxes.append((left, bottom - 0.75 * letters, left + long, bottom, piece))
        elif element.tag == f"{SVG}rect":
            assert float(element.get("x")) >= 0
            assert float(element.get("x")) + float(element.get("width")) <= width
            assert shift + float(element.get("y")) + float(element.get("height")) <= height
    assert not unread(root), "words that do not stand out from what is under them"
    for box in boxes:
        assert box[0] >= 0, box
        assert box[2] <= width, box
        assert 0 <= box[1] < box[3] <= height, box
    for i, one in enumerate(boxes):
        for two in boxes[:i]:
            clear = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert clear, (one, two)


def unread(root: ET.Element) -> list[tuple]:
    """The words whose contrast with their ground is below 4.5 : 1 in one of the themes, each with theme and ratio.

    A ground is what is drawn before, at the start, the middle and the end of the words; with a halo it is the paper.
    """
    found, fills = [], []
    for shift, element in placed(root, 0.0):
        fill = element.get("fill", "none")
        if element.tag == f"{SVG}text":
            for words, x, y in _samples(element, shift):
                under = [] if element.get("stroke") else [layer for *layer, covers in fills if covers(x, y)]
                for theme, colours in (("light", {}), ("dark", style.DARK)):
                    ground = colours.get(style.PAPER, style.PAPER)
                    for colour, share in under:
                        ground = _mixed(colours.get(colour, colour), ground, share)
                    ratio = contrast(colours.get(fill, fill), ground)
                    if ratio < 4.5:
                        found.append((words, theme, round(ratio, 1)))
        elif fill.startswith("#"):
            fills.append((fill, float(element.get("fill-opacity", 1)), _shape(element, shift)))
    return found


def _samples(element: ET.Element, shift: float):
    """Points in the words: (words, x, y)."""
    size, places = float(element.get("font-size")), element.get("x").split(" ")
    for words, place in zip([element.text] if len(places) == 1 else element.text, places, strict=True):
        long = 0.9 * svg.length(words or "", size)
        left = float(place) - {None: 0.0, "middle": long / 2, "end": long}[element.get("text-anchor")]
        for share in (0.1, 0.5, 0.9):
            yield words, left + share * long, shift + float(element.get("y")) - 0.35 * size


def _shape(element: ET.Element, shift: float):
    """A function that says whether a point is in what an element fills."""
    kind = element.tag.removeprefix(SVG)
    if kind == "polygon":
        points = [tuple(map(float, point.split(","))) for point in element.get("points").split()]
        return lambda x, y: _within(points, x, y - shift)
    if kind == "circle":
        x, y, r = (float(element.get(name)) for name in ("cx", "cy", "r"))
        return lambda px, py: math.hypot(px - x, py - shift - y) <= r
    if kind == "path":
        boxes = [tuple(map(float, box)) for box in _BOX.findall(element.get("d"))]
    else:
        boxes = [tuple(float(element.get(name, 0)) for name in ("x", "y", "width", "height"))]
    return lambda px, py: any(x <= px <= x + w and y <= py - shift <= y + h for x, y, w, h in boxes)


_BOX = re.compile(r"M([-\d.]+) ([-\d.]+)h([\d.]+)v([\d.]+)h")


def _within(points, x, y):
    """Whether a ray from the point to the right crosses the polygon's edges an odd number of times."""
    edges = zip(points, points[1:] + points[:1], strict=True)
    return sum((b > y) != (d > y) and x < a + (c - a) * (y - b) / (d - b) for (a, b), (c, d) in edges) % 2 == 1


def _mixed(over, under, share):
    parts = ((int(over[i : i + 2], 16), int(under[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02X}" for a, b in parts)


def placed(element: ET.Element, shift: float):
    move = re.fullmatch(r"translate\(0 (.*)\)", element.get("transform", ""))
    shift += float(move.group(1)) if move else 0.0
    yield shift, element
    for child in element:
        yield from placed(child, shift)


def contrast(one: str, two: str) -> float:
    """WCAG 2's contrast ratio of two colours."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(one), light(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)
