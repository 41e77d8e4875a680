"""What `tools/course.py` does: set up `.venv`, open JupyterLab, run the tests.

Standard library only, since it runs before anything is installed; it is no part of the `gpulab` package.
"""
