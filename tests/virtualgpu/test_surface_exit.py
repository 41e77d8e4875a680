"""After a scope, PyTorch is what it was: every attribute the identical object, no mode left in any thread."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from courselib.patience import HANG_SECONDS

from virtualgpu.planning import plan
from virtualgpu.scope import in_force

from .surface_scope import scope

CLASSES = (
    torch.Tensor,
    torch.UntypedStorage,
    torch.TypedStorage,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.Generator,
    torch.Stream,
    torch.optim.Optimizer,
    threading.Thread,
)


def everything():
    """The attributes of all of PyTorch's modules, and of the classes that are patched."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"}
    owners = {**modules, **{f"class {owner.__name__}": owner for owner in CLASSES}}
    found = {(name, key): value for name, owner in owners.items() for key, value in dict(vars(owner)).items()}
    return {place: value for place, value in found.items() if place[1] != "__slotnames__"}  # pickling leaves these


def changed(before):
    """What is another object than before, or has come or gone; modules loaded since then do not count."""
    after = everything()
    new = {key for key in after.keys() - before.keys() if not isinstance(after[key], type(sys))}
    new = {key for key in new if (key[0], "__name__") in before or key[0].startswith("class ")}
    return sorted(
        before.keys() - after.keys() | new | {k for k in before.keys() & after.keys() if before[k] is not after[k]}
    )


def modes():
    return torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()


def use():
    """A bit of everything that is replaced."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda", dtype=torch.float16):
        model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    torch.cuda.manual_seed_all(1)
    torch.cuda.get_rng_state_all()
    torch.cuda.memory_summary()
    torch.cuda.synchronize()
    with torch.device("cuda"), torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(3)


@pytest.fixture(autouse=True)
def nothing_is_left():
    with scope():
        use()  # what PyTorch loads and remembers on first use is loaded
    before, count = everything(), modes()
    yield
    while in_force.current is not None:
        in_force.current.stop()
    assert changed(before) == []
    assert modes() == count
    assert not in_force.thread.inside
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.AutocastPrivateUse1)
    assert torch.ones(2).device.type == "cpu"


@pytest.mark.parametrize("options", [{}, {"compute": False}, {"count": 3}, {"mirror": False}], ids=str)
def test_a_scope_puts_back_the_identical_objects(options):
    before = everything()
    with scope(**options):
        assert changed(before)
        use()


def test_an_exception_ends_it_as_well():
    def fail():
        use()
        return 1 / 0

    with pytest.raises(ZeroDivisionError), scope():
        fail()


def test_an_exception_inside_an_operation_ends_it_as_well():
    with pytest.raises(RuntimeError, match="size"), scope():
        torch.ones(2, device="cuda") + torch.ones(3, device="cuda")


def test_a_failure_while_it_starts_leaves_nothing(monkeypatch):
    from virtualgpu.surface import tensors

    def fail(patches):
        raise OSError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "install", fail)
        with pytest.raises(OSError, match="in the middle"):
            scope().start()


def test_nested_scopes_replace_the_outer_one_for_a_while():
    with scope() as outer:
        kept = torch.ones(100, device="cuda")
        before = torch.cuda.memory_allocated()
        attributes = everything()
        with scope(count=2, compute=False) as inner:
            assert in_force.current is inner
            assert torch.cuda.device_count() == 2
            assert torch.cuda.memory_allocated() == 0
            use()
        assert in_force.current is outer
        assert torch.cuda.device_count() == 1
        assert torch.cuda.memory_allocated() == before
        assert kept.is_cuda
        # The functions are made anew for the outer scope; PyTorch's own are still kept beneath them.
        assert {key for key, _ in changed(attributes)} <= {key for key, _ in attributes}
        use()


def test_the_current_device_and_stream_are_of_their_scope():
    with scope(count=2):
        torch.cuda.set_device(1)
        side = torch.cuda.Stream()
        torch.cuda.set_stream(side)
        with scope(compute=False):
            assert torch.cuda.current_device() == 0
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == side
        plan(lambda batch: lambda: torch.ones(batch, device="cuda"), batch=1)
        assert torch.cuda.current_stream() == side
    with scope(count=2):
        assert torch.cuda.current_device() == 0
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


def test_a_thread_that_outlives_a_scope_begins_anew_in_the_next():
    with ThreadPoolExecutor(1) as one:
        with scope(count=2):
            one.submit(torch.cuda.set_device, 1).result()
            assert one.submit(torch.cuda.current_device).result() == 1
            assert torch.cuda.current_device() == 0
        with scope():
            assert one.submit(torch.ones, 1, device="cuda").result().device.index == 0


def test_an_outer_scope_cannot_end_before_its_inner_one():
    outer, inner = scope().start(), scope().start()
    with pytest.raises(RuntimeError, match="cannot end before"):
        outer.stop()
    use()
    inner.stop()
    use()
    outer.stop()


def test_a_second_start_is_an_error_and_a_second_stop_is_none():
    gpu = scope().start()
    with pytest.raises(RuntimeError, match="already in force"):
        gpu.start()
    gpu.stop()
    gpu.stop()


def test_a_scope_can_be_entered_again():
    gpu = scope()
    for _ in range(2):
        with gpu:
            assert torch.cuda.memory_allocated() == 0
            use()


def test_tensors_of_a_scope_that_has_ended_are_the_hosts():
    with scope():
        x = torch.ones(3, device="cuda", requires_grad=True)
        y = x * 2
    assert x.device.type == y.device.type == "cpu"
    assert y.tolist() == [2, 2, 2]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    with scope():
        assert not x.is_cuda
        assert x.cuda().is_cuda
        assert torch.cuda.memory_allocated() == 512 * 0
    del x, y
    gc.collect()


# -- threads ---------------------------------------------------------------------------------------------------------


def in_thread(work):
    """What `work` gives in a new thread; its error is raised here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=HANG_SECONDS)


