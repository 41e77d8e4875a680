"""The record of what was passed: kept whole whatever happens to the file, and shown as a map in text and HTML."""

import json
import os
import subprocess
import sys
import time
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from courselib.patience import HANG_SECONDS
from filelock import FileLock

from gpulab import course
from gpulab.notebook import progress
from virtualgpu.pictures.style import GREEN


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "progress.json"
    monkeypatch.setenv("GPULAB_PROGRESS", str(path))
    return path


def contents(file):
    return json.loads(file.read_text())


def others(file):
    """What lies beside the record, without its lock."""
    return sorted(p.name for p in file.parent.iterdir() if p.name not in (file.name, f"{file.name}.lock"))


# --- keeping -------------------------------------------------------------------------------------------


def test_nothing_is_passed_where_there_is_no_file(file):
    assert progress.read_progress() == progress.Passed()
    assert not file.exists()


def test_what_is_recorded_is_read_again(file):
    assert progress.record_passed("checks", 8, "token_weighting") == ()
    assert progress.record_passed("checks", 8, "accumulation_amp") == ()
    assert progress.record_passed("questions", 0, "card") == ()
    passed = progress.read_progress()
    assert passed.checks == {8: {"token_weighting", "accumulation_amp"}}
    assert passed.questions == {0: {"card"}}
    assert passed.notes == ()


def test_a_second_pass_of_the_same_writes_nothing(file):
    progress.record_passed("checks", 8, "token_weighting")
    before = file.stat().st_mtime_ns, file.stat().st_ino
    progress.record_passed("checks", 8, "token_weighting")
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_a_kind_that_does_not_exist_is_refused(file):
    with pytest.raises(ValueError, match="kind must be 'checks' or 'questions', not 'exams'"):
        progress.record_passed("exams", 8, "x")


def test_the_environment_says_where_the_record_is(file):
    assert progress.file_path() == file


def test_the_process_can_be_a_part_of_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "{pid}.json"))
    assert progress.file_path() == tmp_path / f"{os.getpid()}.json"


def test_without_the_environment_the_record_is_in_the_course_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("GPULAB_PROGRESS", raising=False)
    for name in ("notebooks", "exercises"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "exercises")
    assert progress.file_path() == tmp_path / "progress.json"


