"""The simulator `gpulab.sim.roofline`: its model, its picture, its controls."""
