"""Finds the lessons, folders `NN_topic`: in the checkout that contains this package, or in the wheel.

`Lesson.part` of `gpulab.course` imports their modules, such as `gpulab.lessons.NN_topic.checks.NAME`: an import
statement takes no name that begins with a digit.
"""

from pathlib import Path

_OWN = Path(__file__).parent
FOLDER = _OWN if any(_OWN.glob("[0-9][0-9]_*")) else _OWN.parent.parent / "lessons"
__path__ = [str(FOLDER)]
CODE = (*FOLDER.glob("*/checks"), *FOLDER.glob("*/turns.py"))  # not the answers, which stand for a student's code
