"""Run pip and say what it does in a few lines, and what went wrong in one sentence.

The whole of pip's output goes to a log; nothing here decides what is installed.
"""

import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from .terminal import Status, Stop, say
from .venv import Venv

WORTH_A_LINE_MB = 50
FULL_BYTES = 64 * 2**20  # a disk with less than this free is why pip stopped, whatever pip says

_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|Read timed out|ProxyError"
    r"|connection broken by|Connection aborted|Connection reset|IncompleteRead|Network is unreachable"
    r"|Download failed after|not a trusted or secure host"
)


def explain_pip_failure(text: str, free_bytes: int | None = None) -> str | None:
    """The sentence for a failed pip, from its output and the free bytes of the disk; None if it is unknown."""
    if "Disk quota exceeded" in text:
        return "Your disk quota is used up: free some space, then run the same command again."
    full = "No space left on device" in text or "not enough space on the disk" in text
    # A full disk while downloading reads as a network failure in pip 26.
    if full or (free_bytes is not None and free_bytes < FULL_BYTES):
        return "The disk is full: free some space, then run the same command again."
    if "Read-only file system" in text or re.search(r"Permission denied|Errno 13\b|WinError 5\b", text):
        return "pip may not write into this folder: move the course to a folder of yours, and run the same there."
    if "THESE PACKAGES DO NOT MATCH THE HASHES" in text:
        return "A download arrived damaged: run `python -m pip cache purge`, then the same command again."
    if re.search(r"CERTIFICATE_VERIFY_FAILED|problem confirming the ssl certificate|SSLError", text):
        return (
            "The package index's certificate is not trusted, as behind a proxy that opens connections: set "
            "PIP_CERT to your organisation's certificate file, then run the same command again."
        )
    missing = re.search(r"No matching distribution found for (\S+)", text)
    if _NETWORK.search(text) and (missing is None or "(from versions: none)" in text):
        return (
            "The package index cannot be reached: check the network (behind a proxy, set HTTPS_PROXY), then "
            "run the same command again; it goes on from where it is."
        )
    if missing:
        return (
            f"There is no build of {missing[1]} for this Python and system: use Python 3.12 or 3.13 on 64-bit "
            "Linux, on Windows, or on a Mac with Apple's processor (`make lab PYTHON=python3.12`)."
        )
    return None


class Digest:
    """Reads pip's output line by line and keeps what a waiting person wants to know of it."""

    def __init__(self) -> None:
        self.status = "asking for the packages"
        self._download = ""

    def line(self, line: str) -> str | None:
        """A line worth printing, or None; `status` is what goes on now."""
        words = line.split()
        if not words:
            return None
        if words[0] == "Progress" and len(words) == 4 and words[1].isdigit() and words[3].isdigit():
            if self._download and int(words[3]):
                self.status = f"{self._download} {100 * int(words[1]) // int(words[3])} %"
        elif match := re.match(r"\s*Downloading (\S+?)-(\d[^-\s]*)-\S+\.whl \(([\d.]+) ([kMG])B\)", line):
            name, version, amount, unit = match.groups()
            self._download = f"downloading {name} {unquote(version)} ({amount} {unit}B)"
            self.status = self._download
            if float(amount) * {"k": 0.001, "M": 1, "G": 1000}[unit] >= WORTH_A_LINE_MB:
                return f"  {self._download}"
        elif line.startswith("Installing collected packages:"):
            count = line.count(",") + 1
            self.status, self._download = f"installing {count} packages", ""
            if count > 60:
                return f"  installing {count} packages (a minute or two)"
        elif words[0] in ("Collecting", "Obtaining"):
            self.status, self._download = f"collecting {words[1]}", ""
        elif match := re.search(r"Retry\(total=(\d+)", line):
            return f"  the package index does not answer; pip tries again ({match[1]} more after this)"
        return None


def run_pip(venv: Venv, arguments: Sequence[str], *, temporary: Path, keep_open: int) -> None:
    """Run `pip install` in the environment; Stop with a sentence where it fails.

    `temporary` is where pip unpacks; `keep_open` is the lock's descriptor, which a pip that outlives this
    process keeps held.
    """
    environ = venv.environ() | {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_USER": "0",
        "PYTHONIOENCODING": "utf-8",
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary)),
    }
    command = [str(venv.python), "-m", "pip", "install", "--no-input", *arguments]
    lines: queue.Queue[str | None] = queue.Queue()
    output: list[str] = []
    digest, status = Digest(), Status()
    child = subprocess.Popen(
        command,
        cwd=venv.root,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=() if os.name == "nt" else (keep_open,),
    )

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with venv.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            while True:
                try:
                    line = lines.get(timeout=1)
                except queue.Empty:
                    status.redraw()
                    continue
                if line is None:
                    break
                if not line.startswith("Progress "):
                    output.append(line)
                    log.write(line + "\n")
                if remark := digest.line(line):
                    status.say(remark)
                status.set(digest.status)
        code = child.wait()
    finally:
        status.clear()
        if child.poll() is None:
            child.terminate()
            child.wait()
    if code != 0:
        raise _stop(venv, code, "\n".join(output))


def _stop(venv: Venv, code: int, text: str) -> Stop:
    sentence = explain_pip_failure(text, shutil.disk_usage(venv.folder).free)
    if sentence is None and code in (-9, 137):
        sentence = "The system ended pip, most likely for want of memory: close other programs and run it again."
    if sentence is None:
        say("\n".join(text.splitlines()[-12:]))
        sentence = f"pip stopped with an error that is not a known one; the whole of it is in {venv.log}."
    return Stop(sentence)
