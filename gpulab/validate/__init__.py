"""`python -m gpulab validate`: what a real GPU does, written down for holding the virtual one against it.

`recorder` runs the sections and writes the recording; `operators`, `models` and `memory` are what runs on both GPUs;
`predict` runs them on the virtual one and compares. It needs torch and torchvision and nothing of the course.
"""
