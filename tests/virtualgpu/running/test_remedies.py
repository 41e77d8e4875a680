"""The patches with which `run --what-if` applies remedies: each does what the line in the script would do."""

import contextlib
import weakref

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from virtualgpu.gpu import VirtualGPU
from virtualgpu.running import remedy_patches
from virtualgpu.running.seen import Seen

GPU, WIDTH, LAYERS, BATCH = "A100-40", 512, 6, 8192
ACTIVATION = 4 * BATCH * WIDTH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.gelu = nn.Linear(WIDTH, WIDTH), nn.GELU()

    def forward(self, x):
        return self.gelu(self.linear(x))


class Deep(nn.Module):
    def __init__(self, by_hand):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.by_hand = by_hand

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint.checkpoint(layer, x, use_reentrant=False) if self.by_hand else layer(x)
        return x


@contextlib.contextmanager
def applied(name):
    with contextlib.ExitStack() as undo:
        remedy_patches.apply(name, undo)
        yield


def training(by_hand="", **optimizer):
    """The peak in bytes and the seconds of the second and third step, which do by hand what a remedy does."""
    with VirtualGPU(GPU, compute=False) as gpu, contextlib.ExitStack() as undo:
        if by_hand == "tf32":
            torch.set_float32_matmul_precision("high")
            undo.callback(torch.set_float32_matmul_precision, "highest")
        model = Deep(by_hand == "checkpointing").cuda()
        adam = torch.optim.AdamW(model.parameters(), **optimizer)
        began = 0.0
        for step in range(3):
            began = gpu.clock.now(0) if step == 1 else began
            x = torch.randn(BATCH, WIDTH, device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=by_hand == "autocast"):
                loss = F.mse_loss(model(x), x)
            loss.backward()
            adam.step()
            adam.zero_grad()
        return torch.cuda.max_memory_allocated(), gpu.clock.now(0) - began


@pytest.mark.parametrize(
    ("name", "by_hand", "optimizer"),
    [
        ("none", "", {}),
        ("fused", "", {"fused": True}),
        ("foreach", "", {"foreach": False}),
        ("tf32", "tf32", {}),
        ("autocast-bf16", "autocast", {}),
        ("checkpointing", "checkpointing", {}),
    ],
)
def test_a_remedy_from_outside_is_the_one_by_hand(name, by_hand, optimizer):
    with applied(name):
        outside = training()
    assert outside == training(by_hand, **optimizer)
    assert (outside == training()) == (name == "none")


def test_fused_and_a_loop_take_no_temporaries_of_foreach():
    layer = 4 * 2048 * 2048
    peaks = {}
    for name in ("none", "foreach", "fused"):
        with applied(name), VirtualGPU(GPU, compute=False):
            model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(6))).cuda()
            adam = torch.optim.AdamW(model.parameters())
            model(torch.randn(1, 2048, device="cuda")).sum().backward()
            torch.cuda.reset_peak_memory_stats()
            adam.step()
            peaks[name] = torch.cuda.max_memory_allocated() / layer
    # weights, gradients and two states of 6 layers; the square roots of all of them, or three numbers of one layer's
    assert peaks == pytest.approx({"none": 30, "foreach": 27, "fused": 24}, abs=0.1)


def test_checkpointing_keeps_an_activation_of_each_block_and_takes_a_forward_more():
    (peak, seconds), (after, longer) = training(), _with("checkpointing")
    assert peak - after == pytest.approx((LAYERS - 2) * ACTIVATION, rel=0.3)
    assert 1.1 * seconds < longer < 1.5 * seconds


def test_autocast_keeps_activations_of_half_the_size():
    (peak, seconds), (after, faster) = training(), _with("autocast-fp16")
    assert peak - after > LAYERS * ACTIVATION // 2
    assert faster < seconds


def _with(name):
    with applied(name):
        return training()


# -- half the batch --------------------------------------------------------------------------------------------------


def weights_after(loader, clears, epochs=2):
    """The weights after training with values, and how many steps were taken; the loss is a sum over samples."""
    torch.manual_seed(0)
    steps = []
    with VirtualGPU("T4"):
        model = nn.Linear(4, 1).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1000)
        with contextlib.ExitStack() as undo:
            undo.callback(sgd.register_step_post_hook(lambda *_: steps.append(1)).remove)
            for _ in range(epochs):
                for (x,) in loader():
                    if clears == "before":
                        sgd.zero_grad()
                    model(x.cuda()).square().sum().backward()
                    sgd.step()
                    scheduler.step()
                    if clears == "after":
                        model.zero_grad()
        return model.weight.detach().cpu(), len(steps)


DATA = TensorDataset(torch.linspace(-1, 1, 64).view(16, 4))
LOADERS = {
    "batch_size": lambda: DataLoader(DATA, batch_size=8),
    "positional": lambda: DataLoader(DATA, 8),
    "batch_sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 8, False)),
}


@pytest.mark.parametrize("clears", ["before", "after"])
@pytest.mark.parametrize("loader", LOADERS)
def test_half_batches_with_accumulation_train_as_whole_ones(loader, clears):
    whole, steps = weights_after(LOADERS[loader], clears)
    with applied("micro-batch"):
        sizes = [len(x) for (x,) in LOADERS[loader]()]
        halves, taken = weights_after(LOADERS[loader], clears)
    assert sizes == [4] * 4
    assert taken == steps == 4
    torch.testing.assert_close(halves, whole)


