"""The checks of lesson 06: checkpointing within a budget, the plan that fits, activations on the host.

The first and the third count bytes on a virtual GPU of their own, whatever machine they run on.
"""
