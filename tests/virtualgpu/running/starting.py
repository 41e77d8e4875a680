"""Scripts through `gpulab run`: in this process, which is quick, or in one of their own, as a user starts it."""

import argparse
import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from courselib.patience import HANG_SECONDS
from courselib.ready import python_here, ranks_here

from virtualgpu.running import command
from virtualgpu.running.report import Report

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Done:
    """What became of a run: the exit code, what was written, the report, and the script's names."""

    code: int
    out: str
    err: str
    report: Report
    names: dict = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The report as it was printed."""
        return self.err[self.err.index("gpulab run:") :]


def options_of(*arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command.add_options(parser)
    return parser.parse_args([str(argument) for argument in arguments])


def start(*arguments, env=None, module="gpulab", **how):
    """`python -m gpulab run …` in a process of its own, to its end."""
    words, env = _command(arguments, env, module)
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS, env=env, **how)


@contextlib.contextmanager
def begun(*arguments, env=None, module="gpulab"):
    """The same, begun; it ends with the block."""
    words, env = _command(arguments, env, module)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, env=env, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def _command(arguments, env, module):
    words = ["run", *arguments] if module == "gpulab" else arguments
    kept = {name: value for name, value in os.environ.items() if name not in ("GPULAB_GPU", "RANK", "WORLD_SIZE")}
    return [*python_here(), "-m", module, *map(str, words)], {
        **kept, **ranks_here(), "OMP_NUM_THREADS": "1", **(env or {})
    }  # fmt: skip
