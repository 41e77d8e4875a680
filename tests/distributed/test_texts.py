"""What is said of a run, and what is refused before one: no process is started here."""

import json
import os
import signal
import sysconfig

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import distributed
from gpulab.distributed.folder import Folder, Report, kept
from gpulab.distributed.nccl import GONE, IN_USE, TIMED_OUT, beside
from gpulab.distributed.result import (
    Rank,
    Run,
    failure_text,
    first_failure,
    limit_text,
    on_screen,
    shortened,
)
from gpulab.distributed.stacks import collective, where

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:54982."

TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)


def rank(number, output="", **more):
    return Rank(number, 100 + number, more.pop("exit_code", 0), output, **more)


def failed(number, exception, **more):
    text = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{exception}'
    return rank(number, more.pop("output", ""), exit_code=1, exception=exception, traceback=text, **more)


# -- the text of a run -----------------------------------------------------------------------------------------------


def test_a_run_shows_each_rank_and_no_pid_and_no_time():
    run = Run("train.py", (rank(0, "loss 1.5\n"), rank(1)), 4.25)
    assert repr(run).splitlines() == [
        "train.py on 2 ranks: all finished",
        "-- rank 0 ----------------------------------------",
        "loss 1.5",
        "-- rank 1 ----------------------------------------",
        "(no output)",
    ]


def test_a_rank_shows_itself_in_one_line():
    assert repr(rank(1, "loss 1.5\nloss 1.2\n")) == "<rank 1 finished, 2 lines of output>"


def test_a_long_output_that_another_rank_had_too_is_shown_once():
    same = "one\ntwo\nthree\nfour\n"
    text = repr(Run("train.py", (rank(0, same), rank(1, same), rank(2, "one\n"), rank(3, "one\n")), 1.0))
    assert text.count("four") == 1
    assert "(the same as rank 0)" in text
    assert text.count("one") == 3  # short ones are shown each


def test_a_long_output_is_shown_by_its_ends():
    text = repr(Run("train.py", (rank(0, "".join(f"line {n}\n" for n in range(1, 1001))),), 1.0))
    assert "line 10\n... 960 lines are left out; run.ranks[0].output has them ...\nline 971\n" in text
    assert "line 11\n" not in text


def test_a_progress_bar_is_shown_as_a_terminal_leaves_it():
    assert on_screen("\r 10%\r 50%\r100%\ndone\n\n") == ["100%", "done"]
    assert on_screen("a\r\nb\r\n") == ["a", "b"]
    assert on_screen("") == []


