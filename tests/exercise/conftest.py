"""A check that passes is recorded; never in the course folder of whoever runs the tests."""

import pytest

from gpulab.exercise import guard


@pytest.fixture(autouse=True)
def progress_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def short_limit(monkeypatch):
    """For code that computes and never returns: 0.3 s of processor time is enough to know."""
    monkeypatch.setattr(guard, "LIMIT_SECONDS", 0.3)


@pytest.fixture
def short_idle(monkeypatch):
    """For code that waits and never returns. A slow disk can make any code wait that long."""
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.3)
