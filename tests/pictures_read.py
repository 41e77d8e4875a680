"""What every picture has to keep to; the fixtures `check_picture` and `contrast` hand it to tests."""

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
            assert contrast(element.get("fill"), style.PAPER) >= 4.5
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
    for box in boxes:
        assert box[0] >= 0, box
        assert box[2] <= width, box
        assert 0 <= box[1] < box[3] <= height, box
    for i, one in enumerate(boxes):
        for two in boxes[:i]:
            clear = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
            assert clear, (one, two)


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
