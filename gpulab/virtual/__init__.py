"""The virtual GPU: what stands in for an NVIDIA GPU where a machine has none.

Its rooms, lowest first; each imports only from those before it and from itself:

    gpus        which GPUs there are
    memory      PyTorch's caching allocator                        } without torch
    clock       the virtual time, and how fast a GPU does what     }
    scope       which GPU is in force, and which tensors are on it
    operations  every operation below and above autograd
    surface     what PyTorch says about CUDA from Python
    gpu         `VirtualGPU`, the scope that joins them

Importing this package loads neither torch nor Jupyter, and patches nothing.
"""
