"""What a program asks of values that are not there: an ordinary answer, and "unknown" where it prints one."""

import math
import warnings

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope.refusals import NoValues


@pytest.fixture(autouse=True)
def shapes():
    with VirtualGPU("T4", compute=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def loss():
    x = torch.randn(300, 300, device="cuda", requires_grad=True)
    return (x * x).mean()


INF = float("inf")
QUESTIONS = [  # of numbers that nobody knows, and the answers that let a training loop go on
    (lambda x: torch.isnan(x), False),
    (lambda x: x != x, False),
    (lambda x: torch.isinf(x), False),
    (lambda x: x.isfinite(), True),
    (lambda x: not torch.isfinite(x), False),
    (lambda x: torch.isnan(x) or torch.isinf(x), False),
    (lambda x: torch.logical_or(x.isnan(), x.isinf()), False),
    (lambda x: x < INF, True),
    (lambda x: torch.gt(torch.tensor(INF, device="cuda"), x), True),
    (lambda x: x < torch.tensor(INF), True),
    (lambda x: x > 1e4, False),
    (lambda x: x < 1e-3, False),
    (lambda x: x == 0, False),
    (lambda x: x != 0, True),
    (lambda x: x, True),
    (lambda x: x < x.detach().clone(), False),
    (lambda x: math.isfinite(x.item()), True),
    (lambda x: math.isnan(float(x)), False),
    (lambda x: x.item() < INF, True),
    (lambda x: torch.isnan(x.cpu()), False),
    (lambda x: math.isfinite(x.detach().cpu().numpy()), True),
]


@pytest.mark.parametrize(("asked", "answer"), QUESTIONS)
def test_a_loss_is_an_ordinary_number(asked, answer):
    assert bool(asked(loss())) is answer


@pytest.mark.parametrize("shape", [(3,), (2000, 3000)])
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (lambda x: torch.isnan(x).any(), False),
        (lambda x: torch.isfinite(x).all(), True),
        (lambda x: torch.isnan(x).any().item(), False),
        (lambda x: torch.isnan(x).any().cpu(), False),
        (lambda x: torch.isinf(x).sum() > 0, False),
        (lambda x: torch.isinf(x).sum(0).amax().cpu() > 0, False),
        (lambda x: torch.isnan(x).float().sum().item() > 0, False),
        (lambda x: (~torch.isnan(x)).all(), True),
        (lambda x: (torch.isnan(x) | torch.isinf(x)).view(-1)[:2].any(), False),
        (lambda x: (x.int() < 0).any(), False),
        (lambda x: (x.long() >= 1000).any(), False),
        (lambda x: (x[1:] <= x[:1]).any(), False),
    ],
)
def test_so_is_each_of_many(shape, asked, answer):
    assert bool(asked(torch.randn(shape, device="cuda"))) is answer


def test_what_one_side_decides_is_known():
    """How `generate` of transformers finds the end of what it writes."""
    ended = torch.isin(torch.randn(2, 5, device="cuda").argmax(-1), torch.tensor([4], device="cuda"))
    full = torch.ones(2, dtype=torch.bool, device="cuda")
    done = torch.zeros(2, dtype=torch.bool, device="cuda") | full | ended
    left = torch.ones(2, dtype=torch.long, device="cuda") & ~done
    assert left.max() == 0
    assert not (ended & ~full).any()
    with pytest.raises(NoValues):
        bool((ended | ~full).any())


def test_how_many_there_are_is_not_none():
    ended = torch.randint(9, (4,), device="cuda").bool()
    left = torch.ones(4, dtype=torch.long, device="cuda") & ~ended
    assert bool(left.max() == 0) is False
    assert ended.sum() != 0


def test_so_many_numbers_are_counted_as_were_expected():
    words = torch.randn(9, 5, device="cuda").argmax(-1)
    before = torch.cuda.memory_allocated()
    counts = torch.bincount(words, minlength=200)
    assert (counts.shape, counts.dtype, counts.device.type) == ((200,), torch.int64, "cuda")
    assert torch.cuda.memory_allocated() - before == 2048
    assert torch.bincount(words, torch.ones(9, device="cuda"), minlength=5).dtype is torch.float32
    with pytest.raises(NoValues):
        torch.bincount(words)


def test_data_copied_from_the_host_is_asked_too():
    y = torch.randint(0, 10, (512, 512)).to("cuda")  # more than are followed
    assert not (y.int() < 0).any()
    assert not torch.isnan(torch.randn(1 << 20)).any()  # on the host, without values there


def test_an_answer_ends_with_what_is_written_over_it():
    answer = torch.isnan(torch.randn(3, device="cuda"))
    assert not answer.any()
    answer.copy_(torch.randint(2, (3,), device="cuda").bool())
    with pytest.raises(NoValues):
        bool(answer.any())


@pytest.mark.parametrize(
    "asked",
    [
        lambda x: (x.argmax(1) == 3).all(),  # which class is predicted
        lambda x: x.argmax(1).eq(x.argmin(1)).any(),
        lambda x: torch.equal(x, x.clone()),
        lambda x: x[x.isnan()],
        lambda x: x.bool().any(),
        lambda x: x.nonzero(),
    ],
)
def test_other_questions_have_no_answer(asked):
    with pytest.raises((NoValues, NotImplementedError), match=r"compute=(False|True)"):
        bool(asked(torch.randn(4, 4, device="cuda")))


def test_what_is_printed_is_unknown():
    value = loss().item()
    assert f"{value} {value:.4f} {value!r}|{value:>9.2f}|{loss():.2f}" == "unknown unknown unknown|  unknown|unknown"
    mean = sum([value, loss().item()]) / 2
    assert str([mean, round(mean, 3), -mean, 2 * mean + 1, mean**2]) == "[" + ", ".join(["unknown"] * 5) + "]"
    correct = (torch.randn(9, 3, device="cuda").argmax(1) == torch.zeros(9, dtype=torch.long, device="cuda")).sum()
    assert str(correct.item()) == str(100 * correct.item() / 9) == "unknown"
    assert isinstance(correct.item(), int)
    assert str(correct.tolist()) == "unknown"
    assert torch.zeros(correct.item(), 2).shape == (1, 2)


def test_what_follows_from_constants_is_known_and_printed():
    assert str(torch.arange(5, device="cuda").sum().item()) == "10"


def test_it_is_said_once():
    with VirtualGPU("T4", compute=False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            if torch.isnan(loss()) or loss().item() > 5:
                break
        bool(torch.isnan(torch.ones(3, device="cuda")).any().cpu())
    [said] = [w for w in caught if "an unknown number is read as 1" in str(w.message)]
    assert "ordinary, finite" in str(said.message)
