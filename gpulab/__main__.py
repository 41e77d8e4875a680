"""The command line: `python -m gpulab doctor`, `progress`, `run` and `validate`.

It parses and prints; the parts it calls do the work.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
from pathlib import Path

from . import __version__
from .running import command as running


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 where something is wrong, 2 where there is no GPU to measure.

    The exit code of `run` is the script's.
    """
    parser = argparse.ArgumentParser(prog="python -m gpulab", description="The course's helper, from a terminal.")
    parser.add_argument("--version", action="version", version=f"gpulab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    doctor = commands.add_parser("doctor", help="check this machine, and say what to do where something fails")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    commands.add_parser("progress", help="the map of the course, and what you have passed")
    run = commands.add_parser(
        "run", help="run a script on a virtual GPU; memory and time at the end", allow_abbrev=False
    )
    running.add_options(run)
    validate = commands.add_parser("validate", help="measure a real GPU, for holding the virtual one against it")
    validate.add_argument("out", nargs="?", type=Path, metavar="OUT.json", help="default: named after the GPU, here")
    validate.add_argument("--minutes", type=float, default=16, help="about how long it may take (default: 16)")
    validate.add_argument(
        "--section", nargs="+", metavar="NAME", help="only these, in this order (device is always in)"
    )
    validate.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    options = parser.parse_args(arguments)

    if options.command == "run":
        return running.main(options)  # whose standard output is the script's
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a console without ● or → prints a question mark
    if options.command == "validate":
        return _validate(options.out, minutes=options.minutes, sections=options.section, quick=options.quick)
    return _doctor(as_json=options.json) if options.command == "doctor" else _progress()


def _doctor(*, as_json: bool) -> int:
    from .diagnosis import examine
    from .diagnosis.table import as_text

    report = examine()
    if as_json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        print(json.dumps({"problems": len(report.problems), "findings": findings}, indent=2))
    else:
        print(as_text(report))
    return 1 if report.problems else 0


def _progress() -> int:
    from .furniture.progress import progress

    progress()
    return 0


def _validate(out: Path | None, *, minutes: float, sections: list[str] | None, quick: bool) -> int:
    from .validate import recorder

    try:
        chosen = recorder.chosen(sections)
        recorder.check()
        out = out or recorder.default_path()
        effort = recorder.QUICK if quick else None
        recording = recorder.record(out, minutes=minutes, sections=chosen, effort=effort)
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
