"""The capstone: faults that come together at will, each seen in its place alone, and each repair scored by itself."""

import contextlib
import functools
import inspect
import itertools
import json
import os
import random
import re
import runpy
import subprocess
import sys
import threading
import types
import warnings

import pytest
import torch
from courselib.patience import HANG_SECONDS

import gpulab
from gpulab.capstone.drawing import Drawn, draw, faults_of, script
from gpulab.capstone.faults import FAULTS, FIRST, LECTURE, places_of, sound, with_faults
from gpulab.capstone.places import PLACES
from gpulab.course import lesson
from gpulab.exercise import settings
from gpulab.exercise.base import Trial

LESSON = lesson(15)
EXERCISE = LESSON.folder / "exercises.py"
scoring = LESSON.part("checks.scoring")
PROBES, findings = scoring.PROBES, scoring.findings
_read, Parts = LESSON.part("checks.capstone")._read, LESSON.part("checks.reach").Parts
RIGHT, WRONG = LESSON.part("answers.repairs").RIGHT, LESSON.part("answers.repairs").WRONG
FAULT = {fault.name: fault for fault in FAULTS}
BY_PLACE = {place: [fault.name for fault in FAULTS if fault.place == place] for place in PLACES}


def wrong_places(text, seed=1, places=PLACES):
    """The places, of these, that are not in order, with what each is told."""
    trial = Trial("capstone", 15)
    found = settings.in_clean_state(lambda: findings(text, "train.py", trial, seed, places), seed=seed)
    return {place: finding.means for place, finding in found.items() if not finding.right}


def test_faults_come_together_in_any_order():
    for one, other in itertools.combinations(FAULTS, 2):
        if one.place != other.place:
            text = with_faults([one.name, other.name])
            assert with_faults([other.name, one.name]) == text
            compile(text, "train.py", "exec")
    dice = random.Random(0)
    for _ in range(50):
        names = [dice.choice(names) for names in BY_PLACE.values()]
        text = with_faults(names)
        dice.shuffle(names)
        assert with_faults(names) == text != sound()


def test_each_place_has_a_fault_and_a_probe_and_each_fault_a_place():
    assert PROBES.keys() == PLACES.keys() == {fault.place for fault in FAULTS}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["golf"], "there is no fault 'golf'"),
        (["bfloat16", "float32"], "'float32' and 'bfloat16' are in the same place"),
    ],
)
def test_what_does_not_go_together_is_refused(names, message):
    with pytest.raises(ValueError, match=message):
        with_faults(names)


def test_the_faults_of_exercise_and_lecture():
    assert [PLACES[place].kind for place in places_of(FIRST)].count("memory") == len(FIRST) // 3 == 4
    assert len(places_of(FIRST)) == 12
    assert not set(LECTURE) & set(FIRST)
    with pytest.raises(ValueError, match="of must be 'exercise' or 'lecture', not 'exam'"):
        script("exam")


