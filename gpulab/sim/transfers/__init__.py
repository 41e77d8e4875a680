"""The simulator `gpulab.sim.transfers`: its model, its picture, its controls."""
