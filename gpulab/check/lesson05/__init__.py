"""The checks of lesson 05: a batch search that leaves nothing behind, a leaking loop, an out-of-memory message.

Each runs the student's function on a virtual GPU of its own, made small by a memory limit, and judges in bytes.
"""
