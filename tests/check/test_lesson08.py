"""What a failed check of lesson 08 sends its reader to exists, and its reference loops are right by themselves."""

import re
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gpulab.check.lesson08 import amp_calls, common, misconceptions
from gpulab.check.scenes import Scene

window, amp, tokens = (
    import_module(f"gpulab.check.lesson08.{name}")
    for name in ("accumulation_window", "accumulation_amp", "token_weighting")
)
LECTURE = Path(__file__).parents[2] / "sources" / "lectures" / "08_accumulation.py"
TABLES = {"window": misconceptions.WINDOW, "amp": misconceptions.AMP}


@pytest.mark.parametrize("section", misconceptions.SECTIONS)
def test_a_section_that_a_check_names_is_a_heading_of_the_lecture(section):
    headings = re.findall(r"^# ###? (.+)$", LECTURE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert section in headings


@pytest.mark.parametrize("table", TABLES)
def test_a_misconception_names_a_section_and_is_not_in_its_table_twice(table):
    mistakes = TABLES[table]
    assert {mistake.read for mistake in mistakes} <= set(misconceptions.SECTIONS)
    assert len({(mistake.aspect, mistake.value) for mistake in mistakes}) == len(mistakes)
    assert len({(mistake.summary, mistake.likely) for mistake in mistakes}) == len(mistakes)


def test_sets_of_mistakes_come_small_ones_first_and_hold_one_of_each_aspect():
    sets = list(common._fewest_first(misconceptions.WINDOW))
    assert len(sets) == len({tuple((m.aspect, m.value) for m in found) for found in sets})
    assert all(len(a) <= len(b) for a, b in pairwise(sets))
    assert all(len({mistake.aspect for mistake in found}) == len(found) in (1, 2, 3) for found in sets)
    assert all(found == sorted(found, key=misconceptions.WINDOW.index) for found in sets)


# --- the reference loops, against the full batch ---------------------------------------------------------


def full_batches(model, batches, steps, loss_fn):
    """Each window as one batch, one backward and one step of SGD: what accumulation has to come to."""
    model = common.replica(model)
    for part in common.windows(batches, steps):
        model.zero_grad()
        x, y = (torch.cat(pieces) for pieces in zip(*part, strict=True))
        loss_fn(model(x), y).backward()
        yield common.flat_gradient(model.parameters())
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


@pytest.mark.parametrize(
    ("sizes", "steps"), [([4] * 9 + [1], 4), ([4] * 8, 4), ([4] * 4 + [2], 4), ([3, 3, 2], 8), ([5, 5], 1)]
)
def test_the_reference_epoch_steps_as_full_batches_do(sizes, steps):
    torch.manual_seed(0)
    case = window.prepare(sizes, steps, window.loss_fn)
    want = list(full_batches(case.model, case.batches, steps, window.loss_fn))
    assert len(case.want) == len(want)
    torch.testing.assert_close(case.want, want, rtol=0, atol=1e-12)


def test_the_reference_epoch_in_mixed_precision_steps_as_full_batches_do():
    torch.manual_seed(0)
    case = amp.prepare(8, 3, 1e6)
    want = list(full_batches(case.model, case.batches, 3, window.loss_fn))
    assert len(case.want) == len(want)
    assert all((a - b).norm() < 0.02 * b.norm() for a, b in zip(case.want, want, strict=True))


def test_the_reference_epoch_in_mixed_precision_clips_to_the_norm():
    torch.manual_seed(0)
    assert [round(float(g.norm()), 4) for g in amp.prepare(7, 3, 0.05).want] == [0.05, 0.05, 0.05]


@pytest.mark.parametrize(
    ("how", "infinite", "nan"),
    [(amp_calls.NAN, False, True), (amp_calls.INF, True, False), (amp_calls.ONE, True, False)],
)
def test_an_overflow_holds_what_its_name_says(how, infinite, nan):
    torch.manual_seed(0)
    case = amp.prepare(4, 2, 1e6)
    seen = amp_calls.Overflows(case.model, case.batches, 2, {1: how})
    for number, batches in enumerate(common.windows(case.batches, 2)):
        case.model.zero_grad()
        sum(seen.loss(window.loss_fn, case.model(x), y) for x, y in batches).backward()
        gradient = common.flat_gradient(case.model.parameters())
        assert seen.window == number
        assert (bool(gradient.isinf().any()), bool(gradient.isnan().any())) == (
            (infinite, nan) if number else (False, False)
        )
    assert (int((~gradient.isfinite()).sum()) == 1) == (how == amp_calls.ONE)


@pytest.mark.parametrize("bad", [{2: amp_calls.NAN}, amp_calls.MANY])
def test_the_scale_after_an_epoch_with_overflows_is_that_of_a_scaler(bad):
    seen = amp_calls.Overflows(nn.Linear(2, 2), [None] * 13, 2, bad)
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p])
    scaler = torch.amp.GradScaler("cpu", init_scale=amp_calls.SCALE, growth_interval=2, backoff_factor=0.75)
    for window in range(7):
        scaler.scale(p * (float("inf") if window in bad else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        p.grad = None
    assert seen.scale(2, 0.75) == scaler.get_scale()


@pytest.mark.parametrize("empty", ["", "first"])
def test_the_reference_for_tokens_is_the_mean_over_all_of_them(empty):
    torch.manual_seed(0)
    scene = Scene(device="cpu", empty=empty, batches=3, padding="anywhere")
    model, batches = tokens.Texts().double(), tokens.draw(scene)
    losses = [F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")[y != -100] for x, y in batches]
    torch.cat(losses).mean().backward()
    assert tokens.count(batches) == len(torch.cat(losses))
    want = common.flat_gradient(model.parameters())
    torch.testing.assert_close(tokens.reference(model, batches)[0], want, rtol=0, atol=1e-12)


def test_a_replica_shares_nothing_and_keeps_the_gradients():
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    twin = common.replica(model)
    assert torch.equal(twin.weight.grad, model.weight.grad)
    assert twin.weight.grad.data_ptr() != model.weight.grad.data_ptr()
    assert twin.weight.data_ptr() != model.weight.data_ptr()
    assert twin.bias.grad is None
