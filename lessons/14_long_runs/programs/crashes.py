"""What crashes during a save leave: computed from a recording, nothing is killed."""

import pathlib
import tempfile

import checkpoints
import matplotlib.pyplot as plt
import torch

import gpulab


def newest_after(save, crash):
    """The step of the newest whole file after each crash in the second of two saves; 0 if none is whole.

    `save(state, folder)` is what is tried; `crash` is "kills" or "power_cuts".
    """
    with tempfile.TemporaryDirectory() as place:
        for step in (1, 2):
            with gpulab.crash.record(place) as journal:
                save({"step": step, "weights": torch.zeros(20_000)}, pathlib.Path(place))
    found = []
    for left in getattr(journal, crash):
        with left.opened() as place:
            whole = filter(checkpoints.whole, place.glob("*.pt"))
            found.append(max((torch.load(path)["step"] for path in whole), default=0))
    return found


def picture(*saves):
    """Bars: what share of the states that can be left has which checkpoint."""
    figure, axes = plt.subplots(figsize=(7.2, 2.6))
    for save in reversed(saves):
        for crash, name in (("power_cuts", "power fails"), ("kills", "killed")):
            found, left = newest_after(save, crash), 0
            for step, colour in ((1, "#56B4E9"), (2, "#0072B2"), (0, "#D55E00")):
                share = 100 * found.count(step) / len(found)
                axes.barh(f"{save.__name__}, {name}", share, left=left, color=colour)
                left += share
    axes.set(xlabel="% of the states that can be left (computed)", title="Only a synced rename always leaves one")
    axes.legend(["the old one", "the new one", "none"], ncols=3, loc="upper center", bbox_to_anchor=(0.4, -0.25))
    return figure