def test_operations_in_a_new_thread_are_seen():
    def work():
        x = torch.ones(1000, device="cuda")
        return x, x.is_cuda, torch.cuda.memory_allocated()

    with scope():
        x, on_gpu, allocated = in_thread(work)
        assert on_gpu
        assert allocated == torch.cuda.memory_allocated() == 4096
        assert in_thread(modes)[0] == 1
        del x
        assert torch.cuda.memory_allocated() == 0
    assert in_thread(modes) == (0, 0)


def test_a_thread_pool_sees_the_gpu_in_all_its_threads():
    def work(n):
        with torch.cuda.device(0):
            x = torch.full((256,), float(n), device="cuda", requires_grad=True)
            (x * x).sum().backward()
            return float(x.grad[0])

    with scope(), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(32))) == [2.0 * n for n in range(32)]
        assert torch.cuda.memory_allocated() == 0


def test_a_thread_that_outlives_the_scope_goes_on_without_it():
    ended, result = threading.Event(), []

    def work():
        x = torch.ones(3, device="cuda")
        ready.set()
        ended.wait(60)
        try:
            result.append((x.device.type, (x + 1).tolist(), torch.zeros(2).device.type, modes()))
        except BaseException as error:
            result.append(error)

    ready = threading.Event()
    with scope():
        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(60)
    ended.set()
    thread.join(60)
    assert result == [("cpu", [2, 2, 2], "cpu", result[0][3])]


@pytest.mark.parametrize("ask", ["init", "synchronize"])
def test_a_thread_from_before_the_scope_sees_it_once_it_asks_for_the_gpu(ask):
    begin, result = threading.Event(), []

    def work():
        begin.wait(60)
        getattr(torch.cuda, ask)()
        result.append((torch.ones(3, device="cuda") + 1).is_cuda)
        end.wait(60)
        result.append(torch.ones(3).device.type)

    end = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    with scope():
        begin.set()
        while not result and thread.is_alive():
            thread.join(0.01)
    end.set()
    thread.join(60)
    assert result == [True, "cpu"]


def test_a_thread_of_one_scope_serves_the_next():
    work = []
    with ThreadPoolExecutor(1) as pool:
        for compute in (True, False, True):
            with scope(compute=compute):
                work.append(
                    pool.submit(lambda: (torch.ones(3, device="cuda").is_cuda, modes())).result(timeout=HANG_SECONDS)
                )
        assert pool.submit(lambda: torch.ones(3).device.type).result(timeout=HANG_SECONDS) == "cpu"
    assert [seen for seen, _ in work] == [True, True, True]


def test_a_scope_may_begin_and_end_in_another_thread_than_the_first():
    def work():
        with scope():
            use()
            return modes()

    assert in_thread(work) == (1, 0)


def test_the_current_device_belongs_to_the_thread():
    with scope(count=2):
        torch.cuda.set_device(1)
        assert in_thread(torch.cuda.current_device) == 0
        assert torch.ones(1, device="cuda").device.index == 1
        torch.cuda.set_device(0)
