"""A check answers in a few plain lines, whatever object it is given and whatever that object does when it is called.

The check here asks for a function that doubles a tensor; what it says of real exercises is in tests/wrong_answers.
"""

import asyncio
import contextlib
import functools
import io
import os
import random
import subprocess
import sys
import threading
import warnings

import nbformat
import pytest
import torch
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here
from nbclient import NotebookClient
from torch import nn

import gpulab
from gpulab.exercise.base import Trial, check
from gpulab.exercise.measure import SavedBytes, equal_tensors
from gpulab.exercise.wording import brief
from gpulab.notebook import progress

WANTED = "a function of (x, times)"
MOST_LINES = 8


@check(lesson=8, says="doubled")
def token_weighting(student, trial):
    """Check a function of (x, times) that multiplies."""
    trial.function(student, ("x", "times"))
    for times in (2, 3):
        x = torch.randn(3)
        got = trial.call(student, x, times, explain=lambda text: "a sign" if "sign" in text else "")
        fits = isinstance(got, torch.Tensor) and got.shape == x.shape
        trial.expect(fits, "no tensor of the same shape came back", expected="a tensor of shape (3,)", got=brief(got))
        trial.expect(torch.equal(got, x * times), "the numbers are wrong", read="Doubling")


def right(x, times):
    return x * times


def failure(student, **options):
    with pytest.raises(gpulab.CheckFailed) as caught:
        token_weighting(student, **options)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("✘ token_weighting: ")
    assert len(lines) <= MOST_LINES
    assert all(len(line) <= 330 for line in lines)
    return caught.value


# --- what passes ---------------------------------------------------------------------------------------


class Callable:
    def __call__(self, x, times):
        return x * times

    def method(self, x, times):
        return x * times


def right_with_defaults(x, times, *, verbose=False):
    return x * times


def right_with_another_name(tensor, n):
    return tensor * n


def right_in_a_thread(x, times):
    box = []
    thread = threading.Thread(target=lambda: box.append(x * times))
    thread.start()
    thread.join()
    return box[0]


def right_and_loud(x, times):
    print("training\n" * 1000)
    return x * times


RIGHT = {
    "function": right,
    "callable object": Callable(),
    "bound method": Callable().method,
    "partial": functools.partial(lambda scale, x, times: x * times * scale, 1),
    "lambda": lambda *args: args[0] * args[1],
    "C function": torch.mul,
    "module": type("Times", (nn.Module,), {"forward": lambda self, x, times: x * times})(),
    "defaults": right_with_defaults,
    "other names": right_with_another_name,
    "a thread": right_in_a_thread,
}


@pytest.mark.parametrize("name", RIGHT)
def test_anything_that_does_the_work_passes(name, capsys):
    token_weighting(RIGHT[name])
    assert capsys.readouterr().out == "✔ token_weighting: doubled\n"


def test_a_pass_is_recorded():
    token_weighting(right)
    assert progress.read_progress().checks == {8: frozenset({"token_weighting"})}


def test_a_pass_says_in_a_line_what_the_function_printed(capsys):
    token_weighting(right_and_loud)
    [first, second] = capsys.readouterr().out.splitlines()
    assert first == "✔ token_weighting: doubled"
    assert second.startswith("  (your function printed: training training")
    assert len(second) < 300


def test_a_failure_is_not_recorded_and_prints_nothing(capsys):
    failure(lambda x, times: x)
    assert progress.read_progress().checks == {}
    assert capsys.readouterr() == ("", "")


# --- what cannot be checked ----------------------------------------------------------------------------


class ReprRaises:
    def __repr__(self):
        raise ValueError("no repr")


class ReprNeverEnds:
    def __repr__(self):
        while True:
            pass


async def async_function(x, times):
    return x * times


class AsyncCallable:
    async def __call__(self, x, times):
        return x * times


def swapped(times, x):
    return x * times


NOT_A_FUNCTION = {
    "None": (None, "there is nothing to check: the object is None", "None"),
    "class": (Callable, "this is a class, not a function", "the class Callable"),
    "number": (3.5, "this cannot be called", "3.5"),
    "tensor": (torch.zeros(2, 3), "this cannot be called", "a tensor of shape (2, 3), torch.float32"),
    "long list": (list(range(10**6)), "this cannot be called", "[0, 1, 2, 3, 4, 5, ...]"),
    "repr raises": (ReprRaises(), "this cannot be called", "an object of type ReprRaises"),
    "repr never ends": ([ReprNeverEnds()], "this cannot be called", "[an object of type ReprNeverEnds]"),
    "async": (async_function, "calling this function does not run its body", "an async function"),
    "async object": (AsyncCallable(), "calling this function does not run its body", "an async function"),
    "too few": (lambda x: x, "the signature does not fit", "<lambda>(x)"),
    "too many": (lambda x, times, more: x, "the signature does not fit", "<lambda>(x, times, more)"),
    "keywords": (lambda *, x, times: x, "the signature does not fit", "<lambda>(x, times, some by keyword only)"),
    "default whose repr raises": (lambda x=ReprRaises(): x, "the signature does not fit", "<lambda>(x)"),  # noqa: B008
    "a different order": (swapped, "the parameters are in a different order", "swapped(times, x)"),
    "a module with no forward": (nn.Module(), "your function raised NotImplementedError", None),
}


