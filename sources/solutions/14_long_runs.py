# %% title [markdown]
# # 14 · Exercises: a run that survives interruptions
#
# Each answer is checked on your own code: run the check cell under it as often as you like. It draws fresh inputs every
# time, and when it fails it says what it expected, what came back, and which section of
# [the lecture](../notebooks/14_long_runs.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
import copy
import io
import math
import os
import pathlib
import random
import re
import signal
import tempfile
import zipfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import gpulab

gpu = gpulab.setup()

# %% resume-text [markdown]
# ## 1 · To the bit
#
# **Build** the state from which a run goes on as if it had never been interrupted. **Why:** a run that resumes from the
# weights alone gives no error. It trains a little worse, and nobody knows why; and a bug that shows at step 90,000 can be
# looked at again only if the steps before it come again, to the bit.
#
# 25 minutes · difficulty ●●○
#
# **Predict first:** of the twelve pieces of state below, how many does `model.state_dict()` hold?
#
# The check interrupts small runs at the start, in the middle and at the end of an epoch, on one virtual GPU and on two. It
# goes on in a run that has trained before, with other seeds, and compares every piece with a twin that was never interrupted.

# %% Resumable tags=["solution"]
class Resumable:
    """A run as one state: Resumable(run), with the two methods of torch.distributed.checkpoint's Stateful.

    state_dict()            a dictionary of all that the next steps of run depend on. It stays what it is while run goes
                            on; torch.save writes it, and torch.load(path, weights_only=True) reads it. run itself goes on as if
                            nobody had looked.
    load_state_dict(state)  brings run to that state, whatever it has done before, and on whichever
                            device torch.load has put the tensors. Its next steps are then those of the run that was saved, to the bit.
                            The model, optimizer, scheduler and scaler stay the same objects, and the optimizer
                            steps the model's own parameters.

    run.model, run.optimizer, run.scheduler and run.scaler are those of torch; the model may lie on two GPUs.
    run.epoch and run.place are whole numbers: epochs that are done, and batches of the one that is not.
    run.order is the order of this epoch's data: a tensor on the CPU, drawn when the epoch begins; None before the first.
    A step draws from the global generators of Python (random), NumPy and PyTorch on the CPU, and from that of each GPU.
    """

    def __init__(self, run):
        # TODO: keep the run; then write state_dict and load_state_dict. Which parts bring a state_dict of their own,
        # and which don't?
        ### BEGIN SOLUTION
        self.run = run

    def state_dict(self):
        run = self.run
        state = {part: getattr(run, part).state_dict() for part in ("model", "optimizer", "scheduler", "scaler")}
        state["where"] = run.epoch, run.place, run.order
        state["python"] = random.getstate()
        name, keys, *rest = np.random.get_state()
        state["numpy"] = name, keys.tolist(), *rest  # weights_only takes no array of NumPy's
        state["cpu"] = torch.get_rng_state()
        state["gpus"] = torch.cuda.get_rng_state_all()
        return copy.deepcopy(state)  # a state dict's tensors are those that train

    def load_state_dict(self, state):
        run = self.run
        for part in ("model", "optimizer", "scheduler", "scaler"):
            getattr(run, part).load_state_dict(state[part])
        run.epoch, run.place, order = state["where"]
        run.order = order if order is None else order.cpu()
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["cpu"].cpu())  # a generator's state lies on the CPU, also that of a GPU
        torch.cuda.set_rng_state_all([numbers.cpu() for numbers in state["gpus"]])
        ### END SOLUTION

# %% check-resume tags=["check"]
gpulab.check.resume_exactly(Resumable)
