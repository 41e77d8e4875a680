"""CPU overhead per operation: Python, PyTorch's dispatcher, autograd's engine, the optimizer, the driver.

Where kernels are small, this overhead decides the time of a step, whatever the GPU. Hosts differ by a factor of five
and more, so each has a name and fixed costs: numbers repeat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType


@dataclass(frozen=True)
class Host:
    """One thread of a host that runs PyTorch in eager mode; all costs in microseconds.

    `operation_us`: an operation that Python calls. `layer_us`: more where a layer (`nn.Module`) calls it, as products,
    convolutions, norms, activations and the like are assumed to be. `recorded_us`: more where autograd records
    it. `backward_us`: an operation that autograd's engine runs. `cast_us`: a cast, autocast's mostly. `tensor_us`: each
    tensor of a list that one operation is given (`_foreach_`, `_fused_`). `event_us`: an event, a stream, a
    synchronization, beside the wait. `launch_us`: the driver's part of each kernel, which the others leave out.
    """

    name: str
    operation_us: float
    layer_us: float
    recorded_us: float
    backward_us: float
    cast_us: float
    tensor_us: float
    event_us: float
    launch_us: float
    source: str

    def times(self, factor: float) -> Host:
        """Return the same host with all costs times `factor`; raises ValueError unless that is above 0."""
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise ValueError(f"factor must be a number above 0, not {factor!r}")
        costs = {field.name: factor * getattr(self, field.name) for field in fields(self) if field.name.endswith("_us")}
        return replace(self, name=f"{self.name} × {factor:g}", **costs)


class Costs:
    """A host's costs in seconds; each operation includes the driver's part of one kernel."""

    __slots__ = ("backward", "cast", "event", "launch", "layer", "plain", "recorded", "tensor")

    def __init__(self, host: Host) -> None:
        self.launch = host.launch_us * 1e-6
        self.plain = host.operation_us * 1e-6 + self.launch
        self.layer = host.layer_us * 1e-6
        self.recorded = host.recorded_us * 1e-6
        self.backward = host.backward_us * 1e-6 + self.launch
        self.cast = host.cast_us * 1e-6 + self.launch
        self.tensor = host.tensor_us * 1e-6
        self.event = host.event_us * 1e-6


REFERENCE = Host(
    name="reference",
    operation_us=1.9,
    layer_us=4.5,
    recorded_us=1.5,
    backward_us=6.8,
    cast_us=2.3,
    tensor_us=1.0,
    event_us=7.1,
    launch_us=3.0,
    source="PyTorch's own CUDA code on a stand-in for the driver; the driver's part: an assumption",
)


def host_with_launch_time(microseconds: float) -> Host:
    """Return a host that takes this long for every operation."""
    costs = dict.fromkeys((field.name for field in fields(Host) if field.name.endswith("_us")), 0.0)
    costs |= dict.fromkeys(("operation_us", "backward_us", "cast_us"), microseconds) | {"event_us": 1.0}
    return Host(name=f"{microseconds:g} µs", source="as asked", **costs)


SERVER = replace(
    REFERENCE.times(3),
    name="server",
    source="three times the reference: launch-bound training steps that Hugging Face published for BERT on an A100 and"
    " OPT on an L40S take 32 and 34 µs a kernel",
)
HOSTS: Mapping[str, Host] = MappingProxyType({host.name: host for host in (SERVER, REFERENCE)})


def recorded_host(costs: Mapping[str, float], name: str) -> Host:
    """Return the host of a recording, from the microseconds of its section "host" (`virtualgpu.validate.host`).

    There the driver's part is in every call and cannot be separated; it is assumed to be the reference's, or half of
    the shortest call. Raises KeyError for a missing cost.
    """
    launch = min(REFERENCE.launch_us, costs["add"] / 2)
    layers, tensors = 50, 100
    # A linear layer runs back as two products and a sum, and adds to two gradients; an AdamW for lists calls a dozen.
    backward = (costs[f"forward_backward_{layers}"] - costs[f"forward_{layers}"]) / (5 * layers)
    return Host(
        name=name,
        operation_us=costs["add"] - launch,
        layer_us=max(0.0, costs["linear_no_grad"] - costs["matmul"]),
        recorded_us=max(0.0, costs["matmul_grad"] - costs["matmul"]),
        backward_us=max(0.0, backward - launch),
        cast_us=max(0.0, costs["cast_fp16"] - launch),
        tensor_us=costs[f"AdamW_foreach_{tensors}"] / (12 * tensors),
        event_us=costs["event_record"],
        launch_us=launch,
        source=f"recorded on {name}",
    )


def find_host(which: str | float | Host) -> Host:
    """Return a host by name or by its slowdown against the reference; a Host is returned as it is.

    Raises ValueError for an unknown name and a number that is not above 0, TypeError for anything else.
    """
    if isinstance(which, Host):
        return which
    if isinstance(which, str):
        if which not in HOSTS:
            raise ValueError(f"host is {which!r}; known hosts: {', '.join(HOSTS)}; or a number: times the reference")
        return HOSTS[which]
    if isinstance(which, bool) or not isinstance(which, (int, float)):
        raise TypeError(f"host must be the name of a host, a number or a Host, not {type(which).__name__}")
    return REFERENCE.times(which)
