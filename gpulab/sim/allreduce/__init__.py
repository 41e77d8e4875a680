"""The simulator `gpulab.sim.allreduce`: its model, its picture, its controls."""
