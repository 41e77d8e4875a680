"""The simulator `gpulab.sim.launch_queue`: its model, its picture, its controls."""
