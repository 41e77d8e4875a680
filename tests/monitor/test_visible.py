"""Which physical GPU is this program's cuda:N: told by torch, foreseen from the environment, or left open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpulab.monitor import Reading, Readings, Slice
from gpulab.monitor.visible import is_mine, with_device_names

UUIDS = ("GPU-aa00-1", "GPU-bb00-2", "GPU-cc00-3")
SAME = Readings(Reading(i, "measured", name="A100", uuid=uuid) for i, uuid in enumerate(UUIDS))
MIXED = Readings(Reading(i, "measured", name=f"kind {i}", uuid=uuid) for i, uuid in enumerate(UUIDS))
MIG = Readings(
    [
        Reading(
            0, "measured", name="A100", uuid=UUIDS[0], mig=True, slices=(Slice(0, uuid="MIG-x"), Slice(1, uuid="MIG-y"))
        ),
        Reading(1, "measured", name="A100", uuid=UUIDS[1]),
    ]
)


class Torch:
    """A torch that has started CUDA on these UUIDs, or has not."""

    def __init__(self, *uuids: str, started: bool = True) -> None:
        self.cuda = SimpleNamespace(
            is_initialized=lambda: started,
            device_count=lambda: len(uuids),
            get_device_properties=lambda i: SimpleNamespace(uuid=uuids[i]),
        )


NOT_STARTED = Torch(started=False)


def devices(readings: Readings, torch: Any = NOT_STARTED, **environ: str) -> list[str | None]:
    return [reading.device for reading in with_device_names(readings, torch, environ)]


def test_torch_knows_best_once_cuda_is_started() -> None:
    assert devices(MIXED, Torch("cc00-3", "aa00-1"), CUDA_VISIBLE_DEVICES="0") == ["cuda:1", None, "cuda:0"]


@pytest.mark.parametrize("broken", [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())])
def test_a_torch_that_is_still_being_imported_is_left_alone(broken: Any) -> None:
    assert devices(SAME, broken) == ["cuda:0", "cuda:1", "cuda:2"]


def test_before_that_equal_gpus_are_numbered_as_the_driver_does() -> None:
    assert devices(SAME) == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices(SAME, CUDA_VISIBLE_DEVICES="2,0") == ["cuda:1", None, "cuda:0"]
    assert devices(SAME, CUDA_VISIBLE_DEVICES=" 1") == [None, "cuda:0", None]


def test_gpus_of_several_kinds_are_left_unnamed_unless_the_order_is_set() -> None:
    assert devices(MIXED) == [None, None, None]
    assert devices(MIXED, CUDA_VISIBLE_DEVICES="2") == [None, None, None], "2 in CUDA's order, which is not known"
    assert devices(MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices(MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="2") == [None, None, "cuda:0"]


def test_uuids_name_gpus_whatever_their_kind() -> None:
    assert devices(MIXED, CUDA_VISIBLE_DEVICES="GPU-cc00-3,GPU-a") == ["cuda:1", None, "cuda:0"]


@pytest.mark.parametrize("choice", ["", "-1", "7", "0,0", "NoDevFiles", "GPU-zz"])
def test_a_choice_that_leaves_no_gpu_names_none(choice: str) -> None:
    assert devices(SAME, CUDA_VISIBLE_DEVICES=choice) == [None, None, None]


def test_cuda_stops_at_the_first_that_it_does_not_know() -> None:
    assert devices(SAME, CUDA_VISIBLE_DEVICES="1,9,0") == [None, "cuda:0", None]


def test_slices_are_named_where_they_are_chosen_by_name() -> None:
    gpu, _ = with_device_names(MIG, NOT_STARTED, {"CUDA_VISIBLE_DEVICES": "MIG-y"})
    assert [part.device for part in gpu.slices] == [None, "cuda:0"]
    assert [part.device for part in with_device_names(MIG, Torch("y"), {})[0].slices] == [None, "cuda:0"]
    assert [part.device for part in with_device_names(MIG, NOT_STARTED, {})[0].slices] == [None, None]


def test_a_gpu_is_this_programs_where_it_or_a_slice_of_it_is_named() -> None:
    assert [is_mine(reading) for reading in with_device_names(SAME, NOT_STARTED, {"CUDA_VISIBLE_DEVICES": "2,0"})] == [
        True,
        False,
        True,
    ]
    assert [is_mine(reading) for reading in with_device_names(MIG, Torch("y"), {})] == [True, False]
    assert with_device_names(Readings((), "why"), NOT_STARTED, {}).reason == "why"
