"""Implements the command line `python -m gpulab`: doctor, progress, run and validate."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys

from virtualgpu.__main__ import add_run, add_validate, examples, lacks_torch, validate
from virtualgpu.running import command as running

from . import __version__

_DOCTOR = """\
examples:
  python -m gpulab doctor                         what is here, and what to do
  python -m gpulab doctor --json > machine.json   the same, for programs

exit codes:
  0  nothing is wrong
  1  a line begins with `problem`
"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code, which the command's help names."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m gpulab",
        description="The course's helper, from a terminal.",
        epilog=examples("gpulab", "  python -m gpulab doctor\n"),
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"gpulab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    doctor = commands.add_parser(
        "doctor",
        help="check this machine, and say what to do where something fails",
        epilog=_DOCTOR,
        formatter_class=raw,
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    commands.add_parser("progress", help="the map of the course, and what you have passed")
    add_run(commands)
    add_validate(commands)
    options = parser.parse_args(arguments)

    if options.command in ("run", "validate") and lacks_torch():
        return 2
    if options.command == "run":
        return running.main(options)  # the script's standard output stays as it is
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console without ● or → prints a question mark
    if options.command == "validate":
        return validate(options)
    if options.command == "doctor":
        return _doctor(as_json=options.json)
    from .notebook.progress import progress

    progress()
    return 0


def _doctor(*, as_json: bool) -> int:
    from .machine.diagnosis import examine
    from .machine.diagnosis.table import as_text

    report = examine()
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": findings}, indent=2))
    else:
        print(as_text(report))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
