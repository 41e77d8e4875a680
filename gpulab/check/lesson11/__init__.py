"""The checks of lesson 11: recompilations found, switches kept by measurement, a launch-bound step as a CUDA graph."""
