"""torch.cuda and torch.accelerator: memory, its limits and its history, streams, events, random numbers."""

import inspect
import io
import pickle
import subprocess
import sys
import warnings

import pytest
import torch

import gpulab
from virtualgpu.scope.refusals import NotMirrored
from virtualgpu.surface.cuda import REFUSED

from .surface_scope import scope

ARGUMENTS = {"fraction": 0.5, "size": 64, "mem_ptr": 0, "seed": 1, "seeds": [1], "debug_mode": 0, "mib": 1, "res": 0}
ARGUMENTS |= {"peer_device": 0, "callables": [], "sample_args": [], "stream": None, "data_ptr": 1, "tensor": None}
# What PyTorch says where there is no GPU, or where something else than a GPU has reached its C++.
DRIVER = ("driver", "no cuda", "not compiled", "not available", "initialized with non-cuda", "insufficient", "nvml")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def public():
    modules = (torch.cuda, torch.accelerator, torch.cuda.memory, torch.cuda.random, torch.cuda.nvtx, torch.cuda.amp)
    for module in modules:
        for name in getattr(module, "__all__", dir(module)):
            if not name.startswith("_") and callable(getattr(module, name, None)):
                yield f"{module.__name__}.{name}"


@pytest.mark.parametrize("name", sorted(set(public())))
def test_a_public_function_answers_or_names_itself_and_never_asks_the_driver(name):
    module, _, last = name.rpartition(".")
    with scope():
        function, refused = getattr(sys.modules[module], last), []
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            parameters = ()
        needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        arguments = [ARGUMENTS.get(p.name) for p in needed]
        if last in ("set_rng_state", "set_rng_state_all"):
            arguments = [getattr(torch.cuda, last.replace("set", "get"))()]
        said = ""
        try:
            function(*arguments)
        except NotMirrored as error:
            said = str(error)
            refused.append(error)
        except Exception as error:
            said = f"{type(error).__name__}: {error}".lower()
    assert not [word for word in DRIVER if word in said and not refused], said
    assert not refused or "not mirrored by the virtual GPU" in said


@pytest.mark.parametrize("name", [n for names in REFUSED["torch.cuda"].values() for n in names.split()])
def test_what_is_not_mirrored_says_so_by_name(gpu, name):
    with pytest.raises(NotMirrored, match=f"not mirrored.*{name}"):
        getattr(torch.cuda, name)()


def test_classes_that_are_not_mirrored_stay_classes(gpu):
    assert isinstance(torch.cuda.memory.CUDAPluggableAllocator, type)
    assert not isinstance(None, torch.cuda.CUDAGraph | torch.cuda.memory.CUDAPluggableAllocator)
    with pytest.raises(NotMirrored, match="CUDAPluggableAllocator"):
        type("Mine", (torch.cuda.memory.CUDAPluggableAllocator,), {})()


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_counts_agree_with_the_statistics(gpu):
    kept = [torch.empty(n, device="cuda") for n in (1, 1000, 300_000, 3_000_000)]
    torch.empty(9_000_000, device="cuda")
    stats = torch.cuda.memory_stats()
    for name, key in (
        ("memory_allocated", "allocated_bytes.all.current"),
        ("max_memory_allocated", "allocated_bytes.all.peak"),
        ("memory_reserved", "reserved_bytes.all.current"),
        ("max_memory_reserved", "reserved_bytes.all.peak"),
    ):
        counts = {getattr(torch.cuda, name)(device) for device in (None, 0, "cuda", "cuda:0", torch.device("cuda", 0))}
        assert counts == {stats[key]} == {getattr(torch.accelerator, name)()}
    assert torch.cuda.memory_allocated() == 512 + 4096 + 1_200_128 + 12_000_256
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() + 36_000_256
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.device_memory_used() == torch.cuda.memory_reserved() + (300 << 20)
    assert torch.cuda.get_device_properties(0).total_memory == total
    view = kept.pop()[:10].view(-1)  # it holds the whole storage
    assert torch.cuda.memory_allocated() == 512 + 4096 + 1_200_128 + 12_000_256
    del kept, view
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_the_nested_statistics_are_the_flat_ones(gpu):
    kept = torch.ones(5, device="cuda")
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["small_pool"]["current"] == 512
    assert torch.cuda.memory_stats()["allocated_bytes.small_pool.current"] == 512
    assert list(torch.cuda.memory_stats()) == sorted(torch.cuda.memory_stats())
    del kept


def test_the_summary_has_the_numbers(gpu):
    kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    summary = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in summary
    assert "3072 KiB" in summary
    assert "CUDA OOMs: 0" in summary
    assert len(torch.cuda.memory_summary(abbreviated=True)) < len(summary)
    del kept


def test_memory_can_be_taken_by_hand(gpu):
    address = torch.cuda.caching_allocator_alloc(1000)
    assert address % 512 == 0
    assert torch.cuda.memory_allocated() == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


def test_processes_are_this_one(gpu):
    torch.ones(1, device="cuda")
    first, second = torch.cuda.list_gpu_processes().splitlines()
    assert first == "GPU:0"
    assert second.endswith("uses      302.000 MB GPU memory")


