"""Store the fingerprints of the banks' wrong answers: `python tools/fingerprints.py [--check] [NAME ...]`.

Beside each check that is a contract: which facts each wrong answer of the lesson's `answers` breaks, on scenes that are
always the same. `--check` writes nothing, and fails where a file is not what its bank gives.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a file is not what its bank gives"
    )
    parser.add_argument("names", nargs="*", help="of checks; all that are contracts, if none is given")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    lessons = importlib.import_module("gpulab.course").LESSONS
    banks = {name: lesson.part(f"answers.{name}").BANK for lesson in lessons for name in lesson.checks}
    contracts = {name: bank for name, bank in banks.items() if bank.contract}
    if unknown := sorted(set(args.names) - contracts.keys()):
        parser.error(f"{unknown[0]} is no check that is a contract; those are {', '.join(contracts)}")
    stale = []
    for name in args.names or contracts:
        path, text = contracts[name].contract.path, contracts[name].fingerprints()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not args.check:
            path.write_text(text, "utf-8")
            print(f"{name}: {path.relative_to(ROOT)} written")
    if args.check and stale:
        print(f"not what the banks give: {', '.join(stale)}; run tools/fingerprints.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