def test_a_closure_runs_for_each_half():
    calls = []
    with applied("micro-batch"):
        weight = nn.Parameter(torch.ones(1))
        sgd = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            sgd.step(lambda: calls.append(1) or weight.sum())
    assert len(calls) == 4


def test_a_loader_that_another_is_made_of_is_halved_once():
    with applied("micro-batch"):
        first = DataLoader(DATA, batch_size=8)
        again = DataLoader(DATA, batch_sampler=first.batch_sampler)
        assert [len(x) for (x,) in again] == [4] * 4
        assert [len(x) for (x,) in DataLoader(DATA, batch_size=1)] == [1] * 16


# -- what is checkpointed --------------------------------------------------------------------------------------------


def layers(*parts):
    return nn.Sequential(*parts)


@pytest.mark.parametrize(
    ("make", "number", "kind"),
    [
        (torchvision.models.resnet50, 16, "Bottleneck"),
        (torchvision.models.mobilenet_v2, 17, "InvertedResidual"),
        (lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2), 3), 3, "TransformerDecoderLayer"),
        (lambda: nn.DataParallel(Deep(False)), LAYERS, "Block"),
        (lambda: layers(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()), 0, ""),
        (lambda: layers(Block(), nn.Linear(WIDTH, WIDTH)), 0, ""),
        (lambda: layers(*(layers(layers(Block(), nn.ReLU()), nn.ReLU()) for _ in range(2))), 2, "Sequential"),
    ],
)  # fmt: skip
def test_the_blocks_are_the_largest_layers_of_one_class_in_a_list(make, number, kind):
    with torch.device("meta"):
        blocks = remedy_patches.equal_blocks(make())
    assert (len(blocks), {type(block).__name__ for block in blocks}) == (number, {kind} if kind else set())


@pytest.mark.parametrize("name", ["gradient_checkpointing_enable", "enable_gradient_checkpointing"])
def test_a_model_s_own_switch_is_taken(name):
    class Model(nn.Module):
        def forward(self, x):
            return x

    called = []
    setattr(Model, name, lambda self, **how: called.append(how))
    with applied("checkpointing"):
        model = layers(Model())
        with torch.no_grad():
            model(torch.ones(1))
        assert not called
        model(torch.ones(1))
        model(torch.ones(1))
    assert called == [{"gradient_checkpointing_kwargs": {"use_reentrant": False}} if name.startswith("gr") else {}]


# -- what is seen, and what is left ----------------------------------------------------------------------------------


def test_what_a_script_does_is_seen():
    with contextlib.ExitStack() as undo, VirtualGPU(GPU, compute=False):
        seen = Seen(undo)
        model = Deep(True).cuda()
        adam = torch.optim.AdamW(model.parameters(), fused=True)
        torch.optim.Adadelta([nn.Parameter(torch.ones(1))])
        loader = DataLoader(TensorDataset(torch.zeros(64, WIDTH)), batch_size=16)
        with torch.no_grad():
            next(iter(DataLoader(TensorDataset(torch.zeros(64, WIDTH)), batch_size=64)))
        for at, (x,) in enumerate(loader):
            with torch.autocast("cuda", torch.bfloat16):
                model(x.cuda()).sum().backward()
            if at % 2:
                adam.step()
    facts = seen.facts()
    assert facts == {
        "optimizers": [
            ("AdamW", {"fused": True, "foreach": None}),
            ("Adadelta", {"foreach": None}),
        ],
        "autocast": True,
        "checkpoints": True,
        "gradients": True,
        "blocks": [f"{LAYERS} x Block"],
        "batch": 16,
        "sampler": "",
        "samples": 32,
    }  # fmt: skip


def test_nothing_of_it_is_seen_where_nothing_is_done():
    with contextlib.ExitStack() as undo:
        facts = Seen(undo).facts()
    assert not any(facts.values())


@pytest.mark.parametrize("name", remedy_patches.REMEDIES)
def test_what_a_script_drops_is_gone_and_pytorch_is_as_before(name):
    def state():
        return [
            torch.autograd.backward, nn.Module.__call__, nn.Module.zero_grad, torch.optim.Optimizer.__init__,
            torch.optim.Optimizer.zero_grad, DataLoader.__init__, torch.get_float32_matmul_precision(),
            torch.utils.checkpoint.checkpoint, torch.autocast.__enter__, torch.optim.AdamW.step,
            torch.is_autocast_enabled("cuda"),
        ]  # fmt: skip

    torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # it hooks its class
    before = state()
    with contextlib.ExitStack() as undo, VirtualGPU(GPU, compute=False):
        remedy_patches.apply(name, undo)
        seen = Seen(undo)
        model = Deep(False).cuda()
        adam = torch.optim.AdamW(model.parameters())
        for (x,) in DataLoader(TensorDataset(torch.zeros(4, WIDTH)), batch_size=2):
            model(x.cuda()).sum().backward()
            adam.step()
        dropped = weakref.ref(model), weakref.ref(model.layers[0]), weakref.ref(adam)
        del model, adam, x
        assert [each() for each in dropped] == [None] * 3
        assert seen.facts()["optimizers"]
        model = Deep(False).cuda()
        model(torch.zeros(2, WIDTH, device="cuda"))  # without backward
    assert state() == before
