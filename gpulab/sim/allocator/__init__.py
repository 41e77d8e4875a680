"""The simulator `gpulab.sim.allocator`: its model, its picture, its controls."""
