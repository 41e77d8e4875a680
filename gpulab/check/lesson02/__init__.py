"""The checks of lesson 02: a training step on any machine, where a model is, nested batches, late errors.

Each runs the student's function on virtual GPUs of its own, two at a time, so that it asks the same on every machine;
machines without a GPU, and with another kind of one, are put in force by `machines`.
"""
