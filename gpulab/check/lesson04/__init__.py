"""The checks of lesson 04: a profiler of the forward pass, a memory tracker, the buckets of a model, and golf.

All run on virtual GPUs of their own, and count in bytes: what a known mistake would have given is reckoned beside the
right number, and named.
"""
