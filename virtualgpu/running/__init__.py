"""`python -m gpulab run`: anyone's script, unmodified, on a virtual GPU, and a report at its end."""
