"""Small whole numbers that follow from constants are known on shapes alone; nothing else is."""

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.scope.refusals import NotMirrored, NoValues


@pytest.fixture(autouse=True)
def shapes():
    with VirtualGPU("T4", compute=False):
        yield


def test_positions_and_masks_are_known():
    positions = torch.arange(10, device="cuda")[None]
    assert (torch.diff(positions, prepend=positions[:, :1] - 1) == 1).all()
    assert positions.max().item() == 9
    assert positions.tolist() == [list(range(10))]
    assert positions.T[3:5].cpu().equal(torch.tensor([[3], [4]]))
    assert (positions > 6).nonzero().shape == (3, 2)
    assert torch.ones(4, 4, dtype=torch.bool, device="cuda").tril().sum().item() == 10


def test_a_mask_that_is_known_takes_as_many_elements_as_with_values():
    x = torch.randn(10, 3, device="cuda")
    assert x[torch.arange(10, device="cuda") > 6].shape == (3, 3)
    assert x[:, torch.tensor([True, False, True], device="cuda")].shape == (10, 2)
    assert x[torch.ones(10, 3, dtype=torch.bool, device="cuda").tril()].shape == (27,)
    positions = torch.arange(10, device="cuda")
    assert positions[positions % 4 == 1].tolist() == [1, 5, 9]


def test_a_mask_that_nobody_knows_takes_what_nobody_knows():
    x = torch.randn(10, 3, device="cuda")
    for mask in (x > 0, torch.isnan(x), torch.randint(9, (10,), device="cuda") == 3):
        with pytest.raises(NotMirrored, match=r"aten.index.Tensor is not mirrored in shapes-only mode"):
            x[mask]


def test_indices_as_tensors_are_known_and_those_that_python_lists_are_not():
    x = torch.arange(12, device="cuda").view(3, 4)
    assert x[:, torch.tensor([-1, 0])].tolist() == [[3, 0], [7, 4], [11, 8]]
    with pytest.raises(NoValues):  # PyTorch's C++ makes a tensor of them, here one without values
        bool((x[:, [-1, 0]] == 11).any())


def test_what_comes_from_the_host_is_known():
    x = torch.tensor([3, 1, 2]).to("cuda")
    assert x.sum().item() == 6
    assert x.sort().values.tolist() == [1, 2, 3]
    assert torch.ones_like(torch.randint(9, (3,), device="cuda")).all()


def test_writing_in_place_is_followed():
    x = torch.zeros(2, 3, dtype=torch.long, device="cuda")
    x[:, 1] = 5
    x += 1
    assert x.tolist() == [[1, 6, 1], [1, 6, 1]]
    view = x[0]
    view.zero_()
    assert x.tolist() == [[0, 0, 0], [1, 6, 1]]
    x.copy_(torch.full((2, 3), 7))
    assert view.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.add_(torch.randint(9, (3,), device="cuda")),
        lambda x: x.random_(9),
        lambda x: x[:1].copy_(torch.randint(9, (1,), device="cuda")),
        lambda x: torch.add(x, torch.randint(9, (3,), device="cuda"), out=x),
    ],
)
def test_what_is_drawn_is_not_known_and_takes_away_what_was(spoil):
    x = torch.arange(3, device="cuda")
    assert x.any()
    spoil(x)
    with pytest.raises(NoValues):
        bool(x.any())


@pytest.mark.parametrize(
    "unknown",
    [
        lambda: torch.ones(3, device="cuda"),  # numbers with a point are what is computed with
        lambda: torch.empty(3, dtype=torch.long, device="cuda"),
        lambda: torch.randint(9, (3,), device="cuda") == 4,
        lambda: torch.randn(3, device="cuda").bool(),
        lambda: torch.zeros(1 << 20, dtype=torch.long, device="cuda"),
    ],
)
def test_what_stays_unknown(unknown):
    with pytest.raises(NoValues):
        bool(unknown().any())


def test_memory_is_that_of_the_shapes():
    before = torch.cuda.memory_allocated()
    x = torch.arange(1000, device="cuda")
    y = x + 1
    assert torch.cuda.memory_allocated() - before == 2 * 8192
    del x, y
    torch.zeros(1, device="cuda")
    assert torch.cuda.memory_allocated() == before
