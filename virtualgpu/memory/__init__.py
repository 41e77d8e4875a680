"""PyTorch's CUDA caching allocator, block by block: bookkeeping only, without torch and without real memory."""
