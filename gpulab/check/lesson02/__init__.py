"""The checks of lesson 02: a training step on any machine, where a model is, nested batches, late errors.

Each runs the student's function on virtual GPUs of its own, two at a time, so that it asks the same on every machine;
machines without a GPU, and with another kind of one, are put in force by `machines`.
"""

from .device_agnostic import device_agnostic
from .late_error import late_error
from .model_device import model_device
from .move_batch import move_batch

__all__ = ["device_agnostic", "late_error", "model_device", "move_batch"]
