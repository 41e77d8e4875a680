"""Diagnoses this machine for the course: `examine()` returns a report, `gpulab.doctor()` shows it as a table too."""

from __future__ import annotations

from virtualgpu.pictures.display import show

from .checks import Readers, examine
from .finding import Finding, Report
from .table import as_html, as_text

__all__ = ["Finding", "Readers", "Report", "doctor", "examine"]


def doctor() -> Report:
    """Examine Python, torch, driver, GPUs, memory, disk and Jupyter; show a table and return the report."""
    report = examine()
    show(as_text(report), html=as_html(report))
    return report
