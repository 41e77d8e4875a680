"""The pictures of README.md are those that the code draws today; `python tools/pictures.py` makes them anew."""

import html
import re
import xml.etree.ElementTree as ET

import pictures
import pytest

from .pictures_read import unread

README = (pictures.ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*pictures.SIMULATORS, *pictures.TEXTS])
def test_a_picture_is_as_it_is_drawn(name):
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == pictures.drawn(name)


@pytest.mark.parametrize("name", [*pictures.SIMULATORS, *pictures.TEXTS])
def test_its_words_stand_out_in_both_themes(name):
    assert not unread(ET.fromstring(pictures.drawn(name)))


def test_every_picture_says_what_it_shows():
    words = pictures.alts(pictures.timeline())
    assert pictures.with_alts(README, words) == README
    shown = re.findall(r'<img src="docs/pictures/(\w+)\.(\w+)"[^>]*? alt="([^"]*)"', README)
    assert {name for name, _, _ in shown} == set(words)
    for name, kind, alt in shown:
        assert (pictures.FOLDER / f"{name}.{kind}").is_file()
        assert html.unescape(alt) == words[name]


def test_a_picture_that_the_readme_does_not_show_is_named():
    with pytest.raises(ValueError, match=r"docs/pictures/nothing 0 times"):
        pictures.with_alts(README, {"nothing": "x"})
