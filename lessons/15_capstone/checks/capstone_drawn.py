"""The check of a script that was drawn for the student: the same probes as of the lesson's."""

from .capstone import capstone_drawn

__all__ = ["capstone_drawn"]
