"""The simulator `gpulab.sim.spot`: its model, its picture, its controls."""
