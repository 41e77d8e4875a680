"""`python -m gpulab validate`: what a real GPU does, written down for holding the virtual one against it.

`recorder` runs the `sections` and writes the recording; `operators`, `models`, `memory`, `kernels`, `host` and
`sustained` are what runs; `predict` runs the first three on the virtual GPU and compares. It needs torch and
torchvision and nothing of the course.
"""