def test_the_sound_script_is_in_order_with_any_inputs():
    for seed in range(3):
        assert wrong_places(sound(), seed) == {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_shows_in_its_place_and_nowhere_else(fault):
    assert wrong_places(with_faults([fault.name])).keys() == {fault.place}


@pytest.mark.parametrize("name", FIRST)
def test_one_repair_alone_gives_its_point(name):
    left = [other for other in FIRST if other != name]
    assert tuple(wrong_places(with_faults(left))) == places_of(left)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_no_fault_can_be_found_by_a_name_that_is_not_used(fault, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(with_faults([fault.name]), encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F", str(file)]
    linted = subprocess.run(ruff, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert linted.returncode == 0, linted.stdout


def job_cell():
    """The names that the exercise's cell `job` defines."""
    cells = dict(re.findall(r"^# %% (\S+).*\n((?:(?!# %%).*\n)*)", EXERCISE.read_text(encoding="utf-8"), re.MULTILINE))
    names = {"contextlib": contextlib, "os": os, "runpy": runpy, "torch": torch, "gpulab": gpulab}
    exec(cells["job"], names)
    return names


@pytest.mark.parametrize("drawn", [False, True], ids=["train.py", "drawn"])
def test_a_job_that_was_changed_is_measured_once_a_number_is_expected(drawn, tmp_path, capsys):
    path = draw("Ada", tmp_path / "mine.py") if drawn else tmp_path / "train.py"
    names = job_cell()
    file = tmp_path / os.path.basename(path)
    file.write_text("1", encoding="utf-8")
    names |= {"whole": lambda path: f"peak {file.read_text()} GiB", "four_rows": str, "small": lambda path: "loss 1"}

    def said(*, expect=""):
        names["job"](path, expect)
        return capsys.readouterr().out

    assert said() == said() == f"main:      peak 1 GiB\nfour rows: {path}\nsmall:     loss 1\n"
    file.write_text("2", encoding="utf-8")
    for vague in ("", "less"):
        assert said(expect=vague).startswith("the script has changed; say first which number moves, and to what")
    moved = f"main:      peak 2 GiB\n  before:  peak 1 GiB\nfour rows: {path}\nsmall:     loss 1\n"
    assert said(expect="main: 3 GiB") == f"expected:  main: 3 GiB\n{moved}"
    assert "before" not in said()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What the functions of the exercise's cell `job`, by name, find of a script with these faults."""
    names = job_cell()
    folder = tmp_path_factory.mktemp("job")

    @functools.cache
    def found(function, faults):
        file = folder / "train.py"
        file.write_text(with_faults(faults), encoding="utf-8")
        with contextlib.chdir(folder), contextlib.redirect_stdout(None), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "with compute=False")
            return names[function](file)

    return found


def without(*names):
    return tuple(other for other in FIRST if other not in names)


@pytest.mark.parametrize("name", FIRST)
def test_a_single_repair_moves_a_number_of_the_job(name, measured):
    """While main does not fit, and all others are still there; the last window only when gradients are clipped right:
    before, all are of one length."""
    kind = PLACES[FAULT[name].place].kind
    function = "small" if kind == "correctness" else "four_rows"
    if name == "last_as_if_full":
        assert measured("small", without(name)) == measured("small", FIRST)
        assert measured("small", without(name, "clipped_while_scaled")) != measured(
            "small", without("clipped_while_scaled")
        )
    else:
        assert measured(function, without(name)) != measured(function, FIRST)


def test_a_job_that_does_not_fit_shows_the_whole_message(measured):
    told = measured("whole", FIRST)
    assert told.startswith("CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of 14.74 GiB")
    assert "GiB is allocated by PyTorch, and" in told


def test_what_reading_does_not_show_costs_something_at_full_size(measured):
    """Recomputation lowers a peak that fits in any case, and takes a sixth more time."""
    assert measured("whole", ()) == "peak 8.01 GiB, 2.41 s (virtual)"
    assert measured("whole", ("squared_as_power",)) == "peak 9.14 GiB, 2.56 s (virtual)"
    assert measured("whole", ("blocks_recomputed",)) == "peak 5.45 GiB, 2.79 s (virtual)"


def test_four_rows_fit_with_all_that_costs_most_memory(measured):
    most = ("scores_kept", "squared_as_power", "norms_with_graph", "retained", "graph_in_evaluation", "float32")
    assert measured("four_rows", most).startswith("peak 7.85 GiB, in evaluation 11.99 GiB")


def test_the_exercise_says_how_many_faults_the_pool_has():
    assert len(FAULTS) == 36
    told = EXERCISE.read_text(encoding="utf-8").replace("\n# ", " ")
    assert "faults drawn for this name from a pool of thirty-six" in told


@pytest.mark.parametrize("seed", range(6))
def test_any_repairs_of_any_script_give_exactly_their_points(seed):
    dice = random.Random(seed)
    drawn = faults_of(f"student {seed}")
    left = dice.sample(drawn, dice.randint(1, len(drawn)))
    assert tuple(wrong_places(with_faults(left), seed)) == places_of(left)


@pytest.mark.parametrize("repair", WRONG, ids=lambda repair: repair.name)
def test_a_wrong_repair_is_told_what_it_is(repair):
    assert wrong_places(repair.text, places=[repair.place]) == {repair.place: repair.means}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_repair_in_other_words_is_in_order(name):
    assert wrong_places(RIGHT[name]) == {}


def test_every_place_has_two_wrong_repairs_or_more_but_those_that_are_one_line():
    counts = {place: sum(repair.place == place for repair in WRONG) for place in PLACES}
    assert {place for place, count in counts.items() if count < 2} <= {"forward", "cache"}
    assert all(counts.values())


def test_a_name_draws_the_same_script_everywhere_and_another_one_another():
    assert faults_of("Ada Lovelace") == faults_of("  ada   LOVELACE ")
    assert faults_of("Ada Lovelace")[:3] == ("squared_as_power", "scores_kept", "retained")
    drawn = {faults_of(f"student {n}") for n in range(300)}
    assert len(drawn) == 300
    assert all(len(places_of(faults)) == 12 for faults in drawn)
    assert {name for faults in drawn for name in faults} == {fault.name for fault in FAULTS}
    with pytest.raises(ValueError, match="name must be a text such as 'Ada Lovelace', not ' '"):
        faults_of(" ")


def test_a_drawn_script_is_written(tmp_path):
    mine = draw("Ada", tmp_path / "mine.py")
    assert (tmp_path / "mine.py").read_text(encoding="utf-8") == with_faults(faults_of("Ada"))
    assert mine == Drawn("Ada", tmp_path / "mine.py")
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        draw("Ada", tmp_path / "none" / "mine.py")


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def test_each_repair_is_recorded_and_told_with_its_evidence(tmp_path, progress, capsys):
    file = tmp_path / "train.py"
    file.write_text(with_faults(set(FIRST) - {"printed_loss", "mean_of_means"}), encoding="utf-8")
    with pytest.raises(gpulab.CheckFailed, match="2 of 12 faults are repaired; one of memory shows no change"):
        gpulab.check.capstone(file)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("✔")] == ["waits", "mean"]
    assert next(line for line in lines if " waits " in line).endswith(
        "waits for each batch: 1 → waits for each batch: 0"
    )
    hidden = [line for line in lines if line.startswith("○")]
    assert len(hidden) == 10
    assert all("?" in line and "look with" in line for line in hidden)
    assert json.loads(progress.read_text())["checks"] == {"15": ["capstone: mean", "capstone: waits"]}


def test_a_script_as_it_was_found_is_not_attempted(tmp_path, progress):
    file = tmp_path / "train.py"
    file.write_text(script() + "\n\n", encoding="utf-8")
    with pytest.raises(gpulab.NotAttempted, match="as it was found"):
        gpulab.check.capstone(str(file))
    with pytest.raises(gpulab.NotAttempted, match="as it was found"):
        gpulab.check.capstone_drawn(draw("Ada", tmp_path / "mine.py"))
    assert not progress.exists()


@pytest.mark.parametrize(
    ("answer", "message"),
    [(3, "this is not a file"), ("nowhere.py", "there is no such file"), (None, "this is not a file")],
)
def test_what_is_no_script_is_named(answer, message, progress):
    with pytest.raises(gpulab.CheckFailed, match=message):
        gpulab.check.capstone(answer)
    with pytest.raises(gpulab.CheckFailed, match="this is not a drawn script"):
        gpulab.check.capstone_drawn(answer)


def test_a_script_may_be_written_as_python_and_torch_allow(tmp_path):
    """A dataclass, switches of the process at the top, and any encoding that Python reads."""
    switches = "torch.backends.cudnn.benchmark = True\ntorch.set_float32_matmul_precision('high')\n"
    data = "from dataclasses import dataclass\n\n\n@dataclass\nclass Sizes:\n    width: int = 3\n\n\n"
    text = sound().replace("import torch\n", f"import torch\n{switches}{data}", 1)
    future = text.replace('"""\n', '"""\nfrom __future__ import annotations\n', 1)
    for number, written in enumerate(
        (text.encode("utf-8-sig"), f"# -*- coding: latin-1 -*-\n# für\n{text}".encode("latin-1"), future.encode())
    ):
        file = tmp_path / f"{number}.py"
        file.write_bytes(written)
        read, _ = _read(str(file), Trial("capstone", 15))
        assert not wrong_places(read, places=["clock", "mean"])


def test_a_file_that_python_cannot_read_is_told_so(tmp_path, progress):
    file = tmp_path / "train.py"
    file.write_bytes(f"# für alle\n{sound()}".encode("latin-1"))
    with pytest.raises(gpulab.CheckFailed, match="Python cannot read this file as text"):
        gpulab.check.capstone(file)


def test_after_a_repair_only_what_can_come_to_it_is_measured(tmp_path, progress, monkeypatch):
    """Each check of a process has the same inputs, unless it is given others."""
    measured, own = [], scoring._finding
    monkeypatch.delenv("GPULAB_CHECK_SEED")
    monkeypatch.setattr(scoring, "_finding", lambda *given: measured.append(given[-1]) or own(*given))

    def check(left, **inputs):
        measured.clear()
        (tmp_path / "train.py").write_text(with_faults(left), encoding="utf-8")
        with pytest.raises(gpulab.CheckFailed, match="of 12 faults are repaired"):
            gpulab.check.capstone(tmp_path / "train.py", **inputs)
        return sorted(measured)

    left = [name for name in FIRST if name != "printed_loss"]
    assert len(check(left)) >= len(PLACES)
    assert check(left) == []
    repaired = [name for name in left if name != "mean_of_means"]
    parts = Parts(sound())
    assert check(repaired) == sorted(place for place, (_, roots) in PROBES.items() if "evaluate" in parts.met(roots))
    assert len(check(repaired, seed=12345)) >= len(PLACES)


@pytest.mark.parametrize(
    "edits",
    [
        ("import torch\n", "import torch\nimport helper_of_mine\n"),
        ("    model.eval()\n", "    model.eval()\n    open(__file__).close()\n"),
    ],
    ids=["another module", "a file"],
)
def test_what_hangs_on_more_than_its_text_is_measured_each_time(edits, monkeypatch):
    measured, own = [], scoring._finding
    monkeypatch.setattr(scoring, "_finding", lambda *given: measured.append(given[-1]) or own(*given))
    monkeypatch.setitem(sys.modules, "helper_of_mine", types.ModuleType("helper_of_mine"))
    text = sound().replace(*edits, 1)
    assert text != sound()
    for _ in range(2):
        wrong_places(text, places=["clock"])
    assert measured == ["clock", "clock"]


def called(place, text):
    """The parts of the script that run while this place is measured."""
    seen = set()

    def note(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename == "watched.py" and code.co_flags & inspect.CO_OPTIMIZED:  # a function
            seen.add(code.co_qualname.partition(".")[0])

    trial = Trial("capstone", 15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_known", {})
        threading.setprofile(note)
        try:
            settings.in_clean_state(lambda: findings(text, "watched.py", trial, 1, [place]), seed=1)
        finally:
            threading.setprofile(None)
    return seen


@pytest.mark.parametrize("names", [FIRST, LECTURE], ids=["exercise", "lecture"])
def test_what_a_probe_comes_to_is_known_before(names):
    text = with_faults(names)
    parts = Parts(text)
    for place, (_, roots) in PROBES.items():
        seen = called(place, text)
        assert seen
        assert seen <= parts.met(roots), place
