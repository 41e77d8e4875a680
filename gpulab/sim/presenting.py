"""`gpulab.present("launch_queue")`: one simulator in the whole window, for a lecture hall."""

from __future__ import annotations

import difflib
from typing import Any

from .base.simulator import Simulator


def present(simulator: str | Simulator[Any], **values: Any) -> None:
    """Open one simulator in the whole window; the arrow keys go through its named states, Escape comes back.

    `simulator` is a name such as "launch_queue", with `values` for its controls, or a simulator that there is already.
    Under the picture stands a line for whoever shows it. In a terminal the table is printed.

    Raises ValueError for a name that is no simulator's, TypeError for another object.
    """
    from gpulab import sim

    if isinstance(simulator, str):
        if simulator not in sim.__all__:
            near = difflib.get_close_matches(simulator, sim.__all__, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"present({simulator!r}): {hint}simulator must be one of {', '.join(sim.__all__)}")
        opened: Simulator[Any] = getattr(sim, simulator)(**values)
    elif isinstance(simulator, Simulator):
        opened = simulator
        opened.set(**values)
    else:
        raise TypeError(
            f"present(simulator={simulator!r}): simulator must be a name, such as 'launch_queue', or a simulator, "
            f"such as gpulab.sim.launch_queue()"
        )
    opened._show(presented=True)
