"""Driving JupyterLab in Chromium as a student does: shared by the browser tests and the bench."""
