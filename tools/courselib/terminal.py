"""What the commands say: lines, and the sentence that stops.

No logging and no colours: a person reads this while waiting.
"""


class Stop(Exception):
    """What keeps a command from going on: one sentence that says what to do."""


def say(text: str) -> None:
    """Print a line at once, also where the output goes to a file or a pipe."""
    print(text, flush=True)