@given(st.lists(st.text(max_size=3)), st.integers(4, 60))
def test_shortened_keeps_both_ends_and_counts_the_rest(lines, most):
    short = shortened(lines, most, "there")
    if len(lines) <= most:
        assert short == lines
    else:
        assert len(short) == most + 1
        assert (short[0], short[-1]) == (lines[0], lines[-1])
        assert f"{len(lines) - most:,} lines" in short[most // 4]


# -- who failed ------------------------------------------------------------------------------------------------------


def test_the_rank_that_lost_its_connection_is_not_the_one_that_failed():
    run = Run("train.py", (failed(0, LOST), failed(1, "ValueError: no such label")), 1.0)
    assert first_failure(run, {0: 1.0, 1: 2.0}).rank == 1  # even where its exception was seen first
    run = Run("train.py", (failed(0, LOST), rank(1, exit_code=-signal.SIGKILL)), 1.0)
    assert first_failure(run, {0: 1.0}).rank == 1


def test_of_two_exceptions_the_first_counts():
    run = Run("train.py", (failed(0, "KeyError: 'b'"), failed(1, "KeyError: 'a'")), 1.0)
    assert first_failure(run, {0: 2.0, 1: 1.0}).rank == 1
    assert first_failure(Run("train.py", (rank(0), rank(1, stopped=True, exit_code=-15)), 1.0), {}) is None


def test_an_exception_counts_even_where_the_process_was_stopped_in_its_last_seconds():
    slow_to_end = failed(1, "ValueError: no such label", stopped=True)
    run = Run("train.py", (failed(0, LOST), slow_to_end), 1.0)
    assert first_failure(run, {0: 2.0, 1: 1.0}) is slow_to_end


def test_the_same_exception_on_several_ranks_is_told_once():
    run = Run("train.py", tuple(failed(n, "KeyError: 'lr'") for n in range(3)), 1.0)
    text = failure_text(run, run.ranks[2])
    assert text.startswith("train.py on 3 ranks: ranks 0, 1 and 2 failed with KeyError\n")
    assert text.count("KeyError: 'lr'") == 1
    assert "went down" not in text


def test_ranks_that_lost_the_same_one_are_told_together():
    lost = [failed(n, LOST.replace("54982", str(n))) for n in (1, 2)]
    run = Run("train.py", (rank(0), *lost), 1.0)
    assert first_failure(run, {1: 5.0, 2: 4.0}) is lost[0]  # which was first is chance
    assert failure_text(run, lost[0]).startswith("train.py on 3 ranks: ranks 1 and 2 failed with RuntimeError\n")


def test_whether_the_others_were_stopped_or_lost_the_connection_is_not_told():
    # It differs from run to run, and a notebook's saved output must not.
    culprit = failed(1, "ValueError: no such label")
    texts = {
        failure_text(Run("train.py", (other, culprit), 1.0), culprit)
        for other in (failed(0, LOST), failed(0, LOST, stopped=True), rank(0, exit_code=-15, stopped=True))
    }
    assert len(texts) == 1
    assert "Rank 0 went down with it." in texts.pop()


@pytest.mark.parametrize(
    ("culprit", "others", "says"),
    [
        (rank(0, exit_code=-signal.SIGKILL), [], "killed by SIGKILL\nIf nobody sent it, the machine ran out of memory"),
        (rank(0, exit_code=-signal.SIGABRT, finished=True), [], "del model; gc.collect()"),
        (rank(0, exit_code=-signal.SIGSEGV, where="a.py, line 3: f()"), [], "killed by SIGSEGV at a.py, line 3: f()"),
        (rank(0, exit_code=-77), [], "killed by signal 77"),
        (rank(0, exit_code=3, output="bye\n"), [], "failed with exit code 3\nIt last printed:\n    bye"),
        (rank(0, exit_code=3), [], "failed with exit code 3\nIt printed nothing."),
        (failed(0, LOST), [rank(1)], "do all ranks make the same collective calls"),
        (failed(0, LOST), [rank(1, finished=True, stopped=True)], "do all ranks make the same collective calls"),
        (failed(0, LOST), [rank(1, finished=True, stopped=True)], "\nRank 1 finished."),
        (failed(0, TAKEN), [rank(1)], "Another process listens on that port. A script that leaves init_method"),
    ],
)
def test_each_end_has_its_words(culprit, others, says):
    assert says in failure_text(Run("train.py", (culprit, *others), 1.0), culprit)


def test_a_time_limit_says_where_each_rank_was():
    waits = rank(0, "step 1\nstep 2\n", exit_code=None, stopped=True, where="train.py, line 9: dist.all_reduce(x)")
    text = limit_text(Run("train.py", (waits, rank(1, "over\n")), 20.0), 20.0)
    assert "took longer than timeout=20 seconds" in text
    assert "Rank 0 was stopped at train.py, line 9: dist.all_reduce(x).\n  It last printed:\n      step 1\n" in text
    assert "Rank 1 finished." in text
    assert "A rank that has ended no longer answers" in text
    none = Run("train.py", (Rank(0, None, None, ""),), 1.0)
    assert "Rank 0 had not started.\nStarting the ranks alone takes several seconds" in limit_text(none, 1.0)


# -- what NCCL says beside -------------------------------------------------------------------------------------------

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "


@pytest.mark.parametrize(
    ("culprit", "other", "shown"),
    [
        (rank(0, exit_code=-signal.SIGKILL), rank(1, stopped=True), [GONE.text, TIMED_OUT.text]),
        (rank(0, exit_code=-signal.SIGSEGV), failed(1, LOST), [GONE.text, TIMED_OUT.text]),
        (failed(0, LOST), rank(1), [GONE.text, TIMED_OUT.text]),
        (failed(0, GLOO + "Timed out waiting 3000ms for recv operation to complete"), rank(1), [TIMED_OUT.text]),
        (failed(0, TAKEN), rank(1, stopped=True), [IN_USE.source]),
    ],
)
def test_a_failure_that_is_recognised_has_nccls_words_beside_it(culprit, other, shown):
    lines = beside(Run("train.py", (culprit, other), 1.0, grouped=True), culprit)
    assert lines[0].startswith("With NCCL")
    assert "recorded: " in lines[0]
    assert all(any(text in line for line in lines) for text in shown)
    assert sum("WorkNCCL" in line for line in lines) == sum("WorkNCCL" in text for text in shown)
    assert "\n".join(lines) + "\nEach rank's output" in failure_text(
        Run("train.py", (culprit, other), 1.0), culprit, lines
    )


@pytest.mark.parametrize(
    ("culprit", "others", "grouped"),
    [
        (failed(0, "KeyError: 'lr'"), [failed(1, LOST)], True),  # its traceback says all
        (rank(0, exit_code=3), [rank(1)], True),
        (rank(0, exit_code=-signal.SIGKILL), [rank(1)], False),  # no other may wait for it
        (rank(0, exit_code=-signal.SIGKILL), [], True),
        (
            rank(0, exit_code=-signal.SIGABRT, finished=True),
            [rank(1)],
            True,
        ),  # the end of the process, not a collective
        (failed(0, "ConnectionResetError: [Errno 104] Connection reset by peer"), [rank(1)], True),  # not gloo's
        (failed(0, LOST, output="ncclRemoteError: A call failed"), [rank(1)], True),  # NCCL's own words are there
    ],
)
def test_what_is_not_recognised_has_nothing_beside_it(culprit, others, grouped):
    assert beside(Run("train.py", (culprit, *others), 1.0, grouped), culprit) == []


def test_a_time_limit_has_nccls_words_where_a_rank_waits_in_a_collective():
    waits, other = rank(0, stopped=True, collective="all_reduce"), rank(1, stopped=True)
    assert TIMED_OUT.text in beside(Run("train.py", (waits, other), 1.0, grouped=True), None)[1]
    assert beside(Run("train.py", (other, other), 1.0, grouped=True), None) == []


# -- where a rank is -------------------------------------------------------------------------------------------------

STACKS = """\
Thread 0x00007f0a (most recent call first):
  File "{home}/loader.py", line 1 in fetch
  File "/usr/lib/python3.11/threading.py", line 975 in run

Current thread 0x00007f0b (most recent call first):
  File "{library}/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "{home}/helper.py", line 2 in average
  File "train.py", line 3 in <module>
  File "{library}/gpulab/distributed/processes.py", line 150 in rank
"""


def test_where_a_rank_is_names_the_innermost_line_of_the_students_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("def average(x):\n    dist.all_reduce(x)\n")
    (tmp_path / "train.py").write_text("import helper\n\nhelper.average(x)\n")
    text = STACKS.format(home=tmp_path, library=sysconfig.get_path("purelib"))
    assert where(text, "train.py") == "helper.py, line 2, in average: dist.all_reduce(x)"
    without_helper = "\n".join(line for line in text.splitlines() if "helper" not in line)
    assert where(without_helper, "train.py") == "train.py, line 3: helper.average(x)"
    assert where(text.replace(str(tmp_path), "/elsewhere").replace("train.py", "/x.py"), "train.py") == ""
    assert where("", "train.py") == ""
    assert collective(text, "train.py") == "all_reduce"
    assert collective(without_helper, "train.py") == "all_reduce"
    assert collective(text.replace("in all_reduce", "in init_process_group"), "train.py") == ""  # no group is there yet
    assert collective("", "train.py") == ""


def test_a_file_whose_name_is_not_ascii_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'Current thread 0x00007f0b (most recent call first):\n  File "\\xdcbung\\u2192.py", line 5 in f\\xfcr\n'
    assert where(text, "Übung→.py") == "Übung→.py, line 5, in für"


def test_a_library_beside_the_script_is_not_the_students_own():
    library = sysconfig.get_path("purelib")
    script = os.path.join(os.path.dirname(os.path.dirname(library)), "train.py")  # as where .venv is in its folder
    text = STACKS.format(home="/elsewhere", library=library).replace("train.py", script)
    assert where(text, script) == "train.py, line 3"


@pytest.mark.parametrize("nobodys", ["<frozen importlib._bootstrap>", "<string>", "<stdin>"])
def test_what_is_no_file_is_not_the_students_own(nobodys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        f'Current thread 0x00007f0b (most recent call first):\n  File "{nobodys}", line 241 in _call\n'
        '  File "started.py", line 3 in <module>\n'
    )
    assert where(text, "started.py") == "started.py, line 3"
    assert where(text, nobodys) == f"{nobodys}, line 241, in _call"


def test_of_a_rank_that_died_the_thread_that_died_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (
        "Fatal Python error: Aborted\n\n"
        'Current thread 0x00007f0b (most recent call first):\n  File "train.py", line 5 in crash\n\n'
        'Thread 0x00007f0a (most recent call first):\n  File "train.py", line 9 in <module>\n'
    )
    assert where(text, "train.py") == "train.py, line 5, in crash"
    assert where(text.replace("Fatal Python error: Aborted\n\n", ""), "train.py") == "train.py, line 9"


# -- what is read from the folder ------------------------------------------------------------------------------------


def test_a_very_long_log_keeps_its_ends(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * (3 * 2**20) + b"\nlast\n")
    text = kept(log)
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert "... 2.0 MiB of output are left out ..." in text
    assert kept(tmp_path / "none") == ""


def test_bytes_that_are_not_text_do_not_hurt(tmp_path):
    (tmp_path / "log").write_bytes(b"ok \xff\r\n")
    assert kept(tmp_path / "log") == "ok \ufffd\n"


def test_ranks_are_told_apart_by_what_is_in_the_folder(tmp_path):
    folder = Folder(tmp_path, "train.py", 4)
    for number in range(3):
        (tmp_path / f"rank-{number}.pid").write_text(str(100 + number))
        folder.log(number).write_text(f"I am {number}\n")
    (tmp_path / "rank-0.finished").write_text("")
    error = {"time": 5.0, "exception": "KeyError: 'lr'", "traceback": "Traceback …\nKeyError: 'lr'\n"}
    (tmp_path / "rank-1.error").write_text(json.dumps(error), encoding="utf-8")
    ranks = folder.ranks(Report({1: 1, 2: -15}, frozenset({102})))
    assert [r.ended for r in ranks] == ["finished", "failed with KeyError", "was stopped", "had not started"]
    assert [r.output for r in ranks] == ["I am 0\n", "I am 1\n", "I am 2\n", ""]
    assert ranks[1].traceback == "Traceback …\nKeyError: 'lr'"
    assert folder.report() is None


def test_when_a_script_ended_is_its_own_word_or_a_guess(tmp_path):
    folder = Folder(tmp_path, "train.py", 4)
    for number in range(4):
        (tmp_path / f"rank-{number}.pid").write_text(str(100 + number))
    (tmp_path / "rank-0.error").write_text('{"time": 5.0, "exception": "KeyError: 1", "traceback": ""}')
    (tmp_path / "rank-1.exit").write_text("6.5")
    # Ranks 2 and 3 were killed, rank 3 when another had failed already.
    assert folder.ends(Report(later=frozenset({103}))) == {0: 5.0, 1: 6.5, 2: 0.0, 3: float("inf")}


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('this must not run')\n")
    return "train.py"


def test_a_function_is_refused_with_the_remedy(script):
    def train():
        pass

    with pytest.raises(TypeError, match=r"not the function train: a rank is a new process.*%%writefile train\.py"):
        distributed.run(train)


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ("trian.py", FileNotFoundError, r"script='trian\.py': there is no such file\. Did you mean 'train\.py'\?"),
        ("other", FileNotFoundError, "%%writefile"),
        ("no/such/folder.py", FileNotFoundError, "there is no such file"),
        (".", IsADirectoryError, "is a folder"),
        ("lesson.ipynb", ValueError, "is a notebook; a rank runs a Python file"),
        ("", ValueError, "such as 'train.py', not ''"),
        (None, TypeError, "not None"),
        (7, TypeError, r"not 7 \(int\)"),
    ],
)
def test_a_script_that_cannot_be_run_is_refused(script, wrong, kind, says):
    with pytest.raises(kind, match=says):
        distributed.run(wrong)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"ranks": 0}, ValueError, "ranks must be from 1 to 64.*not 0"),
        ({"ranks": -2}, ValueError, "not -2"),
        ({"ranks": 65}, ValueError, "not 65"),
        ({"ranks": 2.0}, TypeError, r"not 2\.0 \(float\)"),
        ({"ranks": True}, TypeError, "not True"),
        ({"ranks": "2"}, TypeError, r"not '2' \(str\)"),
        ({"args": "--epochs 1"}, TypeError, r"a list of strings: \['--epochs', '1'\], not '--epochs 1'"),
        ({"args": ["--epochs", 1]}, TypeError, r"args\[1\] must be a string: '1', not 1 \(int\)"),
        ({"args": {"epochs": 1}}, TypeError, r"args must be a list of strings"),
        ({"args": ["a\0b"]}, ValueError, r"args\[0\]"),
        ({"timeout": 0}, ValueError, "more than 0 seconds, or None for no limit, not 0"),
        ({"timeout": -1.5}, ValueError, r"not -1\.5"),
        ({"timeout": float("nan")}, ValueError, "not nan"),
        ({"timeout": float("inf")}, ValueError, "not inf"),
        ({"timeout": "60"}, TypeError, "not '60'"),
        ({"env": ["A=1"]}, TypeError, "env must be a dict"),
        ({"env": {"A": 1}}, TypeError, r"\{'A': '1'\}, not \{'A': 1\}"),
        ({"env": {"A=": "1"}}, ValueError, "cannot be a variable"),
    ],
)
def test_wrong_arguments_are_named(script, arguments, kind, says):
    with pytest.raises(kind, match=says):
        distributed.run(script, **arguments)


def test_a_name_server_that_is_out_of_reach_is_not_the_ranks_words(tmp_path):
    said = "The hostname of the client socket cannot be retrieved. err=-3"
    log = tmp_path / "0.log"
    log.write_text(
        f"[W1124 04:09:50.929003445 socket.cpp:207] [c10d] {said}\nloss 2.3\n[W1124 04:09:51.0 a.cpp:1] other\n{said}\n"
    )
    assert kept(log) == f"loss 2.3\n[W1124 04:09:51.0 a.cpp:1] other\n{said}\n"
