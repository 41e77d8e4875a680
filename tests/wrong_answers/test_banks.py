"""Every check passes the right answers of its bank, and tells every wrong one what it is.

They are tried without a GPU, and with a virtual one in force, as students have it. Where the check opens a virtual GPU
of its own for every call, or gives plain data, an answer meets the same in both: one right answer is tried in the
second alone, and one wrong answer in both. Elsewhere right ones are in turn tried in the one or the other, the first in
both, and wrong ones in the first, every fourth in both; in `make explore` all of these in both.
"""

import contextlib
import gc
import json
import math
import os
from dataclasses import asdict, dataclass

import hypothesis
import pytest
from banks.bank import ENDLESS_SECONDS, Bank

import gpulab
from gpulab.course import LESSONS
from gpulab.exercise import guard, ranks
from gpulab.exercise.guard import Guard
from virtualgpu.scope import in_force

from .stored import draws_the_fixed_scenes, plays_one_fixed_scene

BANKS = {name: lesson.part(f"answers.{name}").BANK for lesson in LESSONS for name in lesson.checks}
SLOW_GUARDS = "ignore:Guards may run slower on Python 3.13.0"  # torch.compile says so of that one Python
ITS_OWN = "ignore:.torch.jit.script_method. is deprecated"  # PyTorch 2.11's compiler, which begins anew where a GPU is
ALL_SCENES = {"bytes_per_rank"}  # the bank for which nothing is left to what is stored
MOST_CALLS = 12  # of the same ranks
MOST_LINES = 10  # wrapped, so that a message is seen without scrolling
BASE = int(os.environ["GPULAB_CHECK_SEED"])  # another one in each `make explore`
SEED = BASE + 1  # of the wrong answers; the right ones are tried with several


# What a test asks for by the name of its argument: of each bank these answers, one by one.
ANSWERS = {
    "right": lambda bank: right_here(bank),
    "right_anywhere": lambda bank: right_in_force(bank),
    "wrong": lambda bank: bank.wrong_answers,
    "wrong_anywhere": lambda bank: every_fourth(bank.wrong_answers[:1] if own_gpu(bank) else bank.wrong_answers),
}


def own_gpu(bank):
    """Whether its answers meet the same with a GPU in force and without; the capstone opens one of its own."""
    return bank.exercise is None or bank.exercise.own_gpu


def right_here(bank):
    """The right answers that are tried without a GPU."""
    if explores():
        return bank.right_answers
    return bank.right_answers[1:] if own_gpu(bank) else bank.right_answers[::2]


def right_in_force(bank):
    """And those that are with one in force."""
    first, others = bank.right_answers[:1], bank.right_answers[1:]
    if own_gpu(bank):
        return first
    return first + (others if explores() else others[::2])


def every_fourth(wrong_answers):
    """All in `make explore`."""
    return wrong_answers if explores() else wrong_answers[::4]


def pytest_generate_tests(metafunc):
    for argument in ANSWERS.keys() & set(metafunc.fixturenames):
        answers = ANSWERS[argument](metafunc.cls.bank)
        metafunc.parametrize(argument, answers, ids=[getattr(a, "name", None) or a.__name__ for a in answers])


def explores():
    """Whether this is `make explore`, which leaves nothing to what is stored."""
    return hypothesis.settings.get_current_profile_name() == "explore"


@dataclass(frozen=True)
class Told:
    """What the check says of a wrong answer, as plain data."""

    summary: str
    rows: dict[str, str]
    raised: str
    hung: bool
    text: str


def failure(bank, wrong, drawn):
    """Of the check with the fixed scenes of its contract, or with such as are `drawn`."""
    with pytest.MonkeyPatch.context() as patch:
        if "did not return" in wrong.summary:
            patch.setattr(guard, "LIMIT_SECONDS", ENDLESS_SECONDS)
        if bank.contract and bank.name not in ALL_SCENES and not explores():
            if drawn:
                plays_one_fixed_scene(patch, bank.contract, wrong.name, bank.wrong_answers.index(wrong))
            else:
                draws_the_fixed_scenes(patch, bank.contract, wrong.name)
        with pytest.raises(gpulab.CheckFailed) as caught:
            bank.check(wrong.answer, seed=SEED)
    failed = caught.value
    return Told(failed.summary, failed.rows, failed.raised, failed.hung, str(failed))


@pytest.fixture(autouse=True, scope="class")
def quick_to_collect_of_this_bank():
    """As in each module: what the banks before have left, a compiler among it, is not looked through any more."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def ranks_stay(most_calls):
    """For the next answer of the same bank, unless they have ended: they take longer to start than to answer."""
    kept, start = [], ranks._Crew

    def leave(left, *error):
        if left._crew is None or left._crew.calls > most_calls:
            left.close()
        else:
            kept.append(left._crew)
            left._crew = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_Crew", lambda *of_bank: kept.pop() if kept else start(*of_bank))
        patch.setattr(ranks.Ranks, "__exit__", leave)
        yield
    for crew in kept:
        crew.end()


@pytest.fixture(scope="class")
def ranks_stay_a_while():
    """Not for more calls than a check makes: they keep their process groups, whose threads are never quite idle, so
    that in time none of them seems to wait."""
    with ranks_stay(MOST_CALLS):
        yield


@pytest.fixture(scope="class")
def ranks_stay_throughout():
    """For right answers: with them no rank waits. What PyTorch has derived for the first of them the next ones find."""
    with contextlib.nullcontext() if explores() else ranks_stay(math.inf):
        yield


@pytest.fixture
def failure_here(tmp_path_factory, ranks_stay_a_while):
    """Without a GPU; asked for again by the comparison of their words, perhaps in another process of this run."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "told"
    folder.mkdir(exist_ok=True)

    def ask(bank, wrong):
        file = folder / f"{bank.name}-{bank.wrong_answers.index(wrong)}.json"
        if not file.exists():
            told = failure(bank, wrong, drawn=False)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(asdict(told)))
            part.rename(file)
        return Told(**json.loads(file.read_text()))

    return ask