def test_outside_the_course_the_record_is_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("GPULAB_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(course, "_STARTED", tmp_path)  # these tests begin in the course
    assert progress.file_path() == tmp_path / "progress.json"


def test_folders_on_the_way_are_made(tmp_path, monkeypatch):
    file = tmp_path / "a" / "b" / "progress.json"
    monkeypatch.setenv("GPULAB_PROGRESS", str(file))
    assert progress.record_passed("checks", 8, "token_weighting") == ()
    assert contents(file)["checks"] == {"8": ["token_weighting"]}


def test_names_that_this_version_does_not_know_are_kept(file):
    file.write_text(json.dumps({"version": 1, "checks": {"8": ["of_the_future"], "99": ["x"]}, "questions": {}}))
    progress.record_passed("checks", 8, "token_weighting")
    assert contents(file)["checks"] == {"8": ["of_the_future", "token_weighting"], "99": ["x"]}
    assert others(file) == []


# --- damage --------------------------------------------------------------------------------------------

DAMAGED = {
    "empty": b"",
    "not JSON": b'{"version": 1, "checks": {"8": ["token_wei',
    "not text": b"\xff\xfe\x00\x01 progress",
    "a list": b"[]",
    "a number": b"3",
    "null": b"null",
    "version 0": b'{"version": 0, "checks": {}, "questions": {}}',
    "version in words": b'{"version": "2", "checks": {}, "questions": {}}',
    "version true": b'{"version": true, "checks": {}, "questions": {}}',
    "no predictions": b'{"version": 2, "checks": {}, "questions": {}}',
    "a guess alone": b'{"version": 2, "checks": {}, "questions": {}, "predictions": {"a": 3}}',
    **{
        f"guess {row}": b'{"version": 2, "checks": {}, "questions": {}, "predictions": {"a": %s}}' % row.encode()
        for row in (
            '{"guess": "3", "on": "2026-01-31", "lesson": 8}',
            '{"guess": true, "on": "2026-01-31", "lesson": 8}',
            '{"guess": NaN, "on": "2026-01-31", "lesson": 8}',
            '{"guess": 1e999, "on": "2026-01-31", "lesson": 8}',
            f'{{"guess": 1{400 * "0"}, "on": "2026-01-31", "lesson": 8}}',
            '{"guess": 3, "on": "2026-02-31", "lesson": 8}',
            '{"guess": 3, "on": 20260131, "lesson": 8}',
            '{"guess": 3, "on": "2026-01-31", "lesson": "8"}',
            '{"guess": 3, "on": "2026-01-31"}',
        )
    },
    "no version": b'{"checks": {}, "questions": {}}',
    "no table": b'{"version": 1, "checks": []}',
    "names as text": b'{"version": 1, "checks": {"8": "token_weighting"}, "questions": {}}',
    "names as numbers": b'{"version": 1, "checks": {"8": [1, 2]}, "questions": {}}',
    "lesson in words": b'{"version": 1, "checks": {"eight": []}, "questions": {}}',
    "lesson twice": b'{"version": 1, "checks": {"8": ["a"], "08": ["b"]}, "questions": {}}',
    "lesson too long": b'{"version": 1, "checks": {"%s": []}, "questions": {}}' % (b"9" * 5000),
    "number too long": b'{"version": %s}' % (b"1" * 5000),
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_is_set_aside_with_a_note(kind, file):
    file.write_bytes(DAMAGED[kind])
    passed = progress.read_progress()
    assert (passed.checks, passed.questions) == ({}, {})
    [note] = passed.notes
    assert note.startswith("progress.json was damaged (")
    assert "it is kept as progress.damaged-1.json, and a new one is started" in note
    assert len(note) < 300
    assert (file.parent / "progress.damaged-1.json").read_bytes() == DAMAGED[kind]
    assert progress.read_progress() == progress.Passed()


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_pass_over_a_damaged_record_is_recorded(kind, file):
    file.write_bytes(DAMAGED[kind])
    [note] = progress.record_passed("checks", 8, "token_weighting")
    assert "progress.damaged-1.json" in note
    assert progress.read_progress() == progress.Passed({8: frozenset({"token_weighting"})})


def test_a_second_damaged_record_does_not_overwrite_the_first(file):
    for text in ("first", "second"):
        file.write_text(text)
        progress.read_progress()
    assert others(file) == ["progress.damaged-1.json", "progress.damaged-2.json"]
    assert (file.parent / "progress.damaged-1.json").read_text() == "first"


def test_a_record_that_another_kernel_repaired_meanwhile_is_not_set_aside(file, monkeypatch):
    good = json.dumps({"version": 1, "checks": {"8": ["token_weighting"]}, "questions": {}})
    file.write_text("damaged")
    parse = progress._parse

    def parse_and_repair(path):
        found = parse(path)
        file.write_text(good)
        return found

    monkeypatch.setattr(progress, "_parse", parse_and_repair)
    assert progress.read_progress().checks == {8: {"token_weighting"}}
    assert others(file) == []


# --- versions -------------------------------------------------------------------------------------------

FIRST = {"version": 1, "checks": {"8": ["token_weighting"]}, "questions": {"0": ["labels"]}, "of_others": [1]}


def test_a_record_of_version_1_is_read_and_not_touched(file):
    file.write_text(json.dumps(FIRST))
    assert progress.read_progress() == progress.Passed({8: {"token_weighting"}}, {0: {"labels"}})
    assert contents(file) == FIRST
    assert others(file) == []


def test_the_next_entry_upgrades_it_and_loses_nothing(file):
    file.write_text(json.dumps(FIRST))
    assert progress.record_guess("how many?", 2.5, 8) == ()
    row = {"guess": 2.5, "lesson": 8, "on": date.today().isoformat()}
    assert contents(file) == FIRST | {"version": 2, "predictions": {"how many?": row}}
    assert others(file) == []


def test_a_record_of_a_newer_version_is_refused_and_left_alone(file):
    text = json.dumps(FIRST | {"version": 3, "predictions": []})
    file.write_text(text)
    why = "progress.json is of version 3, and this gpulab knows versions 1 to 2: update gpulab; the file is unchanged"
    assert progress.read_progress() == progress.Passed(notes=(f"progress not read: {why}",))
    assert progress.record_passed("checks", 8, "token_weighting") == (f"progress not recorded: {why}",)
    assert progress.record_guess("how many?", 2.5, 8) == (f"progress not recorded: {why}",)
    assert file.read_text() == text
    assert others(file) == []


# --- guesses --------------------------------------------------------------------------------------------


def test_a_guess_is_kept_with_its_day_and_can_be_forgotten(file):
    assert progress.record_guess("how many?", 2.5, None) == ()
    assert progress.read_progress().guesses == {"how many?": progress.Guess(2.5, date.today(), None)}
    assert progress.record_guess("how many?", None, None) == ()
    assert progress.read_progress().guesses == {}


def test_the_same_guess_again_keeps_its_day_and_another_gets_a_new_one(file):
    old = {"version": 2, "checks": {}, "questions": {}}
    old["predictions"] = {"how many?": {"guess": 2, "lesson": 8, "on": "2026-01-31"}}
    file.write_text(json.dumps(old))
    progress.record_guess("how many?", 2.0, None)
    assert contents(file) == old
    progress.record_guess("how many?", 3.0, None)
    assert progress.read_progress().guesses == {"how many?": progress.Guess(3.0, date.today(), None)}


def test_to_forget_what_was_never_guessed_writes_nothing(file):
    assert progress.record_guess("how many?", None, 8) == ()
    assert not file.exists()


# --- places that cannot be read or written --------------------------------------------------------------


def assert_goes_on_without(reason):
    passed = progress.read_progress()
    [note] = progress.record_passed("checks", 8, "token_weighting")
    assert note.startswith("progress not recorded: ")
    assert reason in note
    assert passed.checks == {}
    return passed.notes


def test_a_folder_in_its_place_is_told(file):
    file.mkdir()
    [note] = assert_goes_on_without("progress.json: Is a directory")
    assert note == "progress not read: progress.json: Is a directory"
    assert file.is_dir()


def test_a_parent_that_is_a_file_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "file" / "progress.json"))
    [note] = assert_goes_on_without("file: File exists")
    assert note == "progress not read: progress.json: Not a directory"
    assert (tmp_path / "file").read_text() == "kept"


