"""Checks a script that was drawn for the student, with the probes of the lesson's script."""

from .capstone import capstone_drawn

__all__ = ["capstone_drawn"]
