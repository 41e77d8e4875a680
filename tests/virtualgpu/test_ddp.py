"""DistributedDataParallel on shapes alone does what PyTorch's C++ does with values, and real ranks agree."""

import contextlib
import gc
import inspect
import itertools
import json
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from courselib.patience import HANG_SECONDS
from courselib.ready import python_here
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import gpulab
from virtualgpu.scope.refusals import NotMirrored


class Perceptron(nn.Module):
    """Layers of unequal sizes; its gradients fill two buckets of 1 MiB."""

    def __init__(self):
        super().__init__()
        sizes = [300, 2000, 70, 900, 10]
        layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.layers(x).square().mean()

    @staticmethod
    def batch():
        return torch.randn(16, 300, device="cuda")


class WithUnused(Perceptron):
    def __init__(self):
        super().__init__()
        self.side = nn.Linear(300, 10)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.block = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.head = nn.Linear(128, 1000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return nn.functional.cross_entropy(self.head(self.block(self.words(x))).flatten(0, 1), x.flatten())

    @staticmethod
    def batch():
        return torch.randint(0, 1000, (4, 32), device="cuda")


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = pytest.importorskip("torchvision").models.resnet18()

    def forward(self, x):
        return self.net(x).square().mean()

    @staticmethod
    def batch():
        return torch.randn(2, 3, 64, 64, device="cuda")


@contextlib.contextmanager
def ranks(count, compute=True, **options):
    with gpulab.VirtualGPU("H100", ranks=count, compute=compute, **options) as gpu:
        dist.init_process_group("nccl")
        try:
            yield gpu
        finally:
            dist.destroy_process_group()
    gc.collect()


def train(kind, count, compute, *, steps=3, before=None, accumulate=False, amp=False, to_none=True, **options):
    """For the construction and each step: allocated and peak bytes, what ran on the GPU in its order, seconds."""
    found = []
    with ranks(count, compute) as gpu:
        torch.manual_seed(0)
        model, x = kind().cuda(), kind.batch()
        began = gpu.clock.host

        def note(spans):
            nonlocal began
            torch.cuda.synchronize()
            ran = [(s.name, s.nbytes if s.where == "ranks" else s.where) for s in spans if s.where != "host"]
            found.append(
                (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), ran, gpu.clock.host - began)
            )
            torch.cuda.reset_peak_memory_stats()
            began = gpu.clock.host

        with gpu.timeline() as timeline:
            ddp = DistributedDataParallel(model, **options)
        note(timeline.spans)
        if before is not None:
            before(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda", enabled=amp)
        for step in range(steps):
            waits = accumulate and step % 2 == 0
            with gpu.timeline() as timeline:
                with ddp.no_sync() if waits else contextlib.nullcontext(), torch.autocast("cuda", enabled=amp):
                    loss = ddp(x)
                scaler.scale(loss).backward()
                if not waits:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad(set_to_none=to_none)
            note(timeline.spans)
    return found


def hook(function, state=None):
    return lambda ddp: ddp.register_comm_hook(state and state(), function)


def power_sgd():
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)


def builtin(name):
    return lambda ddp: ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, name))


VIEW, FIND = {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}
CASES = {
    "plain": (Perceptron, 8, {}),
    "one rank": (Perceptron, 1, {}),
    "two ranks": (Perceptron, 2, {"device_ids": [0]}),
    "views": (Perceptron, 2, VIEW),
    "views that stay": (Perceptron, 2, {**VIEW, "to_none": False}),
    "gradients that stay": (Perceptron, 2, {"to_none": False}),
    "tied": (Tied, 8, {"bucket_cap_mb": 1}),
    "tied in 16 bit": (Tied, 8, {**VIEW, "amp": True}),
    "buffers": (ResNet, 8, {"bucket_cap_mb": 5}),
    "a list of sizes": (Perceptron, 8, {"bucket_cap_mb_list": [1, 2]}),
    "no_sync": (Perceptron, 8, {"accumulate": True, "steps": 5}),
    "no_sync with views": (Perceptron, 8, {"accumulate": True, "steps": 5, **VIEW}),
    "unused": (WithUnused, 8, FIND),
    "unused with views": (WithUnused, 8, {**FIND, **VIEW}),
    "unused and skipped": (WithUnused, 2, {**FIND, "skip_all_reduce_unused_params": True, "bucket_cap_mb": 1}),
    "static": (WithUnused, 2, {"static_graph": True}),
    "static with views": (WithUnused, 2, {"static_graph": True, **VIEW}),
    "batched copies": (Perceptron, 2, {"batched_grad_copy": True}),
    "batched copies into views": (Perceptron, 2, {"batched_grad_copy": True, **VIEW}),
    "no init_sync": (Perceptron, 2, {"init_sync": False}),
    "statistics end": (Perceptron, 8, {"steps": 13}),
    "hook": (Perceptron, 8, {"before": hook(default_hooks.allreduce_hook)}),
    "fp16": (ResNet, 8, {"before": hook(default_hooks.fp16_compress_hook), "bucket_cap_mb": 5}),
    "bf16": (Perceptron, 8, {"before": hook(default_hooks.bf16_compress_hook), **VIEW}),
    "PowerSGD": (Perceptron, 8, {"before": hook(powerSGD_hook.powerSGD_hook, power_sgd), "steps": 4}),
    "built-in": (Perceptron, 8, {"before": builtin("ALLREDUCE")}),
    "built-in fp16": (Perceptron, 8, {"before": builtin("FP16_COMPRESS")}),
}