@pytest.mark.parametrize("name", NOT_A_FUNCTION)
def test_what_is_no_such_function_is_told_so(name):
    student, summary, got = NOT_A_FUNCTION[name]
    failed = failure(student)
    assert failed.summary == summary
    if got is not None:
        assert failed.rows["expected"] == WANTED
        assert failed.rows["got"] == got
        assert "seed" not in str(failed)  # no inputs have been drawn for it yet


# --- what the call does --------------------------------------------------------------------------------


def spawn(x, times):
    threading.Thread(target=lambda: None, daemon=True).start()
    raise ValueError("a thread was started")


class StrRaises(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class BadWarning(UserWarning):
    pass


def raises(error):
    def student(x, times):
        raise error

    return student


def deep(x, times):
    return deep(x, times)


def leaves(switch):
    def student(x, times):
        switch()
        return x * times

    return student


def generator(x, times):
    yield x * times


def changes_in_place(x, times):
    x *= times
    return x


def loops(x, times):
    while True:
        pass


def prints_and_loops(x, times):
    while True:
        print("step")


def swallows(x, times):
    with contextlib.suppress(Exception):
        return x.no_such_method()


def replaces_stdout(x, times):
    sys.stdout = io.StringIO()
    return x * times


def only_the_first_time():
    calls = []

    def student(x, times):
        calls.append(x)
        return x * times if len(calls) == 1 else x

    return student


def remembers():
    answers = {}

    def student(x, times):
        return answers.setdefault("first", x * times)

    return student


def seeds_itself(x, times):
    torch.manual_seed(5)
    random.seed(5)
    return torch.randn(3)


DOES = {
    "raises": (raises(ValueError("no")), "your function raised ValueError"),
    "exits": (lambda x, times: sys.exit(), "your function raised SystemExit"),
    "interrupts": (raises(KeyboardInterrupt()), "your function raised KeyboardInterrupt"),
    "out of memory": (raises(MemoryError()), "your function raised MemoryError"),
    "text raises": (raises(StrRaises()), "your function raised StrRaises"),
    "very long text": (raises(ValueError("x" * 10**6)), "your function raised ValueError"),
    "group": (raises(ExceptionGroup("two", [ValueError(1), TypeError(2)])), "your function raised ExceptionGroup"),
    "recursion": (deep, "your function raised RecursionError"),
    "torch cannot": (raises(NotImplementedError("no such kernel")), "your function raised NotImplementedError"),
    "starts a thread": (spawn, "your function raised ValueError"),
    "returns None": (lambda x, times: None, "no tensor of the same shape came back"),
    "returns a class": (lambda x, times: torch.Tensor, "no tensor of the same shape came back"),
    "returns a giant": (lambda x, times: "x" * 10**7, "no tensor of the same shape came back"),
    "returns a giant number": (lambda x, times: 10**10_000, "no tensor of the same shape came back"),
    "repr raises": (lambda x, times: ReprRaises(), "no tensor of the same shape came back"),
    "repr never ends": (lambda x, times: [ReprNeverEnds()], "no tensor of the same shape came back"),
    "generator": (generator, "your function has not run: it returned a generator"),
    "coroutine": (lambda x, times: asyncio.sleep(1), "your function has not run: it returned a coroutine"),
    "in place": (changes_in_place, "your function changed its argument x"),
    "dtype": (leaves(lambda: torch.set_default_dtype(torch.float16)), "your function left a setting changed"),
    "folder": (leaves(lambda: os.chdir("/")), "your function left a setting changed"),
    "swallows": (swallows, "no tensor of the same shape came back"),
    "hard-coded": (lambda x, times: torch.tensor([0.1, 0.2, 0.3]), "the numbers are wrong"),
    "first time only": (only_the_first_time(), "the numbers are wrong"),
    "remembers": (remembers(), "the numbers are wrong"),
    "seeds": (seeds_itself, "your function seeds a global random generator"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", DOES)
def test_whatever_a_call_does_the_answer_is_a_few_lines(name, capfd):
    student, summary = DOES[name]
    state = torch.get_rng_state(), random.getstate(), os.getcwd(), torch.get_default_dtype(), sys.stdout
    failed = failure(student)
    assert failed.summary == summary
    assert "seed=" in str(failed)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (random.getstate(), os.getcwd(), torch.get_default_dtype(), sys.stdout) == state[1:]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("student", [loops, prints_and_loops])
def test_an_endless_loop_is_told_and_ended(student, short_limit, capfd):
    failed = failure(student)
    assert failed.summary == "your function did not return after 0.3 s of processor time"
    assert failed.rows["got"] == "a call that was still computing"
    assert "a loop that never ends" in failed.rows["likely"]
    assert capfd.readouterr() == ("", "")
    token_weighting(right)  # the next one runs as ever


def test_a_sleep_that_cannot_be_ended_is_told(short_idle):
    wakes = threading.Lock()
    wakes.acquire()
    failed = failure(lambda x, times: wakes.acquire())
    assert failed.summary == "your function did not return within 0.3 s"
    assert failed.rows["got"] == (
        "a call that was waiting and computed nothing, and continues in the background until the kernel restarts"
    )
    assert "a wait for something that never happens" in failed.rows["likely"]
    [thread] = [thread for thread in threading.enumerate() if thread.name == "gpulab check"]
    wakes.release()
    thread.join()


def test_a_replaced_stdout_does_not_swallow_the_answer(capsys):
    token_weighting(replaces_stdout)
    assert capsys.readouterr().out == "✔ token_weighting: doubled\n"


def test_warnings_of_a_right_answer_are_told_in_a_line(capsys):
    def warns(x, times):
        for i in range(1000):
            warnings.warn(f"number {i}", BadWarning, stacklevel=1)
        return x * times

    token_weighting(warns)
    [first, second] = capsys.readouterr().out.splitlines()
    assert "BadWarning: number 0" in second
    assert first.startswith("✔")


# --- stubs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [gpulab.NotAttempted, gpulab.NotAttempted("write me"), NotImplementedError()])
def test_a_stub_is_not_attempted(error):
    with pytest.raises(gpulab.NotAttempted) as caught:
        token_weighting(raises(error))
    assert str(caught.value) == "token_weighting: not attempted yet"
    assert progress.read_progress().checks == {}


def test_a_stub_by_itself_says_what_it_is():
    with pytest.raises(NotImplementedError, match="this exercise is not written yet"):
        raise gpulab.NotAttempted


# --- what a failure holds ------------------------------------------------------------------------------


def test_the_students_exception_is_chained_with_the_lines_that_led_to_it():
    def inner():
        raise KeyError("sign")

    def student(x, times):
        return inner()

    failed = failure(student)
    assert isinstance(failed.__cause__, KeyError)
    assert failed.rows["likely"] == "a sign"
    [outer_line, inner_line] = failed.notes[:2]
    assert outer_line.startswith("in student, line ")
    assert outer_line.endswith(": return inner()")
    assert inner_line.startswith("in inner, line ")
    assert "guard.py" not in str(failed)


def test_lines_of_libraries_are_left_out():
    failed = failure(lambda x, times: torch.cat([x, x.reshape(1, 3)]) + nn.Linear(2, 2)(x))
    assert all("tests/exercise" in line or "lambda" in line for line in failed.notes if line.startswith("in "))


def test_the_seed_draws_the_same_inputs_again(monkeypatch):
    monkeypatch.delenv("GPULAB_CHECK_SEED")
    seen = []

    def student(x, times):
        seen.append(x.clone())
        return x

    failed = failure(student)
    seed = int(str(failed).partition("seed=")[2].partition(")")[0])
    failure(student, seed=seed)
    assert torch.equal(seen[0], seen[1])
    failure(student, seed=seed + 1)
    assert not torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("seed", ["1", 1.5, True])
def test_a_seed_that_is_no_whole_number_is_named(seed):
    with pytest.raises(TypeError, match="seed must be a whole number"):
        token_weighting(right, seed=seed)


def test_inputs_do_not_follow_a_seed_that_the_student_sets(monkeypatch):
    monkeypatch.delenv("GPULAB_CHECK_SEED")
    seen = []

    def student(x, times):
        seen.append(x.clone())
        torch.default_generator.manual_seed(0)
        return x * times

    failure(student)
    failure(student)
    assert len({tuple(x.tolist()) for x in seen}) == 2


def test_the_environment_can_fix_the_seed_of_checks_that_are_given_none(monkeypatch):
    monkeypatch.setenv("GPULAB_CHECK_SEED", "21")
    assert "seed=21)" in str(failure(lambda x, times: x))
    assert "seed=4)" in str(failure(lambda x, times: x, seed=4))
    monkeypatch.setenv("GPULAB_CHECK_SEED", "one")
    with pytest.raises(ValueError, match="GPULAB_CHECK_SEED must be a whole number, not 'one'"):
        token_weighting(right)


def test_a_check_that_is_not_in_the_course_is_refused():
    with pytest.raises(ValueError, match="'no_such_exercise' is not in the course table of lesson 08"):

        @check(lesson=8, says="")
        def no_such_exercise(student, trial):
            pass


def test_a_check_keeps_its_name_and_text_and_shows_its_own_parameters():
    assert token_weighting.__name__ == "token_weighting"
    assert "multiplies" in token_weighting.__doc__
    assert not hasattr(token_weighting, "__wrapped__")


def test_a_check_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(AttributeError, match=r"no check 'acumulation'.*accumulation_amp, accumulation_window"):
        gpulab.check.acumulation  # noqa: B018


def test_a_limit_is_named_in_seconds():
    trial = Trial("x", 8)
    assert trial.printed() == []


# --- measuring -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [torch.zeros(2), torch.zeros(1, dtype=torch.float64), [0.0], None])
def test_another_shape_dtype_or_type_is_a_change(other):
    assert not equal_tensors(torch.zeros(1), other)


def test_nan_and_zero_are_not_the_same():
    assert not equal_tensors(torch.tensor([float("nan")]), torch.tensor([0.0]))


def test_bytes_kept_for_backward_are_those_of_the_activations():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    with SavedBytes(model.parameters()) as saved:
        out = model(x)
    assert saved.live == saved.peak == 8 * 5 * (4 + 8)  # the input, and tanh's output for tanh and the second layer
    out.sum().backward()
    del out
    assert saved.live == 0
    assert saved.peak == 8 * 5 * (4 + 8)


def test_parameters_that_are_moved_after_it_was_made_are_not_counted_either():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(5, 4, dtype=torch.float64)
    with SavedBytes(model.parameters()) as saved:
        out = model.double()(x)
    assert saved.live == 8 * 5 * (4 + 8)
    assert out.requires_grad


def test_a_piece_of_a_larger_tensor_counts_as_a_piece():
    weight = torch.randn(4, 3, requires_grad=True)
    large = torch.randn(1000, 4)
    with SavedBytes([weight]) as saved:
        kept = large[:2] @ weight
    assert saved.peak == 4 * 2 * 4
    assert kept.requires_grad


# --- in a notebook -------------------------------------------------------------------------------------

CELLS = [
    "import gpulab, torch\n"
    "def stub(model, micro_batches):\n    raise gpulab.NotAttempted\n"
    "def wrong(model, micro_batches):\n    return helper(1)\n"
    "def helper(n):\n    return n / 0\n",
    "gpulab.check.token_weighting(stub)",
    "gpulab.check.token_weighting(None)",
    "gpulab.check.token_weighting(wrong, seed=1)",
    "print('alive')",
]


def test_ipython_shows_plain_lines_and_nothing_of_ours():
    code = f"""
import io, contextlib
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
shell = InteractiveShell.instance(config=Config(HistoryManager={{"enabled": False}}), colors="nocolor")
for cell in {CELLS!r}:
    shell.run_cell(cell)
    print("--")
"""
    done = subprocess.run(
        [*python_here(), "-c", code], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    _, stub, none, wrong, alive = (part.strip() for part in done.stdout.removesuffix("--\n").split("--\n"))
    assert stub == "token_weighting: not attempted yet"
    assert none.splitlines()[0] == "✘ token_weighting: there is nothing to check: the object is None"
    assert wrong.splitlines()[0] == "✘ token_weighting: your function raised ZeroDivisionError"
    assert "  in helper, line 7: return n / 0" in wrong.splitlines()
    assert "Traceback" not in done.stdout
    assert all(len(shown.splitlines()) <= MOST_LINES for shown in (stub, none, wrong))
    assert alive == "alive"


@pytest.mark.slow
def test_a_notebook_stores_the_sentinel_and_the_message_as_errors():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, allow_errors=True, timeout=HANG_SECONDS, kernel_name="python3").execute()
    _, stub, none, wrong, alive = (cell.outputs for cell in notebook.cells)
    calm, error = stub
    assert calm.data["text/plain"] == "○ token_weighting: not attempted yet"
    assert "write it in the cell above" in calm.data["text/html"]
    assert (error.output_type, error.ename, error.evalue) == (
        "error",
        "NotAttempted",
        "token_weighting: not attempted yet",
    )
    for card, error in (none, wrong):
        assert error.ename == "CheckFailed"
        assert error.traceback == [error.evalue] == [card.data["text/plain"]]
    assert none[1].evalue.startswith("✘ token_weighting: there is nothing to check: the object is None")
    assert "in helper, line 7" in wrong[1].evalue
    assert "in helper, line 7" in wrong[0].data["text/html"]
    assert alive[0].text == "alive\n"