def test_a_circle_of_links_is_told(file):
    file.symlink_to(file)
    [note] = assert_goes_on_without("")
    assert note.startswith("progress not read: ")


def test_a_home_that_is_not_known_is_told(monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", "~no_such_user_here/progress.json")
    assert_goes_on_without("home directory")


def test_a_current_folder_that_is_gone_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("GPULAB_PROGRESS", raising=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert_goes_on_without("No such file or directory")


def test_a_record_that_cannot_be_read_is_not_overwritten(file, monkeypatch):
    progress.record_passed("checks", 8, "accumulation_amp")
    before = file.read_bytes()

    def refuse(self, **options):
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        [note] = progress.record_passed("checks", 8, "token_weighting")
    assert note == "progress not recorded: progress.json: Permission denied"
    assert file.read_bytes() == before


def test_a_link_stays_a_link_and_the_record_is_behind_it(tmp_path, monkeypatch):
    real, link = tmp_path / "elsewhere" / "mine.json", tmp_path / "progress.json"
    real.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.setenv("GPULAB_PROGRESS", str(link))
    assert progress.record_passed("checks", 8, "token_weighting") == ()
    assert link.is_symlink()
    assert contents(real)["checks"] == {"8": ["token_weighting"]}


def test_a_lock_that_is_held_is_told_after_a_while(file, monkeypatch):
    monkeypatch.setattr(progress, "_LOCK_SECONDS", 0.1)
    with FileLock(f"{file}.lock"):
        [note] = progress.record_passed("checks", 8, "token_weighting")
    assert note.startswith("progress not recorded: another program has held the lock of the file")
    assert not file.exists()


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_write_that_breaks_off_leaves_the_record_as_it_was(call, file, monkeypatch):
    progress.record_passed("checks", 8, "accumulation_amp")
    before = file.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        [note] = progress.record_passed("checks", 8, "token_weighting")
    assert note == "progress not recorded: the file: No space left on device"
    assert file.read_bytes() == before
    assert others(file) == []


def test_a_process_that_is_killed_while_it_writes_leaves_the_record_as_it_was(file):
    progress.record_passed("checks", 8, "accumulation_amp")
    code = (
        "import os\nfrom gpulab.notebook import progress\n"
        "os.replace = lambda *args: os._exit(9)\n"
        "progress.record_passed('checks', 8, 'token_weighting')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_SECONDS, check=False).returncode == 9
    assert contents(file)["checks"] == {"8": ["accumulation_amp"]}
    assert progress.record_passed("checks", 8, "token_weighting") == ()  # its lock went with it


def test_two_processes_at_once_lose_nothing(file):
    code = (
        f"import sys\nfrom gpulab.notebook import progress\nprogress._LOCK_SECONDS = {HANG_SECONDS}\n"
        "for i in range(25):\n"
        "    assert progress.record_passed('checks', 8, f'{sys.argv[1]}-{i}') == ()\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "ab"]
    seen = 0
    while any(worker.poll() is None for worker in workers):
        passed = progress.read_progress()
        assert passed.notes == ()
        assert len(passed.checks.get(8, ())) >= seen  # never half written, never less than before
        seen = len(passed.checks.get(8, ()))
        time.sleep(0.005)
    assert [worker.wait() for worker in workers] == [0, 0]
    assert progress.read_progress().checks == {8: {f"{name}-{i}" for name in "ab" for i in range(25)}}
    assert others(file) == []


# --- the map -------------------------------------------------------------------------------------------

SOME = progress.Passed({8: frozenset({"token_weighting", "not_of_this_course"})}, {8: frozenset({"last-window"})})


class Tree(HTMLParser):
    """Reads HTML, and insists that every tag that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.links, self.cells = [], 0, [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.rows += tag == "tr"
        self.links += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data)


def test_the_text_has_a_line_for_each_lesson_and_counts_what_is_passed():
    lines = progress._as_text(SOME).splitlines()
    assert [line.split()[0] for line in lines] == [lesson.name for lesson in course.LESSONS]
    assert "exercises ●○○○ 1/4" in lines[8]
    assert "quiz ●○○○○ 1/5" in lines[8]


def test_the_page_is_well_formed_and_says_the_same():
    tree = Tree(progress._as_html(SOME))
    assert tree.rows == 1 + len(course.LESSONS)
    assert tree.cells.count("●") == 2  # on green, which no text has that is still to be done
    assert progress._as_html(SOME).count(f"border-bottom: 3px solid {GREEN}") == 2
    assert tree.cells[tree.cells.index("●") + 1] == "○○○ 1 of 4 "
    assert "○○○○ 1 of 5" in tree.cells


def test_the_page_leads_to_notebooks_that_exist():
    notebooks = Path(__file__).parents[2] / "notebooks"
    links = Tree(progress._as_html(SOME)).links
    assert links
    assert [link for link in links if not (notebooks / link).resolve().is_file()] == []


def test_notes_are_shown_and_escaped():
    passed = progress.Passed(notes=("kept as <b>progress</b> & more",))
    assert progress._as_text(passed).endswith("note: kept as <b>progress</b> & more")
    page = progress._as_html(passed)
    assert "&lt;b&gt;progress&lt;/b&gt; &amp; more" in page
    assert "<b>" not in page
    Tree(page)


def test_outside_a_notebook_the_map_is_printed(file, capsys):
    progress.progress()
    assert capsys.readouterr().out.splitlines()[0].startswith("00_start_here")
