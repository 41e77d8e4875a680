"""The simulator `gpulab.sim.loss_scaling`: its model, its picture, its controls."""
