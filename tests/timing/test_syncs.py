"""Where the host waits for the GPU: the lines, the calls, how often, on a virtual GPU and by PyTorch's warnings."""

import threading
import warnings

import pytest
import torch

from gpulab import timing
from gpulab.timing import waits
from virtualgpu.gpu import VirtualGPU


def reads_often():
    x = torch.ones(512, 512, device="cuda")
    total = 0.0
    for _ in range(3):
        total += (x @ x).sum().item()
    if x.sum() > 3:
        total += float(x.mean())
    x.cpu()
    torch.ones(512, 512).to("cuda")
    torch.ones(512, 512).to("cuda", non_blocking=True)
    x @ x
    torch.cuda.synchronize()


def by_call(found):
    return {row.call: row.count for row in found}


@pytest.fixture
def values():
    with VirtualGPU("T4"):
        yield


def test_each_wait_has_its_line_and_its_call(values):
    found = timing.syncs(reads_often)
    assert [(row.call, row.count) for row in found] == [
        (".item()", 3),
        ("x.sum() > 3", 1),
        ("float()", 1),
        (".cpu()", 1),
        (".to(), pageable copy", 1),
        (".to(), pageable copy", 1),
        (".synchronize()", 1),
    ]
    assert len(found) == 9
    first = found.rows[0]
    assert first.code == "total += (x @ x).sum().item()"
    line = reads_often.__code__.co_firstlineno + 4
    assert first.line.endswith(f"test_syncs.py:{line}")
    assert found.numbers == "virtual"
    assert all(row.ms > 0 for row in found)
    assert found.ms == pytest.approx(sum(row.ms for row in found))


def test_the_milliseconds_are_those_of_the_clock(shapes):
    x = torch.ones(4096, 4096, device="cuda")

    def call():
        x @ x
        torch.cuda.synchronize()

    before = shapes.clock.waited
    found = timing.syncs(call)
    queued = shapes.clock.waited - before - found.ms / 1e3  # what was there before the call
    assert found.ms > 5  # 137 GFLOP at less than 8 TFLOP/s
    assert queued > 0


def test_a_call_that_does_not_wait(gpu):
    x = torch.ones(64, 64, device="cuda")
    pinned = torch.ones(64).pin_memory()
    found = timing.syncs(lambda: (x @ x, pinned.to("cuda", non_blocking=True)))
    assert (len(found), found.rows, found.ms) == (0, (), 0.0)
    assert not found
    assert str(found) == "the host waited for the GPU 0 times, 0.000 ms in all (virtual)"


def test_the_table_names_units_and_origin(values):
    x = torch.ones(8, device="cuda")
    head, names, row = str(timing.syncs(x.sum().item)).splitlines()
    assert head.startswith("the host waited for the GPU 1 time, 0.0")
    assert head.endswith(" ms in all (virtual)")
    assert names.split() == ["waits", "ms", "line", "call", "code"]
    assert row.split()[0] == "1"
    assert "x.sum().item" in row  # the innermost line of a program is the one that asks


def test_what_a_library_waits_for_is_the_line_that_calls_it(values):
    model = torch.nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(model(torch.ones(2, 4, device="cuda")).sum()).backward()

    def step():
        scaler.step(optimizer)
        scaler.update()

    (row,) = timing.syncs(step)
    assert (row.call, row.code, row.count) == (".step()", "scaler.step(optimizer)", 1)


def test_many_small_copies_are_counted_one_by_one(values):
    small = [torch.zeros(10) for _ in range(7)]

    def send():
        for x in small:
            x.to("cuda")
        for x in small:
            x.to("cuda", non_blocking=True)

    assert [row.count for row in timing.syncs(send)] == [7, 7]


def test_a_full_queue_is_told_as_such(shapes):
    x = torch.ones(2048, 2048, device="cuda")

    def many():
        for _ in range(1200):
            x @ x

    (row,) = timing.syncs(many)
    assert row.call == "the launch queue is full"
    assert row.count > 100


def test_pytorchs_warnings_give_the_same_places(values):
    """What a real GPU's call does, with the virtual one's warnings."""
    places = waits._Places(timed=False)
    torch.cuda.set_sync_debug_mode("default")
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with waits._warned(places):
            reads_often()
            warnings.warn("mine", stacklevel=1)
    found = waits.Syncs(places.rows(), "measured")
    assert by_call(found) == {".item()": 3, "x.sum() > 3": 1, "float()": 1, ".cpu()": 1, ".to()": 1}
    assert found.ms is None
    assert str(found).startswith("the host waited for the GPU 7 times (measured)\nwaits  line")
    assert [str(w.message) for w in others] == ["mine"]
    assert torch.cuda.get_sync_debug_mode() == 0


def test_the_mode_is_put_back_after_an_error(values):
    torch.cuda.set_sync_debug_mode("error")

    def fail():
        with waits._warned(waits._Places(timed=False)):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert torch.cuda.get_sync_debug_mode() == 2


def test_a_wait_of_another_thread_has_no_line_of_the_program(values):
    x = torch.ones(8, device="cuda")

    def call():
        thread = threading.Thread(target=x.sum().item)
        thread.start()
        thread.join()

    (row,) = timing.syncs(call)
    assert (row.line, row.code, row.count) == ("another thread", "", 1)


def test_code_without_a_text_has_the_name_of_its_wait(values):
    program = compile("x.sum().item()", "<generated>", "exec")
    x = torch.ones(8, device="cuda")
    (row,) = timing.syncs(lambda: exec(program, {"x": x}))
    assert (row.line, row.call) == ("<generated>:1", "copy to host, pinned")


def test_a_cell_is_called_a_cell():
    assert waits._shown("/tmp/ipykernel_123/456.py", 3) == "cell:3"


def test_exceptions_pass_and_wrong_inputs_are_told(values):
    with pytest.raises(KeyError, match="mine"):
        timing.syncs(lambda: {}["mine"])
    with pytest.raises(TypeError, match=r"write timing\.syncs\(lambda: step\(x\)\)"):
        timing.syncs(3)
    with pytest.raises(TypeError, match="function gave a generator"):
        timing.syncs(lambda: (i for i in range(3)))


def test_without_a_gpu(no_gpu):
    with pytest.raises(RuntimeError, match=r"timing\.syncs needs a GPU, and there is no GPU here"):
        timing.syncs(lambda: None)
