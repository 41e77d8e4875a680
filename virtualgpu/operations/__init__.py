"""Every operation: run on the tensors behind the GPU, with CUDA's results, errors, memory and time."""
