"""The simulator `gpulab.sim.pipeline`: its model, its picture, its controls."""
