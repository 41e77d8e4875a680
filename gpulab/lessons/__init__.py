"""The lessons, each a folder `NN_topic`: those of the checkout that this package stands in, else those of the wheel.

`Lesson.part` of `gpulab.course` imports their modules, such as `gpulab.lessons.NN_topic.checks.NAME`: an import
statement takes no name that begins with a digit.
"""

from pathlib import Path

_OWN = Path(__file__).parent
FOLDER = _OWN if any(_OWN.glob("[0-9][0-9]_*")) else _OWN.parent.parent / "lessons"
__path__ = [str(FOLDER)]
CODE = (*FOLDER.glob("*/checks"), *FOLDER.glob("*/turns.py"))  # and no answer, which a student could have written
