"""`observe`: what a program does on a virtual GPU, at the moment at which it does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from virtualgpu.gpu import VirtualGPU
from virtualgpu.observe import observe


def test_waits_are_named_and_take_the_time_that_the_clock_counts() -> None:
    waits: list[tuple[str, float]] = []
    with VirtualGPU("T4") as gpu:
        x = torch.ones(2**20, device="cuda")
        before = gpu.clock.waited
        with observe(gpu, wait=lambda name, seconds: waits.append((name, seconds))):
            x.sum().item()
            (x @ x).cpu()
            torch.cuda.synchronize()  # nothing is left to wait for
        assert {name.split(",")[0] for name, _ in waits} == {"copy to host"}
        assert sum(seconds for _, seconds in waits) == pytest.approx(gpu.clock.waited - before)
        seen = len(waits)
        x.sum().item()
    assert len(waits) == seen  # the block has ended


def test_a_question_is_one_that_is_answered_no() -> None:
    asked: list[bool] = []
    with VirtualGPU("T4", compute=False) as gpu:
        event = torch.cuda.Event()
        x = torch.ones(2**14, 2**14, device="cuda") @ torch.ones(2**14, 2**14, device="cuda")
        event.record()
        with observe(gpu, question=lambda: asked.append(True)):
            assert not event.query()
            torch.cuda.synchronize()
            assert event.query()
    assert len(asked) == 1
    assert x.shape == (2**14, 2**14)


def test_the_error_of_an_observer_is_what_the_program_gets_and_nothing_is_pinned() -> None:
    def full(nbytes: int) -> None:
        raise RuntimeError(f"no room for {nbytes}")

    with VirtualGPU("T4") as gpu:
        x = torch.ones(100)
        with observe(gpu, pin=full), pytest.raises(RuntimeError, match="no room for 400"):
            x.pin_memory()
        assert x.pin_memory().is_pinned()


class Flights:
    def __init__(self) -> None:
        self.began_ways: list[str] = []
        self.uses: list[bool] = []

    def began(self, storage: Any, way: str, end: float) -> None:
        self.began_ways.append(way)

    def waits(self) -> bool:
        return True

    def used(self, storage: Any, *, writes: bool) -> None:
        self.uses.append(writes)


def test_copies_in_flight_are_seen_by_one_observer_at_a_time() -> None:
    flights = Flights()
    with VirtualGPU("T4") as gpu:
        x = torch.ones(100).pin_memory()
        with observe(gpu, copies=flights):
            x.to("cuda", non_blocking=True)
            x.zero_()
            with pytest.raises(RuntimeError, match="copies is given"), observe(gpu, copies=flights):
                pass
        x.to("cuda", non_blocking=True)
    assert flights.began_ways == ["to GPU"]
    assert flights.uses == [True]


def test_two_observers_hear_the_same_and_leave_nothing() -> None:
    first: list[str] = []
    second: list[str] = []
    with VirtualGPU("T4") as gpu:
        x = torch.ones(10, device="cuda")
        with observe(gpu, wait=lambda name, _: first.append(name)):
            with observe(gpu, wait=lambda name, _: second.append(name)):
                x.sum().item()
            x.sum().item()
        assert (len(first), len(second)) == (2, 1)
        assert gpu.clock.on_wait == gpu.clock.on_question == gpu.on_pin == []
