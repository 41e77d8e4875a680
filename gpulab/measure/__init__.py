"""What a student measures with: times, memory, transfers, the GPU's load, and which devices there are."""
