"""The simulator `gpulab.sim.race`: its model, its picture, its controls."""
