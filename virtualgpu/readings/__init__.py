"""What is read of the GPU in force: counters, their curve over a run, and whether it is real or virtual."""
