"""Results of transfers: what lies where after the last command, and what the way there cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from virtualgpu.memory.out_of_memory import format_size

from ..base.simulator import Result, Row
from ..base.words import below, duration, percent
from .machine import Machine
from .model import BYTES, GPUS, SLOTS, Command, Line, Outcome, link_of, rates_over, read


def size(nbytes: int) -> str:
    """As data sheets count: 1 MB is 10⁶ bytes, 1 KB is 10³."""
    return f"{nbytes / 1e6:.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.2f} KB" if nbytes >= 1e3 else f"{nbytes} B"


@dataclass(frozen=True)
class Crossings(Result):
    """What lies where after the last command, and what the way there cost."""

    gpu: str
    slot: int
    assign: str
    non_blocking: bool
    commands: tuple[Command, ...]
    outcome: Outcome

    @property
    def host_bytes(self) -> int:
        return sum(held.nbytes for held in self.outcome.host)

    @property
    def gpu_bytes(self) -> int:
        return sum(held.nbytes for held in self.outcome.gpu)

    @property
    def on_gpu(self) -> set[str]:
        return {held.name for held in self.outcome.gpu}

    @property
    def copies(self) -> list[Line]:
        return [line for line in self.outcome.lines if line.copies]

    @property
    def copied(self) -> int:
        """Bytes over the bus."""
        return sum(line.nbytes for line in self.copies)

    @property
    def copying(self) -> float:
        """Seconds on the bus."""
        return sum(line.copy for line in self.copies)

    @property
    def pinning(self) -> float:
        """Seconds for the page-locked memory of the tensors that began in it."""
        return math.fsum(line.call or 0.0 for line in self.outcome.lines if line.kind == "pinned")

    @property
    def reading(self) -> float:
        """Seconds that the GPU takes to read as many bytes in its own memory."""
        return self.outcome.rates.memory_seconds(self.copied)

    @property
    def saved(self) -> float:
        """Seconds that copies from pinned memory take less, for all of the tensors."""
        rates = self.outcome.rates
        return sum(BYTES.values()) * (1 / rates.pageable_gbps - 1 / rates.pinned_gbps) * 1e-9

    @property
    def floor(self) -> float:
        """Seconds of those that do not depend on the bytes."""
        return sum(line.copies for line in self.copies) * self.outcome.rates.copy_us * 1e-6

    @property
    def error(self) -> str:
        """What Python says of the last command, "" if it went well."""
        return self.outcome.lines[-1].error

    @property
    def before(self) -> str:
        """The commands but the last one."""
        return "; ".join(map(str, self.commands[:-1]))

    @property
    def link(self) -> str:
        """The link's name, and whose limit it is where GPU and slot differ."""
        own, link = GPUS[self.gpu].host_link, self.outcome.link
        if own == SLOTS[self.slot]:
            return link.name
        return f"{link.name}, the {'GPU' if link == own else 'slot'}’s"

    @property
    def reserved(self) -> str:
        return f"{self.outcome.reserved / 2**20:.0f} MiB"

    @property
    def finding(self) -> str:
        out, last = self.outcome, self.outcome.lines[-1]
        if last.kind == "copied":
            return self._copied(last)
        if last.kind == "memory" and out.shortage:
            short = out.shortage.shortage
            asked, free = format_size(short.tried), format_size(short.free)
            return f"The GPU is full: {size(short.requested)} need a segment of {asked}, and {free} are free"
        if last.kind == "name":
            return f"Nothing was done: {last.error.split(': ', 1)[1]}"
        if last.kind == "freed":
            return (
                f"Nothing refers to it any more: {size(self.host_bytes)} are left on the host and"
                f" {size(self.gpu_bytes)} on the GPU, where {self.reserved} stay reserved"
            )
        if last.kind == "made":
            return f"All three tensors, {size(self.host_bytes)}, lie in host memory: they are computed with on the CPU"
        if last.kind == "pinned":
            saved = duration(self.saved)
            return f"Pinning took {duration(self.pinning)}, which saves {saved} each time that all of it is copied"
        if last.kind == "device":
            there, left = sorted(last.code.split()[2::2], key=lambda name: name not in self.on_gpu)
            return f"The sum fails: {there} is on cuda:0, and {left} still on the CPU"
        return {
            "there": "It is there already: .to gives back what it was given, and copies nothing",
            "run": "Both are on cuda:0: the sum is computed there and stays there, and nothing is copied",
            "run there": "Both are on the CPU: the sum is computed there, and the GPU has no part in it",
        }[last.kind]

    def _copied(self, last: Line) -> str:
        call, copy = duration(last.call or 0.0), duration(last.copy)
        if self.non_blocking and last.way == "to host":
            if (last.call or 0.0) > last.copy:
                return f"Nobody waits for the copy, but pinning new memory took {call}; synchronize before you read it"
            return f"The copy takes {copy}, and nobody waits for it: call torch.cuda.synchronize() before you read it"
        if self.non_blocking and last.pinned:
            if self.pinning:
                return f"The call takes {call}, the copy {copy}; but pinning took {duration(self.pinning)}"
            return f"Nobody waits: the call takes {call}, the copy {copy}"
        if self.non_blocking:
            return (
                "non_blocking=True gains almost nothing here: from pageable memory the call waits until all is staged"
            )
        if last.way == "to host":
            return (
                f"The way back is as slow: {size(last.nbytes)} in {copy}. Leave on the GPU what the GPU will need again"
            )
        if self.assign == "new":
            near = duration(self.reading)
            return f"Copying {size(self.copied)} took {duration(self.copying)}; the GPU reads its copy in {near}"
        moved = sum(line.nbytes for line in self.copies if line.way == "to GPU")
        what = "A module moves as a whole" if "layer" in last.code else "The name refers to the copy now"
        return f"{what}: nothing refers to the {size(moved)} on the host any more, and they are free again"

    def rows(self) -> list[Row]:
        out, rates = self.outcome, self.outcome.rates
        virtual = f"virtual: {rates.source}"
        rows = [(f"host: {held.name}", size(held.nbytes) + ", pinned" * held.pinned, "") for held in out.host]
        rows.append(("host, total", f"{size(self.host_bytes)} ({self.host_bytes:,} bytes)", ""))
        rows += [(f"GPU: {held.name}", size(held.nbytes), "") for held in out.gpu]
        rows.append(("GPU, total", f"{size(self.gpu_bytes)} ({self.gpu_bytes:,} bytes)", ""))
        rows.append(("GPU, reserved for them", self.reserved, "virtual"))
        rows.append((self.link, f"{out.link.one_way_gbps:.0f} GB/s one way", "recorded: datasheet"))
        reached = f"{rates.pinned_gbps:.3g} GB/s pinned, {rates.pageable_gbps:.3g} GB/s pageable"
        rows.append(("copies reach", f"{reached}, after {rates.copy_us:.0f} µs each", virtual))
        for step, done in enumerate(out.lines, 1):
            rows.append((f"{step}  {done.code}", _happened(done), virtual if done.call is not None else ""))
        if self.copied:
            latency = percent(self.floor / self.copying)
            rows.append(("on the bus", f"{size(self.copied)} in {duration(self.copying)}, {latency} latency", virtual))
            rows.append(("read in the GPU's own memory", duration(self.reading), virtual))
        if out.finished > out.went_on:
            rows.append(("under way when the host went on", duration(out.finished - out.went_on), virtual))
        return rows

    def __str__(self) -> str:
        return below(super().__str__(), self.error)

    def describe(self) -> str:
        return "; ".join(filter(None, (super().describe(), self.error)))


def _happened(done: Line) -> str:
    if done.error:
        return done.error.split(":")[0]
    if done.copies:
        return f"{size(done.nbytes)} in {duration(done.copy)}; the call returns after {duration(done.call or 0)}"
    words = {
        "made": "on the host",
        "pinned": "on the host, pinned",
        "there": "there already, nothing copied",
        "freed": "freed",
        "run": "computed on cuda:0",
        "run there": "computed on the CPU",
    }[done.kind]
    return words + (f" in {duration(done.call)}" if done.call is not None and done.kind == "pinned" else "")


def simulate(script: str, assign: str, gpu: str, slot: int, room: int, pinned: bool, non_blocking: bool) -> Crossings:
    """Run the commands of `script` on a `Machine`."""
    commands, link = tuple(read(script)), link_of(gpu, slot)
    machine = Machine(GPUS[gpu].memory_bytes, rates_over(gpu, link), room, assign, non_blocking)
    machine.make(pinned)
    for command in commands:
        machine.run(command)
    return Crossings(gpu, slot, assign, non_blocking, commands, machine.outcome(link))