def assert_its_own_words(failed, wrong, bank):
    before = ""  # what a contract says of the call itself
    if bank.contract and failed.raised:
        before = " for ever: " if failed.hung else f" raised {failed.raised.partition(':')[0]}: "
        if failed.raised.startswith("a rank was "):
            before = f" {failed.raised.removeprefix('a rank ')}: "
    assert (failed.summary.partition(before)[2] if before else failed.summary) == wrong.summary
    assert wrong.likely in failed.rows["likely"]
    assert not wrong.also or wrong.also == failed.rows["also"]
    assert len(failed.text.splitlines()) <= MOST_LINES
    assert f"seed={SEED}" in failed.text
    section = failed.rows["read"].partition("“")[2].removesuffix("”")
    assert not section or section in bank.sections


def assert_passes(bank, answer, capsys, seed):
    bank.check(answer, seed=seed)
    out = capsys.readouterr().out.splitlines()
    assert len([line for line in out if line.startswith(f"✔ {bank.name}: ")]) == 1
    assert all(line.startswith("✔") for line in out)


class Cases:
    """The tests of one bank. A class for each, so that they can run side by side."""

    bank: Bank

    @pytest.mark.filterwarnings(SLOW_GUARDS)
    @pytest.mark.filterwarnings(ITS_OWN)
    @pytest.mark.filterwarnings("error")
    def test_a_right_answer_passes(self, right, capsys, ranks_stay_throughout):
        """Each with inputs of its own, where the check does not draw scenes in which any two edges meet."""
        number = 0 if self.bank.contract else self.bank.right_answers.index(right)
        assert_passes(self.bank, right, capsys, BASE + 2 * number)

    def test_a_wrong_answer_fails_in_its_own_words(self, wrong, failure_here):
        assert_its_own_words(failure_here(self.bank, wrong), wrong, self.bank)

    @pytest.mark.filterwarnings(SLOW_GUARDS)
    @pytest.mark.filterwarnings(ITS_OWN)
    @pytest.mark.filterwarnings("error")
    def test_a_right_answer_passes_with_a_virtual_gpu_in_force(self, right_anywhere, capsys, monkeypatch):
        """With the first it is seen whether answers see the notebook's GPU."""
        seen, run = set(), Guard.run

        def watched(self, function, args, inside):
            def call(*args):
                seen.add(in_force.current is notebooks)
                return function(*args)

            return run(self, call, args, inside)

        first = right_anywhere is self.bank.right_answers[0]
        with gpulab.VirtualGPU("T4") as notebooks:
            if first:
                monkeypatch.setattr(Guard, "run", watched)
            assert_passes(self.bank, right_anywhere, capsys, BASE + 3)
        assert not first or (True not in seen) == own_gpu(self.bank)

    def test_a_wrong_answer_fails_in_the_same_words_with_a_virtual_gpu_in_force(self, wrong_anywhere):
        with gpulab.VirtualGPU("T4"):
            assert_its_own_words(failure(self.bank, wrong_anywhere, drawn=True), wrong_anywhere, self.bank)

    def test_no_two_wrong_answers_are_told_the_same(self, failure_here):
        """Unless they are answers of one row, which is one misconception."""
        said = {}
        for wrong in self.bank.wrong_answers:
            failed = failure_here(self.bank, wrong)
            words = failed.summary, failed.rows["likely"], failed.rows["also"]
            first = said.setdefault(words, wrong)
            assert first.row == wrong.row, f"{wrong.name} is told the same as {first.name}"

    def test_a_bank_holds_five_wrong_answers_and_two_right_ones_at_the_least(self):
        assert len(self.bank.wrong_answers) >= 5
        assert len(self.bank.right_answers) >= 2

    def test_a_stub_is_not_attempted(self):
        """The course's own stub, and the one that an instructor's grader puts in its place."""

        def stub(*args):
            raise gpulab.NotAttempted

        def graders_stub(*args):
            raise NotImplementedError()

        for empty in (stub, graders_stub):
            with pytest.raises(gpulab.NotAttempted, match="not attempted yet"):
                self.bank.check(empty)


def far_apart(banks):
    """Those on ranks in equal distances among the others: of the processes that run tests side by side no two should
    wait for ranks at the same time."""
    waiting = [bank for bank in banks if bank.contract and bank.contract.ranks]
    found = [bank for bank in banks if bank not in waiting]
    for index, bank in enumerate(waiting):
        found.insert(index * len(banks) // len(waiting), bank)
    return found


for its_bank in far_apart(BANKS.values()):
    title = "Test" + its_bank.name.title().replace("_", "")
    globals()[title] = type(title, (Cases,), {"bank": its_bank})
