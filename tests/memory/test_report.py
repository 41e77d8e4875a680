"""The memory of every GPU at this moment, in words."""

import logging

import pytest
import torch

from gpulab.memory import gpu_memory, log_memory, print_gpu_memory

MIB = 2**20


def take(mib, device="cuda"):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def test_every_gpu_has_its_line_with_units_and_origin(two_gpus, capsys):
    a, b = take(3, "cuda:1"), take(30, "cuda:1")
    del b
    print_gpu_memory("after")
    first, second = capsys.readouterr().out.splitlines()
    assert first == "after: cuda:0: allocated 0.0, reserved 0.0, peak 0.0 of 15,095 MiB, virtual"
    assert second == "after: cuda:1: allocated 3.0, reserved 50.0, peak 33.0 of 15,095 MiB, virtual"
    print_gpu_memory(device=1)
    assert capsys.readouterr().out == f"{second.removeprefix('after: ')}\n"
    del a


def test_the_data_are_pytorchs_counts(gpu):
    a = take(5)
    (found,) = gpu_memory()
    assert found.allocated_bytes == torch.cuda.memory_allocated() == 5 * MIB
    assert found.reserved_bytes == torch.cuda.memory_reserved()
    assert found.peak_bytes == torch.cuda.max_memory_allocated()
    assert found.total_bytes == torch.cuda.get_device_properties(0).total_memory
    assert (found.device, found.numbers) == ("cuda:0", "virtual")
    del a


def test_without_a_gpu_a_sentence_says_so_and_no_zero_is_printed(no_gpu, capsys):
    print_gpu_memory("start")
    out = capsys.readouterr().out
    assert out.startswith("start: no GPU here")
    assert "0" not in out
    assert gpu_memory() == ()


def test_the_log_has_the_same_lines(two_gpus, caplog, capsys):
    caplog.set_level(logging.INFO)
    found = log_memory("epoch 1")
    print_gpu_memory("epoch 1")
    assert [record.message for record in caplog.records] == capsys.readouterr().out.splitlines()
    assert {(record.name, record.levelname) for record in caplog.records} == {("gpulab.memory", "INFO")}
    assert found == gpu_memory()


def test_a_label_is_no_format(no_gpu, caplog):
    caplog.set_level(logging.INFO)
    log_memory("100% done %s", logger=logging.getLogger("mine"))
    assert caplog.records[0].message.startswith("100% done %s: no GPU")
    assert caplog.records[0].name == "mine"


def test_a_gpu_that_does_not_exist_is_named(gpu):
    with pytest.raises(ValueError, match="cuda:4 does not exist: the only GPU is cuda:0"):
        print_gpu_memory(device=4)
