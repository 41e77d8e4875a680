"""The checks of lesson 03: a timer, a transfer benchmark, waits that nobody asked for, and a prefetcher.

Each runs the student's function on a virtual GPU of its own, whose clock knows what happened when; so the answer is the
same on every machine, with a real GPU, a virtual one in force, or none.
"""
