"""`python -m gpulab run`: run an unmodified script on a virtual GPU, and report at its end."""
