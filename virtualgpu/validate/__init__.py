"""`python -m gpulab validate`: record a real GPU's behaviour, to compare the virtual one with it.

`recorder` runs the `sections` and writes the recording; `operators`, `models`, `memory`, `kernels`, `host` and
`sustained` are what runs; `predict` runs the first three on the virtual GPU and compares. It needs torch and
torchvision and nothing of the course.
"""
