"""What goes wrong while a virtual GPU works: assertions in kernels, seen at the next wait, and memory that runs out."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from virtualgpu.gpu import VirtualGPU
from virtualgpu.operations import assertions

MiB, GiB = 1 << 20, 1 << 30

GATHERED = 'ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"'
SCATTERED = 'idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"'
# A call with an index out of range, and the condition that CUDA's kernel states.
FAULTS = {
    "cross_entropy": (lambda x: F.cross_entropy(x, ids(1, 9, 0, 0)), "t >= 0 && t < n_classes"),
    "cross_entropy of images": (
        lambda x: F.cross_entropy(x.expand(1, 4, 4, 4), ids(9, 0, 0, 0).expand(1, 4, 4)),
        "t >= 0 && t < n_classes",
    ),
    "nll_loss": (lambda x: F.nll_loss(x, ids(0, 1, 2, -1)), "t >= 0 && t < n_classes"),
    # Up to 16 ids have a kernel of their own; more are a gather, of 16 bytes at a time where the rows allow it.
    "embedding of 16 ids": (lambda x: F.embedding(ids(*range(1, 17)), x), "srcIndex < srcSelectDimSize"),
    "embedding": (lambda x: F.embedding(ids(*[4] * 17), x), GATHERED),
    "embedding of a batch of texts": (lambda x: F.embedding(ids(*[4] * 32).view(2, 16), x), GATHERED),
    "embedding of 12-byte rows": (lambda x: F.embedding(ids(*[4] * 17), x[:, :3].contiguous()), SCATTERED),
    "index_select of 16": (lambda x: x.index_select(0, ids(*[4] * 16)), "srcIndex < srcSelectDimSize"),
    "index_select": (lambda x: x.index_select(0, ids(*[4] * 17)), GATHERED),
    "index_select of columns": (lambda x: x.index_select(-1, ids(*[4] * 17)), SCATTERED),
    "gather": (lambda x: x.gather(1, ids(4)[None]), SCATTERED),
    "gather of rows": (lambda x: x.gather(0, ids(4, 4)[:, None].expand(2, 4)), GATHERED),
    "scatter": (lambda x: x.scatter(1, ids(4)[None], x), SCATTERED),
    "scatter of a number": (
        lambda x: x.scatter(1, ids(4)[None], 1.0),
        'idx_dim >= 0 && idx_dim < index_size && "index out of bounds"',
    ),
    "scatter_add": (lambda x: x.scatter_add(1, ids(4)[None], x), SCATTERED),
    "index": (lambda x: x[ids(4)], "-sizes[i] <= index && index < sizes[i]"),
    "index of rows": (lambda x: x[ids(4, 4)], GATHERED),
    "index of columns": (lambda x: x[:, ids(4, 4)], "-sizes[i] <= index && index < sizes[i]"),
    "assigned by index": (lambda x: x.__setitem__((ids(4), ids(0)), 0.0), "-sizes[i] <= index && index < sizes[i]"),
    "filled by index": (lambda x: x.index_fill(0, ids(4), 1.0), "idx >= -self_dim_size && idx < self_dim_size"),
    "index_copy": (lambda x: x.index_copy(0, ids(4), x[:1]), "idx >= 0 && idx < self_dim_size"),
    "put": (lambda x: x.put(ids(16), x[0, :1]), "idx < numel && idx >= -numel"),
    "embedding_bag": (lambda x: F.embedding_bag(ids(4)[None], x), "input[emb] < numRows"),
    "index_add": (lambda x: x.index_add(0, ids(4), x[:1]), "dstIndex < dstAddDimSize"),
    "take": (lambda x: x.take(ids(16)), "idx < numel && idx >= -numel"),
    "take from the end": (lambda x: x.take(ids(-17)), "idx < numel && idx >= -numel"),
    "index with a mask before it": (lambda x: x[None][mask(True), ids(4)], "-sizes[i] <= index && index < sizes[i]"),
    "index on the host": (lambda x: x[torch.tensor([-5])], "-sizes[i] <= index && index < sizes[i]"),
    "index_put": (
        lambda x: x.index_put((ids(4),), x[0], accumulate=True),
        "-sizes[i] <= index && index < sizes[i]",
    ),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, ids(-1)[None], x, "sum"), SCATTERED),
    "index_reduce": (lambda x: x.index_reduce(0, ids(4), x[:1], "prod"), "dstIndex < dstAddDimSize"),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, ids(0, 0, 0, 4)), "target_k >= 0 && target_k < dim"),
    "labels of a text, moved on by one": (
        lambda x: F.cross_entropy(x, F.pad(ids(0, 1, 2, 4), (0, 1), value=-100)[1:]),
        "t >= 0 && t < n_classes",
    ),
    "binary_cross_entropy": (
        lambda x: F.binary_cross_entropy(torch.full((4, 4), 2.0, device="cuda"), x),
        "input_val >= zero && input_val <= one",
    ),
}
WAITS = {
    "synchronize": lambda x: torch.cuda.synchronize(),
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "print": lambda x: print(x),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0, 0] > 0),
    "nonzero": lambda x: x.nonzero(),
    "another operation": lambda x: x + 1,
    "a new tensor": lambda x: torch.ones(3, device="cuda"),
    "empty_cache": lambda x: torch.cuda.empty_cache(),
    "a stream's query": lambda x: polled(torch.cuda.current_stream()),
    "an event's query": lambda x: polled(torch.cuda.current_stream().record_event()),
}
LATE = "CUDA kernel errors might be asynchronously reported at some other API call"


def ids(*values):
    return torch.tensor(values, device="cuda")


def mask(*values):
    return torch.tensor(values, device="cuda")


def polled(what):
    while not what.query():
        pass


@pytest.fixture
def x(monkeypatch):
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    with VirtualGPU("T4", count=2):
        yield torch.zeros(4, 4, device="cuda")


@pytest.fixture
def shape(monkeypatch):
    """`x` without values."""
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    with VirtualGPU("T4", compute=False):
        yield torch.zeros(4, 4, device="cuda")


@pytest.mark.parametrize("call", FAULTS)
def test_an_index_out_of_range_surfaces_at_the_next_wait(x, call, capfd):
    run, condition = FAULTS[call]
    run(x)
    line = capfd.readouterr().err
    assert re.search(r"block: \[0,0,0\], thread: \[\d+,0,0\] Assertion `.*` failed\.\n$", line)
    assert condition in line
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered") as raised:
        torch.cuda.synchronize()
    assert str(raised.value).startswith("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in ")
    assert LATE in str(raised.value)
    assert str(raised.value).endswith("For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n")


@pytest.mark.parametrize("wait", WAITS)
def test_after_a_failed_assertion_everything_on_that_gpu_fails(x, wait):
    F.embedding(ids(9), x)
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            WAITS[wait](x)


def test_the_other_gpu_and_the_next_scope_are_not_concerned(x):
    F.embedding(ids(9), x)
    assert (torch.ones(2, device="cuda:1") + 1).sum().item() == 4
    with VirtualGPU("T4"):
        assert torch.ones(2, device="cuda").sum().item() == 2


def test_with_launch_blocking_from_the_start_the_call_itself_raises(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with VirtualGPU("T4"), pytest.raises(torch.AcceleratorError, match="device-side assert triggered") as raised:
        F.cross_entropy(torch.zeros(4, 4, device="cuda"), ids(1, 9, 0, 0))
    assert LATE not in str(raised.value)


def test_launch_blocking_is_read_when_cuda_starts_and_not_again(x, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    F.cross_entropy(x, ids(1, 9, 0, 0))
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        torch.cuda.synchronize()


def test_a_bad_label_in_training_shows_at_the_loss_that_is_read(x):
    model = nn.Linear(4, 3).cuda()
    loss = F.cross_entropy(model(x), ids(0, 1, 2, 3))
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        loss.backward()
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        loss.item()


def test_an_index_on_the_host_is_the_hosts_error(x):
    with pytest.raises(IndexError, match="out of"):
        F.embedding(torch.tensor([9]), torch.zeros(4, 4))
    torch.cuda.synchronize()


def test_an_ignored_label_is_no_fault(x):
    F.cross_entropy(x, ids(-100, 1, 2, 3)).item()


@pytest.mark.parametrize("call", FAULTS)
def test_on_shapes_alone_an_index_that_is_known_is_asked_too(shape, call, capfd):
    run, condition = FAULTS[call]
    run(shape)
    assert condition in capfd.readouterr().err
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        torch.cuda.synchronize()


WITHIN = {
    "cross_entropy": lambda x: F.cross_entropy(x, ids(-100, 1, 2, 3)),
    "cross_entropy that ignores another": lambda x: F.cross_entropy(x, ids(9, 1, 2, 3), ignore_index=9),
    "embedding": lambda x: F.embedding(ids(0, 3), x),
    "no ids": lambda x: F.embedding(torch.empty(0, dtype=torch.long, device="cuda"), x),
    "from the end": lambda x: x[:, ids(-4)],
    "take": lambda x: x.take(ids(-16, 15)),
    "scatter of a number": lambda x: x.scatter(1, ids(3)[None], 1.0),
    "a mask and an index": lambda x: x.expand(9, 4, 4)[torch.ones(9, 4, dtype=torch.bool, device="cuda"), ids(3)],
    "of one number": lambda x: x[0, 0].gather(0, ids(0)[0]),
}


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("call", WITHIN)
def test_an_index_within_its_range_is_no_fault(call, compute, capfd):
    with VirtualGPU("T4", compute=compute):
        WITHIN[call](torch.zeros(4, 4, device="cuda"))
        torch.cuda.synchronize()
    assert not capfd.readouterr().err


def test_on_shapes_alone_what_nobody_knows_is_within_its_range(shape):
    drawn = torch.randint(90, (4,), device="cuda")
    F.cross_entropy(shape, drawn)
    F.embedding(drawn, shape)
    shape[drawn], shape.gather(0, drawn[None])
    F.binary_cross_entropy(shape + 2, shape)
    torch.cuda.synchronize()


def test_every_assertion_has_failed_here(shape, monkeypatch):
    own, met = assertions.condition, set()

    def condition(func, *given):
        met.add(func._schema.name.removeprefix("aten::").rstrip("_"))
        return own(func, *given)

    monkeypatch.setattr(assertions, "condition", condition)
    for run, _ in FAULTS.values():
        with VirtualGPU("T4", compute=False):
            run(torch.zeros(4, 4, device="cuda"))
    others = {"_embedding_bag", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"}  # alike with those of the name
    assert assertions._ASSERTIONS.keys() - met == others


# -- memory ----------------------------------------------------------------------------------------------------------

TEXT = re.compile(
    r"CUDA out of memory\. Tried to allocate (?P<tried>[\d.]+ \w+)\. GPU (?P<gpu>\d) has a total capacity of "
    r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free\. Including non-PyTorch memory, this process has "
    r"(?P<process>[\d.]+ \w+) memory in use\. (?:(?P<allowed>[\d.]+ \w+) allowed; )?Of the allocated memory "
    r"(?P<allocated>[\d.]+ \w+) is allocated by PyTorch, and (?P<unallocated>[\d.]+ \w+) is reserved by PyTorch but "
    r"unallocated\. If reserved but unallocated memory is large try setting "
    r"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation\."
)


def size(nbytes):
    """As PyTorch's allocator writes it."""
    for unit, name in ((GiB, "GiB"), (MiB, "MiB"), (1024, "KiB")):
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


