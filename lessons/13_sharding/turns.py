"""Judges the turns of lesson 13: a model sharded by block, weights for one on meta, a rank's part of an MLP."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from gpulab.exercise.turns import AsGiven, NotYet, turn
from gpulab.exercise.wording import brief
from virtualgpu.gpu import VirtualGPU

WIDTH, RANKS = 64, 4


class _Model(nn.Module):
    """The names of the lecture's SmallGPT, with blocks that say when they run."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(depth)
        )
        self.embed = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleDict({"layers": layers})
        self.head = nn.Linear(WIDTH, 8)

    def layers(self) -> list[nn.Module]:
        return list(self.blocks.layers)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> Any:
        x = self.embed(x)
        for layer in self.layers():
            x = layer(x)
        return self.head(x)


@turn("a block is gathered only while it computes: one unit for each block, and one for the rest")
def a_unit_per_block(answer: Any) -> None:
    """A function (model) that shards it with `fully_shard`, each of `model.blocks.layers` and then the whole."""
    import torch.distributed as dist
    from torch.distributed.fsdp import FSDPModule

    with warnings.catch_warnings(), VirtualGPU("T4", ranks=RANKS):
        warnings.simplefilter("ignore")
        dist.init_process_group("nccl")
        try:
            model = _Model(int(torch.randint(3, 6, ()))).cuda()
            answer(model)
            blocks = model.layers()
            root = isinstance(model, FSDPModule)
            units = [isinstance(block, FSDPModule) for block in blocks]
            finer = [m for block in blocks for m in block.modules() if m is not block and isinstance(m, FSDPModule)]
            model(torch.randn(2, 8, device="cuda")).sum().backward()
            whole = [name for name, p in model.named_parameters() if not hasattr(p, "to_local")]
        finally:
            dist.destroy_process_group()
            gc.collect()
    if root and not any(units) and not finer:
        raise AsGiven("the model is one unit, and all of it is gathered before the first kernel")
    told, likely = _of_units(root, units, bool(finer), whole)
    if told:
        raise NotYet(told, expected="a unit for each block, and one for embedding and head", likely=likely)


def _of_units(root: bool, units: list[bool], finer: bool, whole: list[str]) -> tuple[str, str]:
    """What is wrong and why, empty where nothing is."""
    if not root and not any(units) and not finer:
        return "nothing is sharded", "fully_shard(block) changes the block itself; it was not called"
    if finer:
        return (
            "there are units within the blocks",
            "a gather for each layer makes many small ones: shard block by block",
        )
    if not all(units):
        missing = [i for i, unit in enumerate(units) if not unit]
        return f"{len(missing)} of {len(units)} blocks are not units", "the loop goes over all of model.blocks.layers"
    if not root:
        return (
            f"{brief(whole[0])} and {len(whole) - 1} others are whole on every rank",
            "embedding and head belong to no block: fully_shard(model), after the blocks",
        )
    return "", ""


class _WithAngles(nn.Module):
    """A layer, a batch norm with buffers that are saved, and angles that are not."""

    angles: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.register_buffer("angles", self.compute_angles(), persistent=False)

    def compute_angles(self) -> torch.Tensor:
        return 1 / 10_000 ** torch.arange(0, 1, 1 / 16, device="cpu")


