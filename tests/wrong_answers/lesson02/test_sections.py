"""The sections that failed checks send a student to are headings of the lecture."""

from pathlib import Path

import pytest

from gpulab.check.lesson02.sections import SECTIONS

LECTURE = Path(__file__).resolve().parents[3] / "sources" / "lectures" / "02_devices.py"


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_a_heading_of_the_lecture(section):
    headings = {line.lstrip("# ") for line in LECTURE.read_text(encoding="utf-8").splitlines() if "# ##" in line}
    assert section in headings
