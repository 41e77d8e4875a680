"""Command line of the virtual GPU: `python -m virtualgpu run`, `plan` and `validate`."""

from __future__ import annotations

import argparse
import importlib.util
import io
import runpy
import sys
from pathlib import Path
from typing import Any

from .running import command as running
from .running.target import OUT_OF_MEMORY

_EXAMPLES = """\
examples:
  python -m {0} run --gpu A100-80 train.py --epochs 1
{1}  python -m {0} validate --quick

`python -m {0} run --help` has more examples, and the exit codes.
"""
_PLAN = """\
examples:
  python -m virtualgpu plan train.py:build --batch 32 --gpu T4
  python -m virtualgpu plan train.py:build --batch 32 --ranks 8 --gpu H100
where train.py has:
  def build(batch):
      model = torch.nn.Linear(1000, 1000).to("cuda")
      x = torch.randn(batch, 1000, device="cuda")
      return lambda: model(x).sum().backward()

exit codes:
  0   it fits
  2   nothing was planned: a wrong option, or no such function
  12  it does not fit (ENOMEM)
  1   an uncaught error of the file's
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
    plan = commands.add_parser(
        "plan",
        help="what one training step takes: memory by category, time, where it fits",
        epilog=_PLAN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("target", metavar="FILE.py:FUNCTION", help="FUNCTION(batch) builds all and returns the step")
    plan.add_argument("--batch", type=int, required=True)
    plan.add_argument("--gpu", help="such as T4 or H100 (default: as `run`)")
    plan.add_argument("--largest", action="store_true", help="find the largest batch that fits, too")
    plan.add_argument("--where", action="store_true", help="find the line at which the peak is reached, too")
    plan.add_argument("--ranks", type=int, help="plan one rank of so many")
    add_validate(commands)
    options = parser.parse_args(arguments)
    if lacks_torch():
        return 2
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


def _plan(options: argparse.Namespace) -> int:
    from .planning import plan

    file, _, name = options.target.rpartition(":")
    path = Path(file)
    if not name.isidentifier() or not path.is_file():
        print(f"target is {options.target!r}; it must be FILE.py:FUNCTION, of an existing file", file=sys.stderr)
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
    return 0 if made.fits else OUT_OF_MEMORY


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
