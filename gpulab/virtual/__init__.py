"""The virtual GPU: what stands in for an NVIDIA GPU where a machine has none.

`specs` knows the GPUs, `allocator` hands out their memory as PyTorch does. Importing it loads neither torch nor
Jupyter, and patches nothing.
"""
