"""Whatever watches a program keeps none of it alive: what the program drops is gone at once, and its memory with it."""

import contextlib
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import gpulab
from gpulab import memory, monitor
from virtualgpu.gpu import VirtualGPU
from virtualgpu.running import target
from virtualgpu.running.session import Session
from virtualgpu.scope import in_force


@contextlib.contextmanager
def memory_history():
    torch.cuda.memory._record_memory_history(stacks="python", context=None)
    yield
    torch.cuda.memory._record_memory_history(None)


@contextlib.contextmanager
def sanitizer():
    from torch.cuda import _sanitizer

    _sanitizer.enable_cuda_sanitizer()
    yield
    _sanitizer.cuda_sanitizer.disable()


@contextlib.contextmanager
def gpulab_run():
    """What `python -m gpulab run` puts around a script."""
    session = Session(target.script_target(__file__), None, keep=False)
    session.gpu = VirtualGPU("T4", counts_host=True)
    with torch.random.fork_rng(devices=[]):
        session.begin()
        try:
            yield
            session.report()
        finally:
            session.close()


WATCHERS = {
    "run": gpulab_run,
    "tracker": memory.GPUMemoryTracker,
    "timeline": memory.timeline,
    "clock": lambda: in_force.current.timeline(),
    "monitor": lambda: monitor.watch(every=0.05),
    "profiler": lambda: torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True),
    "history": memory_history,
    "sanitizer": sanitizer,
}


def train(steps=4):
    """A small training run; weak references to what it made."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = iter(DataLoader(torch.randn(8 * steps, 1, 8, 8), batch_size=8, generator=torch.Generator()))
    for images in loader:
        loss = model(images.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    made = {"model": model, "weight": model[0].weight, "buffer": model[1].running_mean, "loss": loss}
    made |= {"optimizer": optimizer, "state": optimizer.state[model[0].weight]["exp_avg"]}
    made |= {"batch": images, "loader": loader, "generator": loader._base_seed and loader._sampler_iter}
    schedule.optimizer = None  # a cycle of PyTorch's own
    optimizer.step = None
    return {name: weakref.ref(thing) for name, thing in made.items()}


@pytest.mark.parametrize("name", WATCHERS)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_what_a_program_drops_is_gone_while_it_is_watched(name, steps):
    outer = contextlib.nullcontext() if name == "run" else VirtualGPU("T4")
    with outer, WATCHERS[name]():
        gc.collect()
        before = torch.cuda.memory_allocated()
        alive = train(steps)
        gc.collect()
        assert [what for what, thing in alive.items() if thing() is not None] == []
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == before


def runs_out():
    kept = torch.ones(4 << 20, device="cuda")
    try:
        torch.ones(1 << 40, device="cuda")
    except torch.OutOfMemoryError:
        return kept.nbytes


@pytest.mark.parametrize("name", WATCHERS)
def test_variables_go_with_the_function_that_drops_them(name):
    """A watcher that reads the stack leaves no copy of its variables there, nor one that looks where memory ran out."""
    outer = contextlib.nullcontext() if name == "run" else VirtualGPU("T4")
    held = []
    with outer, WATCHERS[name](), torch.no_grad():
        layer = nn.Linear(1024, 1024, bias=False).cuda()
        layer.register_forward_hook(lambda layer, given, out: out.clone())
        layer.register_forward_hook(lambda *_: held.append(torch.cuda.memory_allocated()))
        given = torch.ones(4096, 1024, device="cuda")
        layer(given)  # makes cuBLAS's workspace
        before = torch.cuda.memory_allocated()
        gc.collect()
        gc.disable()
        try:
            out = layer(given)
            assert held[-1] == before + out.nbytes
            del out
            runs_out()
            assert torch.cuda.memory_allocated() == before
        finally:
            gc.enable()


def test_it_needs_no_garbage_collection_either():
    with gpulab_run():
        gc.collect()
        gc.disable()
        try:
            layer = nn.Linear(64, 64).cuda()
            optimizer = torch.optim.AdamW(layer.parameters())
            for _ in range(3):
                layer(torch.ones(1, 64, device="cuda")).sum().backward()
                optimizer.step()
            alive = [weakref.ref(thing) for thing in (layer, layer.weight, optimizer)]
            del layer, optimizer
            assert [thing() for thing in alive] == [None] * 3
        finally:
            gc.enable()


def test_a_plan_keeps_nothing_that_build_made():
    alive = []

    def build(batch):
        model = nn.Linear(32, 32).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        alive.extend(weakref.ref(thing) for thing in (model, model.weight, optimizer))

        def step():
            model(torch.randn(batch, 32, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    plan = gpulab.plan(build, batch=4, gpu="T4")
    gc.collect()
    assert plan.batch == 4
    assert [thing() for thing in alive] == [None] * len(alive)