def fields(error):
    found = TEXT.match(str(error.value))
    assert found, str(error.value)
    return found.groupdict()


@pytest.mark.parametrize("gpu", ["T4", "A100-80"])
def test_the_text_has_the_numbers_of_the_moment(gpu):
    with VirtualGPU(gpu, compute=False, count=2):
        free, total = torch.cuda.mem_get_info(1)
        context = total - free
        held = [torch.empty(3 * GiB // 2, dtype=torch.uint8, device="cuda:1") for _ in range(4)]
        del held[0], held[1]
        allocated, reserved = torch.cuda.memory_allocated(1), torch.cuda.memory_reserved(1)
        assert (allocated, reserved) == (3 * GiB, 6 * GiB)
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total, dtype=torch.uint8, device="cuda:1")
        assert fields(raised) == {
            "tried": size(-(-total // (2 * MiB)) * 2 * MiB),
            "gpu": "1",
            "total": size(total),
            # What was cached has been given back before it gave up.
            "free": size(total - context - allocated),
            "process": size(context + allocated),
            "allowed": None,
            "allocated": size(allocated),
            "unallocated": "0 bytes",
        }
        statistics = torch.cuda.memory_stats(1)
        assert (statistics["num_ooms"], statistics["num_alloc_retries"]) == (1, 1)
        assert torch.cuda.memory_stats(0)["num_ooms"] == 0
        assert isinstance(raised.value, RuntimeError)


def step(model, optimizer, batch):
    images = torch.zeros(batch, 256, device="cuda")
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("compute", [True, False], ids=["values", "shapes"])
def test_training_goes_on_with_a_smaller_batch(compute):
    with VirtualGPU("T4", compute=compute):
        torch.cuda.set_per_process_memory_fraction(64 * MiB / torch.cuda.get_device_properties(0).total_memory)
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer, 16)
        before = torch.cuda.memory_allocated()
        batch, texts = 16384, []
        while batch:
            try:
                step(model, optimizer, batch)
            except torch.OutOfMemoryError as error:
                texts.append(str(error))
            else:
                break
            optimizer.zero_grad()
            assert torch.cuda.memory_allocated() == before
            batch //= 2
        assert len(texts) > 1
        assert all(" 64.00 MiB allowed; " in text for text in texts)
        assert batch >= 1024
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.max_memory_reserved() <= 64 * MiB
        assert torch.cuda.memory_stats()["num_ooms"] == len(texts)


def test_a_fraction_of_the_memory_is_all_there_is():
    with VirtualGPU("T4", compute=False):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        held = torch.empty(total // 8, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(total // 4, dtype=torch.uint8, device="cuda")
        assert fields(raised)["allowed"] == size(int(total * 0.25))
        torch.cuda.set_per_process_memory_fraction(1.0)
        more = torch.empty(total // 4, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() >= held.nbytes + more.nbytes
