"""Command line of the virtual GPU: `python -m virtualgpu run`, `plan` and `validate`."""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

from .running import command as running
from .running import planned

_EXAMPLES = """\
examples:
  python -m {0} run --gpu A100-80 train.py --epochs 1
{1}  python -m {0} validate --quick

`python -m {0} run --help` has more examples, and the exit codes.
"""
_VALIDATE = """\
examples:
  python -m gpulab validate                            all, in about 16 minutes
  python -m gpulab validate --quick try.json           whether it works
  python -m gpulab validate --section allocator steps --minutes 5

exit codes:
  0  the recording is written
  1  it is written, and some sections failed
  2  nothing was measured: no NVIDIA GPU here, or a wrong option
"""


def examples(program: str, more: str) -> str:
    """What the help of a program's command line ends with."""
    return _EXAMPLES.format(program, more)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code, which the command's help names."""
    parser = argparse.ArgumentParser(
        prog="python -m virtualgpu",
        description="A GPU that is not there: its memory to the byte, its time by a model.",
        epilog=examples("virtualgpu", "  python -m virtualgpu plan train.py:build --batch 32 --gpu T4\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    add_run(commands)
    planned.add_options(
        commands.add_parser("plan", help="what one training step takes: memory by category, time, where it fits")
    )
    add_validate(commands)
    options = parser.parse_args(arguments)
    if lacks_torch():
        return 2
    if options.command == "run":
        return running.main(options)  # whose standard output is the script's
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console without ● or → prints a question mark
    return planned.main(options) if options.command == "plan" else validate(options)


def add_run(commands: Any) -> None:
    """Add the command `run` to the subparsers of a command line."""
    parser = commands.add_parser(
        "run", help="run a script on a virtual GPU; memory and time at the end", allow_abbrev=False
    )
    running.add_options(parser)


def add_validate(commands: Any) -> None:
    """Add the command `validate` to the subparsers of a command line."""
    parser = commands.add_parser(
        "validate",
        help="measure a real GPU, for holding the virtual one against it",
        epilog=_VALIDATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT.json", help="default: named after the GPU, here")
    parser.add_argument("--minutes", type=float, default=16, help="about how long it may take (default: 16)")
    parser.add_argument("--section", nargs="+", metavar="NAME", help="only these, in this order (device is always in)")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")


def lacks_torch() -> bool:
    """Return True, and say so, where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is not None:
        return False
    print(f"PyTorch is not installed for {sys.executable}. What to do: pip install torch", file=sys.stderr)
    return True


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
