"""The simulator `gpulab.sim.step_memory`: its model, its picture, its controls."""
