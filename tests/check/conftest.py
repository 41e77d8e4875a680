"""A check that passes is recorded; never in the course folder of whoever runs the tests."""

import pytest

from gpulab.check import guard


@pytest.fixture(autouse=True)
def progress_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def short_limit(monkeypatch):
    """For code that never returns: 0.3 s is enough to know."""
    for name in ("LIMIT_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(guard, name, 0.3)
    monkeypatch.setattr(guard, "WALL_SECONDS", 2.0)
