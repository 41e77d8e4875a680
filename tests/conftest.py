"""The same examples, inputs and random numbers in every run; virtual GPUs for tests that ask only what torch.cuda says.

`make explore` draws all of these afresh: it gives `--hypothesis-profile=explore`, GPULAB_CHECK_SEED, and by
GPULAB_EXAMPLES how many times as many examples.
"""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

# No test is about time: a slow machine must not fail one.
hypothesis.settings.register_profile("gpulab", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, derandomize=False, database=None, print_blob=True)
hypothesis.settings.load_profile("gpulab")


def _of_no_module():
    """Hypothesis draws some numbers and texts from the source of every module of ours that is imported by then: which
    those are hangs on the tests that ran before in this process. Where it explores, it may."""
    own = getattr(providers, "_get_local_constants", None)
    if own is None:  # before 6.131 it did not
        return
    none = providers.Constants()

    def get():
        return own() if hypothesis.settings.get_current_profile_name() == "explore" else none

    providers._get_local_constants = get


_of_no_module()

# A suite that a shell has started in the background ignores Ctrl-C, and so would all that it starts.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What checks draw their inputs with; processes that a test starts have it too.
os.environ.setdefault("GPULAB_CHECK_SEED", "0")


def pytest_collection_modifyitems(items):
    """More examples of every property, also of those that say how many they take."""
    times = float(os.environ.get("GPULAB_EXAMPLES", "1"))
    if hypothesis.settings.get_current_profile_name() != "explore" or times == 1:
        return
    held = "_hypothesis_internal_use_settings"  # tests/test_examples.py looks whether this takes hold
    for test in {item.function for item in items if hasattr(getattr(item, "function", None), held)}:
        own = getattr(test, held)
        setattr(test, held, hypothesis.settings(own, max_examples=max(1, round(times * own.max_examples))))


def _counted_once():
    """Python counts what is frozen one by one, in up to half a second here, and every plan asks whether there is any:
    until the next `gc.unfreeze()` there is, once there was, and what is told is the number then."""
    own = {name: getattr(gc, name) for name in ("get_freeze_count", "freeze", "unfreeze")}
    known = []

    def get_freeze_count():
        if not known:
            known.append(own["get_freeze_count"]())
        return known[0]

    def freeze():
        if known and known[0] < 10_000:  # what Python 3.12 freezes as it starts
            known.clear()
        own["freeze"]()

    def unfreeze():
        known.clear()
        own["unfreeze"]()

    gc.get_freeze_count, gc.freeze, gc.unfreeze = get_freeze_count, freeze, unfreeze


_counted_once()

gc.disable()  # while tests are collected, half of the time would go to looking through torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def quick_to_collect():
    """What is there by now stays: a collection then looks through a module's own objects, and not through all of
    torch's, which takes half a second each time; answers of students call gc.collect() in loops, and a plan asks for
    all objects again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    gc.unfreeze()  # what ends with the process looks for its objects


@pytest.fixture(autouse=True)
def the_same_random_numbers():
    """Whatever ran before."""
    seed = int(os.environ["GPULAB_CHECK_SEED"])
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


@pytest.fixture(autouse=True, scope="module")
def nothing_of_a_virtual_gpu_stays(request):
    # Set up first, so that the module's other fixtures are undone before it looks.
    yield
    if "virtualgpu.scope.in_force" in sys.modules:
        import torch

        from virtualgpu.scope import in_force

        name = request.module.__name__
        assert in_force.current is None, f"{name} leaves {in_force.current!r} in force"
        assert torch.cuda.is_available.__module__ == "torch.cuda", f"{name} leaves torch.cuda changed"


@pytest.fixture(params=[True, False], ids=["values", "shapes"])
def gpu(request):
    """A virtual GPU in both of its modes."""
    from virtualgpu.gpu import VirtualGPU

    with VirtualGPU("T4", compute=request.param) as scope:
        yield scope


@pytest.fixture
def shapes():
    from virtualgpu.gpu import VirtualGPU

    with VirtualGPU("T4", compute=False) as scope:
        scope.devices[0].timer.budget = None  # no power limit: one measurement does not hang on those before it
        yield scope


@pytest.fixture
def two_gpus():
    from virtualgpu.gpu import VirtualGPU

    with VirtualGPU("T4", count=2, compute=False) as scope:
        for device in scope.devices:
            device.timer.budget = None  # as above
        yield scope


@pytest.fixture
def no_gpu(monkeypatch):
    """A machine without any accelerator, whatever this one has."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)


@pytest.fixture
def on_torch_cuda(tmp_path):
    """Run a script on PyTorch's own CUDA code, above a driver that answers and does nothing; returns what it prints."""
    import torch
    from courselib.patience import HANG_SECONDS

    torch_version = tuple(map(int, torch.__version__.split(".")[:2]))
    if sys.platform != "linux" or torch.version.cuda is None or torch_version < (2, 15) or not shutil.which("gcc"):
        pytest.skip("needs Linux, gcc and a CUDA build of torch with the headers of 2.15")

    def run(script, capability):
        tools = str(Path(__file__).parent / "virtualgpu" / "torch_cuda")
        sys.path.insert(0, tools)
        try:
            import stand_in

            environment = stand_in.environment(stand_in.build(tmp_path), capability) | {"OMP_NUM_THREADS": "1"}
        finally:
            sys.path.remove(tools)
        path = tmp_path / "script.py"
        path.write_text(script, encoding="utf-8")
        command = [sys.executable, "-W", "ignore", str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def check_picture():
    """Hold an SVG document to what every picture has to keep to."""
    from .pictures_read import check_picture

    return check_picture


@pytest.fixture(scope="session")
def contrast():
    """WCAG 2's contrast ratio of two colours."""
    from .pictures_read import contrast

    return contrast
