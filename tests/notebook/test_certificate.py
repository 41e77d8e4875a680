"""The certificate: a page made from the progress file, which says what it is, and is safe whatever the name."""

import json
import xml.etree.ElementTree as ET
from datetime import date

import pytest

import gpulab
from gpulab.notebook import progress


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "progress.json"


def pass_some():
    progress.record_passed("checks", 8, "token_weighting")
    progress.record_passed("questions", 0, "labels")
    progress.record_passed("checks", 15, "capstone: waits")
    progress.record_passed("checks", 15, "capstone_drawn: log")


def test_it_says_what_was_passed_when_and_which_faults_are_repaired(file, capsys):
    pass_some()
    path = gpulab.certificate("Ada Lovelace")
    page, text, today = path.read_text(encoding="utf-8"), capsys.readouterr().out, date.today().isoformat()
    for said in (page, text):
        assert "Ada Lovelace" in said
        assert f"token_weighting ({today})" in said
        assert "capstone: waits" in said or f"waits ({today})" in said
        assert f"log ({today})" in said
        assert "nobody has signed it" in said
        assert "1 of " in said
    assert "Faults repaired: capstone_drawn" in page
    assert "00_start_here" in page
    assert "01_why_gpus" not in page  # nothing was passed there


def test_the_page_is_whole_and_needs_no_network(file):
    pass_some()
    page = gpulab.certificate("Ada", "mine.html").read_text(encoding="utf-8")
    tree = ET.fromstring(
        page.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', "").split("<meta")[0]
        + "<title"
        + page.split("<title", 1)[1]
    )
    assert [cell.text for cell in tree.iter("h1")] == ["Ada"]
    assert all(row.get("scope") for row in tree.iter("th"))
    assert "@media print" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_name_is_text_and_never_markup(file):
    pass_some()
    page = gpulab.certificate('<script>alert("1")</script> & Söhne').read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; Söhne" in page


@pytest.mark.parametrize("name", ["", "  ", 3, None, "a\nb", "x" * 101])
def test_what_is_no_name_is_refused(name, file):
    pass_some()
    with pytest.raises(ValueError, match="name must be a text of 1 to 100 letters"):
        gpulab.certificate(name)


def test_nothing_passed_is_nothing_to_certify(file):
    with pytest.raises(RuntimeError, match=r"nothing to certify yet: progress\.json holds no exercise"):
        gpulab.certificate("Ada")
    progress.record_guess("How many?", 3.0, 8)
    with pytest.raises(RuntimeError, match="nothing to certify yet"):
        gpulab.certificate("Ada")
    assert not file.with_name("certificate.html").exists()


def test_a_missing_folder_is_named(file):
    pass_some()
    with pytest.raises(FileNotFoundError, match="the folder 'nowhere' does not exist"):
        gpulab.certificate("Ada", "nowhere/mine.html")


def test_what_an_earlier_gpulab_has_recorded_has_no_day(file):
    old = {"version": 2, "checks": {"8": ["token_weighting"]}, "questions": {}, "predictions": {}}
    file.write_text(json.dumps(old))
    page = gpulab.certificate("Ada").read_text(encoding="utf-8")
    assert "token_weighting (day not recorded)" in page


def test_a_day_is_that_of_the_first_pass_and_a_damaged_one_is_left_out(file):
    pass_some()
    raw = json.loads(file.read_text())
    raw["days"] |= {"checks/8/token_weighting": "2026-01-31", "checks/15/capstone: waits": 3, "nonsense": "2026-01-31"}
    file.write_text(json.dumps(raw))
    progress.record_passed("checks", 8, "token_weighting")
    days = progress.read_progress().days
    assert days["checks", 8, "token_weighting"] == date(2026, 1, 31)
    assert ("checks", 15, "capstone: waits") not in days
