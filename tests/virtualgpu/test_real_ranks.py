"""Two real ranks, each a process with a virtual GPU: values over Gloo, one virtual time for what they do together.

In each mode the same two processes run all programs, one after the other.
"""

import functools
import json
import warnings
from pathlib import Path

import pytest
import torch

from gpulab import VirtualGPU, distributed, timing

from .sharded_programs import PROGRAMS, WIDTH, alone

SCRIPT = Path(__file__).parent / "scripts" / "real_ranks.py"


# In values, and on shapes alone.
RUN = {
    "values": (
        *("collectives", "small_numbers", "forgotten", "straggler", "normalised", "fsdp", "clipped"),
        *("tensor_parallel", "sequence_parallel", "redundancy", "saved", "pipeline"),
    ),
    "shapes": ("fsdp", "saved", "small_numbers", "forgotten", "straggler", "normalised"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a mode, the folder in which its ranks have run all its programs."""

    @functools.cache
    def folder(mode):
        folder = tmp_path_factory.mktemp(mode)
        env = {"CHECKPOINT": str(folder / "checkpoint")}
        distributed.run(SCRIPT, 2, args=[mode, str(folder), *RUN[mode]], env=env, timeout=900, warm=True)
        return folder

    return folder


@pytest.fixture
def run(folders):
    """What both ranks have to say of a program."""

    def said(mode, program):
        return [json.loads((folders(mode) / f"{program}.rank{rank}").read_text()) for rank in (0, 1)]

    return said


def test_every_collective_brings_what_the_other_has(run):
    first, second = run("values", "collectives")
    for found in (first, second):
        assert (found["objects"], found["box"]) == ([{"rank": 0}, {"rank": 1}], ["from 0"])
        assert found["all_reduce SUM"] == found["bfloat16"] == [10, 12, 14, 16]
        assert found["all_reduce AVG"] == found["all_reduce PREMUL_SUM"] == [5, 6, 7, 8]
        assert found["all_reduce PRODUCT"] == [0, 11, 24, 39]
        assert (found["all_reduce MIN"], found["all_reduce MAX"]) == ([0, 1, 2, 3], [10, 11, 12, 13])
        assert found["all_gather"] == found["all_gather_into_tensor"] == [0, 1, 2, 3, 10, 11, 12, 13]
        assert found["all_gather uneven"] == [0, 1, 1]
        assert found["broadcast"] == [10, 11, 12, 13]
    pairs = {
        "reduce_scatter_tensor": ([10, 12], [14, 16]),
        "reduce_scatter": ([5, 6], [7, 8]),
        "all_to_all_single": ([0, 1, 10, 11], [2, 3, 12, 13]),
        "all_to_all_single by sizes": ([0, 10, 11], [1, 2, 3, 12, 13]),
        "reduce": ([0, 1, 2, 3], [5, 6, 7, 8]),
        "gather": ([0, 1, 2, 3, 10, 11, 12, 13], [10, 11, 12, 13]),
        "scatter": ([0, 1], [2, 3]),
        "exchange": ([10, 11, 12, 13], [0, 1, 2, 3]),
        "transposed": ([0, 2, 1, 3], [0, 2, 1, 3]),
        "polled": ([10, 12, 14, 16], [10, 12, 14, 16]),
        "late": ([10, 11, 12, 13], [10, 11, 12, 13]),
        "split": ([0, 1, 2, 3], [10, 11, 12, 13]),
    }
    assert {name: (first[name], second[name]) for name in pairs} == pairs


def test_small_numbers_are_carried_on_shapes_too(run):
    said = run("values", "small_numbers")
    on_shapes = run("shapes", "small_numbers")
    for found, known in zip(said, on_shapes, strict=True):
        assert found["all_reduce"] == known["all_reduce"] == [10, 12, 14, 16]
        assert found["all_gather"] == known["all_gather"] == [0, 1, 2, 3, 10, 11, 12, 13]
        assert found["broadcast"] == known["broadcast"] == [10, 11, 12, 13]
        assert found["message"] == known["message"] == [0, 1, 2, 3]
        assert known["of one that nobody knows"] == [0] * 4  # read from the GPU, what is unknown is 0
        assert (found["many"], known["many"]) == ([0, 2], [0, 0])


@pytest.mark.parametrize("mode", ["values", "shapes"])
def test_what_nobody_waits_for_gives_its_memory_back(run, mode):
    for found in run(mode, "forgotten"):
        assert found["held"] < 70  # of 301
        assert found["left"] == 1 << 18
        assert mode == "shapes" or found["sum"] == [2, 2]
        assert len(found["sent"]) == 303


@pytest.mark.parametrize("mode", ["values", "shapes"])
def test_the_rank_with_the_shorter_kernel_is_the_late_one(run, folders, tmp_path, mode):
    first, second = run(mode, "straggler")
    assert first["ends"] == second["ends"]
    assert first["ends"][0] > 0.001  # rank 1 has computed before
    merged = timing.merge_traces(
        [folders(mode) / f"straggler.trace{rank}.json" for rank in (0, 1)], tmp_path / "all.json"
    )
    events = json.loads(merged.read_text())["traceEvents"]
    early, late = sorted((event for event in events if event.get("cat") == "ranks"), key=lambda event: event["ts"])
    assert early["pid"] < late["pid"]  # rank 0's kernel has spun until rank 1 had come, and both end together
    assert early["ts"] + early["dur"] == pytest.approx(late["ts"] + late["dur"])
    assert early["dur"] > 10 * late["dur"]
    assert early["args"]["GB/s"] == late["args"]["GB/s"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0: virtual cuda:0", "rank 1: virtual cuda:1"} <= lanes


def test_a_batch_in_two_parts_is_normalised_as_one(run):
    """Plain batch norm of the whole batch on the CPU is the measure; a rank without a batch only takes part."""
    first, second = run("values", "normalised")
    for name, dtype, tolerance in (("uneven", "float32", 1e-5), ("half", "bfloat16", 1e-2), ("empty", "float32", 1e-5)):
        norm = torch.nn.BatchNorm1d(3, momentum=0.3)
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        kind = getattr(torch, dtype)
        x = torch.arange(6 * 3 * 4.0).cos().view(6, 3, 4).to(kind).float().requires_grad_()
        out = norm(x)
        out.backward((out.detach().to(kind) ** 2).float())
        of_first, of_second = ([torch.tensor(t) for t in said[name]] for said in (first, second))
        for both, whole in zip(zip(of_first[:2], of_second[:2], strict=True), (out, x.grad), strict=True):
            parts = torch.cat([part.view(-1, 3, 4) for part in both])
            torch.testing.assert_close(parts, whole.detach(), rtol=tolerance, atol=tolerance)
        weights = [norm.weight.grad, norm.bias.grad]
        for place, whole in enumerate(weights, 2):
            total = of_first[place] + (0 if name == "empty" else of_second[place])
            torch.testing.assert_close(total, whole, rtol=tolerance, atol=12 * tolerance)
        for found in (of_first, of_second):
            torch.testing.assert_close(found[-2], norm.running_mean, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(found[-1], norm.running_var, rtol=tolerance, atol=tolerance)


def test_it_sends_the_same_on_shapes_alone(run):
    said, on_shapes = (run(mode, "normalised") for mode in ("values", "shapes"))
    for found, known in zip(said, on_shapes, strict=True):
        assert [nbytes for _, nbytes in found["sent"]] == 3 * [2 * 4 * (2 * 3 + 1), 4 * 2 * 3]
        assert found["sent"] == known["sent"]
        assert found["ends"] == pytest.approx(known["ends"], rel=1e-6)  # the mask takes one row of two, or both
        assert (found["allocated"], found["peak"]) == (known["allocated"], known["peak"])


@functools.cache
def single(program, ranks, compute):
    with warnings.catch_warnings(), VirtualGPU("H100", ranks=ranks, compute=compute, host="reference"):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        losses = [loss.item() if compute else 0.0 for loss in program(ranks)]
        found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return losses, found


@pytest.mark.parametrize("name", ["fsdp", "clipped", "tensor_parallel", "sequence_parallel", "redundancy"])
def test_two_ranks_learn_what_one_alone_learns(run, name):
    """The same batch on both: its gradient is the mean of two equal ones. The bytes are those of imagined ranks."""
    said = run("values", name)
    if name != "clipped":
        wanted, _ = single(alone, 1, True)
        for found in said:
            assert found["losses"] == pytest.approx(wanted, rel=1e-5)
    _, memory = single(PROGRAMS[name], 2, False)
    assert (said[0]["allocated"], said[0]["peak"]) == memory
    assert said[0]["sent"] == said[1]["sent"]


@pytest.mark.parametrize("name", ["fsdp", "saved"])
def test_on_shapes_alone_too(run, name):
    said = run("shapes", name)
    _, memory = single(PROGRAMS[name], 2, False)
    assert [(found["allocated"], found["peak"]) for found in said] == [memory, memory]


def test_a_checkpoint_of_two_ranks_is_whole(run):
    for found in run("values", "saved"):
        before, after = found["losses"]
        assert before == after


def test_a_pipeline_of_two(run):
    first, second = run("values", "pipeline")
    assert first["losses"] == []
    assert len(second["losses"]) == 4
    kinds = [name.split(" ")[0] for name, nbytes in first["sent"] if nbytes == 2 * WIDTH * 4]
    assert (kinds.count("send"), kinds.count("recv")) == (4, 4)  # each micro-batch's activations, and their gradient
