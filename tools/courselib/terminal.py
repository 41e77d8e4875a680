"""What the commands say: lines, a status line that is redrawn on a terminal, and the sentence that stops.

No logging and no colours: a person reads this while waiting.
"""

import shutil
import sys
import time


class Stop(Exception):
    """What keeps a command from going on: one sentence that says what to do."""


def say(text: str) -> None:
    """Print a line at once, also where the output goes to a file or a pipe."""
    print(text, flush=True)


class Status:
    """A line that is redrawn in place, with the seconds it has stood; a pipe or a file sees nothing of it."""

    def __init__(self) -> None:
        self._text = ""
        self._since = time.monotonic()
        self._shown = False

    def set(self, text: str) -> None:
        """Show `text`; the seconds start again when it changes in more than its figures."""
        if _words(text) != _words(self._text):
            self._since = time.monotonic()
        self._text = text
        self.redraw()

    def redraw(self) -> None:
        if sys.stdout.isatty() and self._text:
            width = shutil.get_terminal_size().columns - 1
            line = f"  {self._text} … {time.monotonic() - self._since:.0f} s"
            sys.stdout.write("\r" + line[:width].ljust(width))
            sys.stdout.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write("\r" + " " * width + "\r")
            sys.stdout.flush()
            self._shown = False
        self._text = ""

    def say(self, text: str) -> None:
        """Print a line that stays, above the status line."""
        text_below, since = self._text, self._since
        self.clear()
        say(text)
        self._text, self._since = text_below, since


def _words(text: str) -> str:
    return "".join(letter for letter in text if not letter.isdigit())