@turn("every rank has its rows of the weights, and the angles are recomputed")
def filled_from_rank_0(answer: Any) -> None:
    """A function (model, weights) that fills a sharded model on meta with a state dict that rank 0 alone has."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    whole = _WithAngles()
    for tensor in whole.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(1, 2)
    with warnings.catch_warnings(), VirtualGPU("T4", ranks=RANKS) as gpu:
        warnings.simplefilter("ignore")
        dist.init_process_group("nccl")
        try:
            with torch.device("meta"):
                model = _WithAngles()
            fully_shard(model)
            with gpu.timeline() as timeline:
                _fill(answer, model, {name: value.clone() for name, value in whole.state_dict().items()})
            _filled(model, whole)
        finally:
            dist.destroy_process_group()
            gc.collect()
    # without it `set_model_state_dict` only scatters, and raises on a rank whose state dict is empty
    if not any(span.where == "ranks" and span.name.startswith("broadcast") for span in timeline.spans):
        raise NotYet(
            "rank 0 does not send by default: the call fails on the others, which have no weights",
            expected="rank 0 sends each rank its rows",
            likely="StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)",
        )


def _fill(answer: Any, model: _WithAngles, weights: dict[str, torch.Tensor]) -> None:
    try:
        answer(model, weights)
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" in str(error):
            raise AsGiven("load_state_dict copies a whole tensor into a DTensor") from None
        raise


def _filled(model: _WithAngles, whole: _WithAngles) -> None:
    """Judge what the model holds on rank 0."""
    where = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    if where != {"cuda"}:
        raise NotYet(f"the model is on {', '.join(sorted(where))}", expected="cuda", likely='to_empty(device="cuda")')
    _values(model, whole)
    if not torch.allclose(model.angles.cpu(), whole.angles):
        raise NotYet(
            "model.angles holds whatever was in memory",
            expected="model.compute_angles()",
            likely="a buffer with persistent=False is not in the state dict: copy_ it into model.angles",
        )


def _values(model: _WithAngles, whole: _WithAngles) -> None:
    """Judge this rank's rows of each parameter, and the saved buffers."""
    for name, parameter in model.named_parameters():
        local = getattr(parameter, "to_local", lambda: None)()
        if local is None:
            raise NotYet(f"{name} is not a DTensor", expected="this rank's rows", likely="the model stays sharded")
        wanted = whole.get_parameter(name).chunk(RANKS)[0]
        if local.shape != wanted.shape or not torch.equal(local.cpu(), wanted):
            raise NotYet(
                f"{name} has other values", expected="the rows of the state dict", likely="set_model_state_dict"
            )
    if not torch.equal(model.norm.running_var.cpu(), whole.norm.running_var):  # type: ignore[union-attr,arg-type]
        raise NotYet(
            "norm.running_var has other values",
            expected="the buffer of the state dict",
            likely="set_model_state_dict sets saved buffers too; the parameters alone are not enough",
        )


Part = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int], torch.Tensor]


def _columns_of_up(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    each = up.shape[1] // ranks
    mine = slice(rank * each, (rank + 1) * each)
    return F.linear(torch.relu(F.linear(x[..., mine], up[:, mine])), down)


def _strided(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    each = up.shape[0] // ranks
    return F.linear(torch.relu(F.linear(x, up[rank * each : (rank + 1) * each])), down[:, rank::ranks])


@turn("the parts of all ranks add up to the layer, and each rank computes its share of the hidden units")
def summand_of_mlp(answer: Any) -> None:
    """A function (x, up, down, rank, ranks): one rank's part of the sum relu(x @ up.T) @ down.T."""
    ranks, each, width = (int(torch.randint(2, 5, ())) for _ in range(3))
    hidden, width = ranks * (each + 1), 4 * width
    x, up, down = torch.randn(5, width), torch.randn(hidden, width), torch.randn(width, hidden)
    whole = F.linear(torch.relu(F.linear(x, up)), down)
    parts = []
    for rank in range(ranks):
        up_read, down_read = up.clone().requires_grad_(), down.clone().requires_grad_()
        part = answer(x.clone(), up_read, down_read, rank, ranks)
        if not torch.is_tensor(part) or part.shape != whole.shape:
            got = tuple(part.shape) if torch.is_tensor(part) else brief(part)
            raise NotYet(
                f"{got} came from rank {rank}",
                expected=f"a tensor of shape {tuple(whole.shape)} from every rank",
                likely="take rows of up, then the same columns of down: each part has the shape of the whole",
            )
        parts.append(part.detach())
    if all(_same(part, whole) for part in parts):
        raise AsGiven("every rank computes the whole layer")
    if _same(torch.stack(parts).sum(0), whole):
        if _same(parts[0], whole):
            raise NotYet("rank 0 computes everything", expected="a share on each rank", likely=_RIGHT)
        return
    for wrong, told, likely in _PARTS:
        if all(_same(part, wrong(x, up, down, rank, ranks)) for rank, part in enumerate(parts)):
            raise NotYet(told, expected=f"parts whose sum over {ranks} ranks is the layer", likely=likely)
    raise NotYet("the parts do not add up to the layer", expected="their sum is the whole", likely=_RIGHT)


_RIGHT = "with each = hidden // ranks, rank r takes rows r · each to (r + 1) · each of up and the same columns of down"
_PARTS: tuple[tuple[Part, str, str], ...] = (
    (_columns_of_up, "up is split along its inputs",
     "the ReLU of a part is not a part of the ReLU: split `up` by rows, so that each hidden unit is whole on a rank"),
    (_strided, "the columns of down are not those of the rows of up", "the same slice for both"),
)  # fmt: skip


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-3)
