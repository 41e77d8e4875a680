"""Read the GPU in use: memory counters, their curve over a run, real or virtual."""
