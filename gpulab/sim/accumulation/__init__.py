"""The simulator `gpulab.sim.accumulation`: its model, its picture, its controls."""