def test_the_allocators_settings_stay(gpu):
    torch._C._accelerator_setAllocatorSettings("")
    with pytest.raises(NotMirrored, match="max_split_size_mb:100"):
        torch._C._accelerator_setAllocatorSettings("max_split_size_mb:100")


# -- the history of memory -------------------------------------------------------------------------------------------


def record_one_step():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    kept = torch.ones(1000, device="cuda")
    gone = torch.ones(3 << 20, device="cuda")
    del gone
    torch.cuda.empty_cache()
    return kept


def test_what_backward_allocates_has_no_line_of_the_program_as_on_cuda(gpu):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = Twice.apply(x.exp()).sum()
    torch.cuda.memory._record_memory_history(stacks="python")
    y.backward()
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    stacks = [[frame["name"] for frame in event["frames"]] for event in events if event["action"] == "alloc"]
    assert [] in stacks
    assert any(stack[:1] == ["backward"] for stack in stacks)  # but those of an operation written in Python
    own = [stack for stack in stacks if any(name.startswith("test_what") for name in stack)]
    assert [stack[0] for stack in own] == ["_make_grads"]  # the gradient of y itself, made before the engine starts


def test_a_snapshot_is_an_event_of_the_next_one(gpu):
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = torch.ones(1000, device="cuda")
    first, second = (torch.cuda.memory._snapshot()["device_traces"][0] for _ in range(2))
    torch.cuda.memory._record_memory_history(None)
    assert [event["action"] for event in second[len(first) :]] == ["snapshot"]
    assert second[-1]["size"] == 4096 == torch.cuda.memory_allocated() == kept.nbytes + 96


def test_the_history_has_every_event_with_its_stack(gpu):
    kept = record_one_step()
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    actions = [event["action"] for event in events]
    assert actions == [
        "segment_alloc",
        "alloc",
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
    ]
    frames = events[1]["frames"]
    assert (frames[0]["name"], frames[0]["filename"]) == ("record_one_step", __file__)
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    assert segment["blocks"][0]["frames"] == frames
    assert segment["blocks"][0]["requested_size"] == 4000
    assert segment["blocks"][0]["address"] == kept.data_ptr()
    torch.cuda.memory._record_memory_history(None)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]


def test_a_second_call_goes_on_with_the_history_unless_it_is_told_to_clear_it(gpu):
    record_one_step()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    assert torch.cuda.memory._snapshot()["device_traces"][0]
    if "clear_history" in inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters:
        torch.cuda.memory._record_memory_history(max_entries=1000, clear_history=True)
        assert torch.cuda.memory._snapshot()["device_traces"] == [[]]


def test_the_history_keeps_the_last_entries_only(gpu):
    torch.cuda.memory._record_memory_history(max_entries=3)
    for _ in range(5):
        torch.ones(3, device="cuda")
    (events,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [event["action"] for event in events] == ["alloc", "free_requested", "free_completed"]


def test_an_out_of_memory_error_is_in_the_history(gpu):
    torch.cuda.memory._record_memory_history()
    torch.cuda.set_per_process_memory_fraction(0.01)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 28, device="cuda")
    event = torch.cuda.memory._snapshot()["device_traces"][0][-1]
    assert event["action"] == "oom"
    assert event["size"] == 1 << 30
    assert event["device_free"] == torch.cuda.mem_get_info()[0]


def test_pytorchs_viewer_opens_the_snapshot(tmp_path):
    from torch.cuda._memory_viz import segment_plot, trace, trace_plot

    with scope():
        kept = record_one_step()
        file = tmp_path / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(file))
        found = pickle.loads(file.read_bytes())
        assert "cudaMalloc" in trace(found)
        assert "12.0MiB" in trace(found)
        assert "MemoryViz" in segment_plot(found)
        del kept
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(file), "-o", str(page)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    assert page.read_text() == trace_plot(found)


# -- streams ----------------------------------------------------------------------------------------------------


def test_streams_nest_and_have_memory_of_their_own(gpu):
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert first != second
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.stream(first):
        assert torch.cuda.current_stream() == first
        with torch.cuda.stream(second):
            assert torch.cuda.current_stream() == second
            kept = torch.ones(3, device="cuda")
        assert torch.cuda.current_stream() == first
        also = torch.ones(3, device="cuda")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert {s["stream"] for s in torch.cuda.memory_snapshot()} == {first.stream_id, second.stream_id}
    assert second.priority == -1
    assert isinstance(first, torch.Stream)
    first.wait_stream(second)
    torch.cuda.current_stream().wait_event(second.record_event())
    kept.record_stream(first)
    first.synchronize()
    assert first.query()
    with first:
        assert torch.accelerator.current_stream() == first
    torch.cuda.set_stream(second)
    assert torch.cuda.current_stream() == second
    torch.cuda.set_stream(torch.cuda.default_stream())
    del kept, also


# -- random numbers --------------------------------------------------------------------------------------------------


