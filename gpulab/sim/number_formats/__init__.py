"""The simulator `gpulab.sim.number_formats`: its model, its picture, its controls."""
