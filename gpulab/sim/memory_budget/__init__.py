"""The simulator `gpulab.sim.memory_budget`: its model, its picture, its controls."""