def draw():
    kept = torch.nn.functional.dropout(torch.ones(9, device="cuda"))
    return [drawn.tolist() for drawn in (kept, torch.rand(4, device="cuda"), torch.randperm(9, device="cuda"))]


def test_a_seed_gives_the_same_numbers_again(computing):
    for seed in (torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all):
        seed(3)
        first = draw()
        assert draw() != first
        seed(3)
        assert draw() == first
    assert torch.cuda.initial_seed() == 3
    torch.cuda.seed()
    assert draw() != first


def test_a_state_can_be_kept_and_set(computing):
    state = torch.cuda.get_rng_state()
    assert state.device.type == "cpu"
    first = draw()
    torch.cuda.set_rng_state(state)
    assert draw() == first
    torch.cuda.set_rng_state_all([state])
    assert draw() == first
    assert torch.equal(torch.cuda.default_generators[0].get_state(), torch.cuda.get_rng_state_all()[0])


def test_the_state_of_a_real_gpu_in_a_checkpoint_is_taken(computing):
    seed, offset = torch.arange(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    torch.cuda.set_rng_state(torch.cat([seed, offset]))
    first = draw()
    assert torch.cuda.initial_seed() == int.from_bytes(bytes(range(8)), "little")
    torch.cuda.set_rng_state_all([torch.cat([seed, offset + 4])])
    assert draw() != first
    torch.cuda.set_rng_state(torch.cat([seed, offset]))
    assert draw() == first


@pytest.mark.parametrize("home", [torch, torch.random, torch.cuda])
def test_a_state_lies_on_the_host(computing, home):
    """Where torch.load with map_location="cuda" does not put it."""
    state, put = torch.get_rng_state(), home.set_rng_state
    put(state)
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        put(state.cuda())
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        torch.Generator("cuda").set_state(state.cuda())


def test_no_two_gpus_have_an_address_in_common():
    with gpulab.VirtualGPU("T4", count=2):
        tensors = {"a": torch.ones(3, device="cuda:0"), "b": torch.zeros(3, dtype=torch.int64, device="cuda:1")}
        assert tensors["a"].data_ptr() != tensors["b"].data_ptr()
        torch.save(tensors, file := io.BytesIO())  # refuses two dtypes at one address
        file.seek(0)
        assert torch.load(file)["b"].device == torch.device("cuda:1")


def test_the_gpus_numbers_leave_the_hosts_alone(computing):
    torch.manual_seed(5)
    host = torch.rand(4).tolist()
    torch.manual_seed(5)
    draw()
    assert torch.rand(4).tolist() == host


def test_a_forked_generator_comes_back(computing):
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(9)
        inside = draw()
    assert torch.equal(torch.cuda.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.cuda.manual_seed(9)
        assert draw() == inside
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_generator_of_ones_own(computing):
    assert isinstance(torch.default_generator, torch.Generator)
    assert isinstance(torch.cuda.default_generators[0], torch.Generator)
    generator = torch.Generator("cuda").manual_seed(1)
    again = torch.Generator("cuda").manual_seed(1)
    first = torch.rand(3, device="cuda", generator=generator)
    assert torch.equal(first, torch.rand(3, device="cuda", generator=again))
    other = generator.clone_state()
    assert torch.equal(
        torch.randn(3, device="cuda", generator=generator), torch.randn(3, device="cuda", generator=other)
    )
    copy = pickle.loads(pickle.dumps(generator))
    assert copy.device == generator.device
    assert torch.equal(torch.rand(3, device="cuda", generator=generator), torch.rand(3, device="cuda", generator=copy))
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.rand(3, generator=generator)


def test_what_draws_with_a_generator_is_on_the_gpu(gpu):
    generator, ones = torch.Generator("cuda"), torch.ones(3, device="cuda")
    drawn = [torch.multinomial(ones, 2, generator=generator), torch.bernoulli(ones / 2, generator=generator)]
    drawn += [torch.randperm(5, device="cuda", generator=generator), ones.clone().normal_(generator=generator)]
    normal = torch.distributions.Normal(ones, ones, validate_args=False)
    one_of_three = torch.distributions.Categorical(logits=ones, validate_args=False)
    drawn += [normal.sample((2,)), normal.rsample(), one_of_three.sample()]
    assert all(tensor.is_cuda for tensor in drawn)


def test_nothing_warns_that_should_not(computing):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torch.nn.Linear(4, 4).cuda()
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        torch.cuda.memory_summary()
        repr(model.weight)


def test_every_gpu_has_properties_and_unknown_ones_say_so():
    from virtualgpu.gpu import VirtualGPU
    from virtualgpu.gpus.specs import SPECS

    for name in SPECS:
        with VirtualGPU(name):
            found = torch.cuda.get_device_properties(0)
            assert (found.name, found.total_memory) == (torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])
            assert (found.major, found.minor) == torch.cuda.get_device_capability()
            assert "virtual" in repr(found)
            with pytest.raises(AttributeError, match=r"'L2_cache_size' of a virtual .* is not known"):
                _ = found.L2_cache_size
