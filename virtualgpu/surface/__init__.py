"""What PyTorch says about CUDA from Python, replaced while a virtual GPU is in force."""