KNOWN = inspect.signature(DistributedDataParallel).parameters  # PyTorch 2.11 has fewer options
OURS = inspect.signature(train).parameters
CASES = {name: case for name, case in CASES.items() if case[2].keys() <= KNOWN.keys() | OURS.keys()}


@pytest.mark.filterwarnings("ignore:find_unused_parameters=True was specified", "ignore:with compute=False")
@pytest.mark.parametrize("case", CASES)
def test_shapes_alone_do_what_cpp_does_with_values(case):
    kind, count, options = CASES[case]
    values, shapes = (train(kind, count, compute, **options) for compute in (True, False))
    for (allocated, peak, ran, seconds), other in zip(values, shapes, strict=True):
        assert other[:2] == (allocated, peak)
        assert other[2] == ran
        assert other[3] == pytest.approx(seconds, rel=0.01)
    reduced = [nbytes for step in shapes[1:] for name, nbytes in step[2] if name.startswith("all_reduce")]
    assert reduced


def test_buckets_are_made_anew_in_the_order_of_the_gradients():
    """By hand: all gradients at first; then from the last layer on, at least 1 MiB, and the rest in another."""
    sizes = [4 * n for n in (10, 9000, 900, 63000, 70, 140000, 2000, 600000)]
    for compute in (True, False):
        steps = train(Tied, 8, compute)
        parameters = sum(p.nbytes for p in Tied().parameters())
        sent = [[nbytes for name, nbytes in step[2] if "all_reduce" in name] for step in steps]
        assert sent[1] == [parameters]
        assert sum(sent[2]) == parameters
        assert len(sent[2]) == 1
        steps = train(Perceptron, 8, compute, bucket_cap_mb=0.5)
        sent = [[nbytes for name, nbytes in step[2] if "all_reduce" in name] for step in steps]
        first = next(i for i in range(len(sizes)) if sum(sizes[: i + 1]) >= 1 << 19)
        assert sent[2] == [sum(sizes[: first + 1]), sum(sizes[first + 1 :])]


def spans_of(compute, width, batch, **options):
    """The collectives, products and copies of the second backward pass of eight layers."""
    with ranks(8, compute) as gpu:
        ddp = DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(8)]).cuda(), **options)
        x = torch.randn(batch, width, device="cuda")
        ddp(x).sum().backward()
        loss = ddp(x).sum()
        with gpu.timeline() as timeline:
            loss.backward()
    names = {"ranks": "all_reduce of 8 ranks", "products": "mm", "copies": "copy_"}
    return [
        [span for span in timeline.spans if span.where != "host" and span.name.split(" ")[0] == name.split(" ")[0]]
        for name in names.values()
    ]


@pytest.mark.parametrize("compute", [True, False])
def test_the_first_bucket_is_reduced_while_the_backward_pass_goes_on(compute):
    reduced, products, _ = spans_of(compute, 512, 64, bucket_cap_mb=2)
    assert len(reduced) == 4  # two layers of 1 MiB and 2 KiB each
    assert reduced[0].start < products[-8].start
    assert all(one.start + one.seconds <= two.start for one, two in itertools.pairwise(reduced))


def test_each_gradient_waits_for_its_own_bucket():
    reduced, _, copies = spans_of(False, 2048, 4096)
    assert len(reduced) == 5  # 16 MiB and 8 KiB a layer: the last layer alone, then at least 25 MiB
    assert copies[-16].start < reduced[-1].start + reduced[-1].seconds <= copies[-2].start


def told(run):
    """What `run(gpu)` says in both modes."""
    said = []
    for compute in (True, False):
        with ranks(4, compute, rank=2) as gpu, pytest.raises(RuntimeError) as error:
            run(gpu)
        said.append(str(error.value))
    return said


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(300, 5) for _ in range(2))
        self.used = [0, 1]

    def forward(self, x):
        return sum(self.heads[i](x).sum() for i in self.used)


def unused(gpu):
    ddp = DistributedDataParallel(WithUnused().cuda())
    ddp(Perceptron.batch()).backward()
    ddp(Perceptron.batch())


