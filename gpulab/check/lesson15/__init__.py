"""The checks of lesson 15: a training script with twelve faults, the lesson's and one drawn for the student.

Each place of the script has a probe that measures it on a virtual T4, by giving the script's functions a model and
batches of its own, so that every fault is scored by itself.
"""
