"""ATen operations on a virtual GPU: CUDA's results, errors, memory and time."""
