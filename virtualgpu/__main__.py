"""Command line of the virtual GPU: `python -m virtualgpu run`, `plan` and `validate`."""

from __future__ import annotations

import argparse
import io
import runpy
import sys
from pathlib import Path
from typing import Any

from .running import command as running


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: of `run` the script's; 1 where a plan does not fit or a recording has
    errors; 2 where nothing could be done."""
    parser = argparse.ArgumentParser(
        prog="python -m virtualgpu", description="A GPU that is not there: its memory to the byte, its time by a model."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    add_run(commands)
    plan = commands.add_parser("plan", help="what one training step takes: memory by category, time, where it fits")
    plan.add_argument("target", metavar="FILE.py:FUNCTION", help="FUNCTION(batch) builds all and returns the step")
    plan.add_argument("--batch", type=int, required=True)
    plan.add_argument("--gpu", help="such as T4 or H100 (default: as `run`)")
    plan.add_argument("--largest", action="store_true", help="find the largest batch that fits, too")
    plan.add_argument("--where", action="store_true", help="find the line at which the peak is reached, too")
    plan.add_argument("--ranks", type=int, help="plan one rank of so many")
    add_validate(commands)
    options = parser.parse_args(arguments)
    if options.command == "run":
        return running.main(options)  # whose standard output is the script's
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console without ● or → prints a question mark
    return _plan(options) if options.command == "plan" else validate(options)


def add_run(commands: Any) -> None:
    """Add the command `run` to the subparsers of a command line."""
    parser = commands.add_parser(
        "run", help="run a script on a virtual GPU; memory and time at the end", allow_abbrev=False
    )
    running.add_options(parser)


def add_validate(commands: Any) -> None:
    """Add the command `validate` to the subparsers of a command line."""
    parser = commands.add_parser("validate", help="measure a real GPU, for holding the virtual one against it")
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.json", help="default: named after the GPU, here")
    parser.add_argument("--minutes", type=float, default=16, help="about how long it may take (default: 16)")
    parser.add_argument("--section", nargs="+", metavar="NAME", help="only these, in this order (device is always in)")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")


def _plan(options: argparse.Namespace) -> int:
    from .planning import plan

    file, _, name = options.target.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or not path.is_file():
        print(f"target is {options.target!r}; it must be FILE.py:FUNCTION, of a file that is there", file=sys.stderr)
        return 2
    sys.path.insert(0, str(path.resolve().parent))
    build = runpy.run_path(file, run_name="planned").get(name)
    if not callable(build):
        print(f"{file} has no function {name!r}", file=sys.stderr)
        return 2
    try:
        made = plan(
            build, options.batch, options.gpu, where=options.where, largest=options.largest, ranks=options.ranks
        )
    except (TypeError, ValueError) as error:
        if _is_theirs(error, file):
            raise
        print(error, file=sys.stderr)
        return 2
    print(made)
    return 0 if made.fits else 1


def _is_theirs(error: BaseException, file: str) -> bool:
    """Return True if the error was raised in the planned file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            return True
        trace = trace.tb_next
    return False


def validate(options: argparse.Namespace) -> int:
    """Record the sections that the options ask for, and print the path of the recording."""
    from .validate import recorder

    try:
        chosen = recorder.chosen(options.section)
        recorder.check()
        out = options.out or recorder.default_path()
        effort = recorder.QUICK if options.quick else None
        recording = recorder.record(out, minutes=options.minutes, sections=chosen, effort=effort)
    except recorder.NoRealGPU as reason:
        print(reason)
        return 2
    except (ValueError, FileNotFoundError) as error:
        print(error)
        return 2
    failed = recorder.failed(recording)
    print(f"Written to {out}." + (f" These sections failed: {', '.join(failed)}." if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
