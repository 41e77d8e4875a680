"""The simulator `gpulab.sim.architecture`: its model, its picture, its controls."""
