"""Answers that pass are recorded; never in the course folder of whoever runs the tests."""

import pytest


@pytest.fixture(autouse=True)
def progress_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))