def used_twice(gpu):
    ddp = DistributedDataParallel(WithUnused().cuda(), find_unused_parameters=True)
    ddp(Perceptron.batch())
    weight = next(ddp.parameters())
    weight.sum().backward()
    weight.sum().backward()


def one_more(gpu, before=(0,), after=(0, 1)):
    ddp = DistributedDataParallel(TwoHeads().cuda(), static_graph=True)
    for ddp.module.used in (before, after):
        ddp(Perceptron.batch()).backward()
    ddp(Perceptron.batch())


def one_less(gpu):
    one_more(gpu, (0, 1), (0,))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (unused, "Parameter indices which did not receive grad for rank 2: 8 9"),
        (used_twice, "Parameter at index 0 with name layers.0.weight has been marked as ready twice"),
        (one_more, "Your training graph has changed in this iteration"),
        (one_less, "Parameter indices which did not receive grad for rank 2: 2 3"),
    ],
)
def test_errors_are_pytorchs(run, words):
    values, shapes = told(run)
    assert words in values
    assert shapes == values


def join(ddp):
    with ddp.join():
        ddp(Perceptron.batch())


@pytest.mark.parametrize(
    ("options", "use", "name"),
    [
        ({"lazy_bucket_allocation": True}, None, "lazy_bucket_allocation=True"),
        ({"mixed_precision": _MixedPrecision(param_dtype=torch.bfloat16)}, None, "mixed_precision= with parameters in"),
        ({}, join, r"join\(\)"),
        ({}, lambda ddp: setattr(ddp, "require_manual_backward_finalization", True), "require_manual_backward_final"),
    ],
)
def test_what_is_not_mirrored_on_shapes_alone_says_its_name(options, use, name):
    def run():
        ddp = DistributedDataParallel(Perceptron().cuda(), **options)
        use(ddp)

    wanted = {*options} | ({"lazy_bucket_allocation"} if "manual" in name else set())  # they came together
    if not wanted <= KNOWN.keys():
        pytest.skip(f"PyTorch {torch.__version__} has no such option")

    with ranks(4, False), pytest.raises(NotMirrored, match=name):
        run()


@pytest.mark.parametrize("compute", [True, False])
def test_a_module_on_several_gpus_is_refused_by_name(compute):
    with ranks(4, compute), pytest.raises(NotMirrored, match="a module on several GPUs"):
        DistributedDataParallel(nn.Sequential(nn.Linear(3, 3).to("cuda:0"), nn.Linear(3, 3).to("cuda:1")))


def test_nothing_is_left_of_a_reducer():
    with ranks(4, False):
        for _ in range(2):
            ddp = DistributedDataParallel(Perceptron().cuda())
            ddp(Perceptron.batch()).backward()
            del ddp
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # which PyTorch 2.11 keeps
            assert torch.cuda.memory_allocated() == 0


# -- real ranks ------------------------------------------------------------------------------------------------------


def two_ranks(folder, compute, unequal=False):
    script = Path(__file__).with_name("ddp_ranks.py")
    words = ["compute" if compute else "shapes", *(["unequal"] if unequal else [])]
    command = [*python_here(), str(script), str(folder), *words]
    subprocess.run(command, check=True, timeout=HANG_SECONDS, capture_output=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("compute", [True, False])
def test_two_real_ranks_see_each_collective_end_at_the_same_time(tmp_path, compute):
    (early, started, gradients), other = two_ranks(tmp_path, compute)
    late = other[0]
    ends = [[(name, round((start + took) * 1e9)) for name, start, took, *_ in spans] for spans in (early, late)]
    assert ends[0] == ends[1]
    assert [name.split()[0] for name, *_ in early].count("all_reduce") == 2
    # The kernel of who waits for the other is as much longer as it waits, and the bytes move in the same time.
    for (_, start, took, waited, _), (_, other_start, other_took, other_waited, _) in zip(early, late, strict=True):
        assert took - waited == pytest.approx(other_took - other_waited)
        assert start + waited == pytest.approx(other_start + other_waited)
        assert min(waited, other_waited) == pytest.approx(0, abs=1e-12)
    assert early[0][3] > 10 * (early[0][2] - early[0][3])  # rank 1 is late for the first of them
    if compute:
        assert other[1:] == [started, gradients]
        alone = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
        for parameter, value in zip(alone.parameters(), started, strict=True):
            parameter.data = torch.tensor(value)
        alone(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))).square().mean().backward()
        for parameter, value in zip(alone.parameters(), gradients, strict=True):
            torch.testing.assert_close(torch.tensor(value), parameter.grad)


@pytest.mark.slow
def test_ranks_with_other_shapes_are_told_so_on_shapes_alone(tmp_path):
    said = two_ranks(tmp_path, False, unequal=True)
    assert "params[4] in this process with sizes [4, 6] appears not to match sizes of the same param" in said[1]
