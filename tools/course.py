"""The course's commands without make: `python tools/course.py lab`, `test`, `help`.

This file only finds a Python that is new enough and hands over to `courselib`, where the commands are.
Every Python since 2.7 can read it, so that an old one gets a sentence and not a SyntaxError.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Newer ones come last: the packages may not have builds for them yet.
NAMES = ("python3.13", "python3.12", "python3.11", "python3.14", "python3", "python")

TOO_OLD = (
    "The course needs Python 3.11 or newer; this is Python VERSION, and PATH has no newer one: install "
    "Python 3.12 (from python.org or your system's packages) and run the command again, or name a newer "
    "one that is not on PATH with `make lab PYTHON=/path/to/python3.12`.\n"
)


def version_of(command):
    # type: (list[str]) -> tuple[int, ...]
    """The (major, minor) of that Python; (0, 0) where the command is missing or does not run."""
    try:
        child = subprocess.Popen(
            command + ["-c", "import sys; print('%d %d' % sys.version_info[:2])"],  # noqa: RUF005
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        words = child.communicate()[0].split()
    except OSError:
        return (0, 0)
    return tuple(int(word) for word in words) if child.returncode == 0 and len(words) == 2 else (0, 0)


def newer_python(names=NAMES):
    # type: (tuple[str, ...]) -> list[str] | None
    """The command of a Python that is new enough: the course's own, else one on PATH."""
    inside = ["Scripts", "python.exe"] if os.name == "nt" else ["bin", "python"]
    candidates = [[os.path.join(ROOT, ".venv", *inside)]] + [[name] for name in names]
    if os.name == "nt":
        candidates.insert(1, ["py", "-3"])
    for command in candidates:
        if version_of(command) >= OLDEST:
            return command
    return None


def main():
    # type: () -> int
    version = ".".join(str(number) for number in sys.version_info[:3])
    if sys.version_info[:2] >= OLDEST:
        from courselib.commands import run

        return run(sys.argv[1:])
    command = newer_python()
    if command is None:
        sys.stderr.write(TOO_OLD.replace("VERSION", version))
        return 1
    sys.stderr.write("Python " + version + " is too old for the course; using " + " ".join(command) + ".\n")
    sys.stderr.flush()
    command = command + [os.path.abspath(__file__)] + sys.argv[1:]  # noqa: RUF005
    if os.name == "nt":  # where exec does not replace the process
        return subprocess.call(command)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
