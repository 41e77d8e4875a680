"""PyTorch's Python interface to CUDA, replaced while a virtual GPU is in force."""
