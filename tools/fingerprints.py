"""Store the fingerprints of the banks' wrong answers: `python tools/fingerprints.py [--check] [NAME ...]`.

Beside each check that is a contract: which facts each wrong answer of tests/wrong_answers breaks, on scenes that are
always the same. `--check` writes nothing, and fails where a file is not what its bank gives.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


HEAD = """# What the exercises promise, and what holds it

A check that is a contract judges clauses: sentences of its exercise, word for word. Its scenes are drawn afresh each
time, so that any two values of its edges meet; a clause is held by facts, and there is at least one wrong answer that
breaks it and no other. Written by `tools/fingerprints.py` from the checks and their banks; `CONTRIBUTING.md` says how
one is made.
"""


def table(contracts: Mapping[str, Any]) -> str:
    """docs/contracts.md, from what is stored beside the checks."""
    parts = [HEAD]
    for name, bank in contracts.items():
        contract = bank.contract
        edges = "; ".join(f"{edge.replace('_', ' ')}: {_values(values)}" for edge, values in contract.edges.items())
        words = {wrong.name: wrong.summary for wrong in bank.wrong_answers}
        parts += [
            f"\n## {name}, lesson {bank.solution[0]:02d}\n",
            f"{len(contract.fixed)} scenes ({edges}), {len(bank.wrong_answers)} wrong answers, "
            f"{len(bank.right_answers)} right ones.\n",
            "| promised | held by | broken alone by | by how many in all |",
            "|---|---|---|---|",
        ]
        broken = {mistake.name: contract.broken_by(mistake) for mistake in contract.stored.mistakes}
        for clause in contract.clauses:
            facts = set(clause.facts)
            alone = [mistake for mistake, found in broken.items() if found and found <= facts]
            by = sum(bool(found & facts) for found in broken.values())
            told = words[alone[0]] if alone else "–"
            cells = f"“{clause.quote}”", "; ".join(clause.facts), told, str(by)
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(parts) + "\n"


def _values(values: Sequence[Any]) -> str:
    return ", ".join(str(getattr(value, "__name__", value)).removeprefix("torch.") for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a file is not what its bank gives"
    )
    parser.add_argument("names", nargs="*", help="of checks; all that are contracts, if none is given")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    lessons = importlib.import_module("gpulab.course").LESSONS
    banks = {
        name: importlib.import_module(f"tests.wrong_answers.lesson{lesson.number:02d}.{name}").BANK
        for lesson in lessons
        for name in lesson.checks
    }
    contracts = {name: bank for name, bank in banks.items() if bank.solution[0]}
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
    path, text = ROOT / "docs" / "contracts.md", table(contracts)
    if not path.exists() or path.read_text("utf-8") != text:
        stale.append("docs/contracts.md")
        if not args.check:
            path.write_text(text, "utf-8")
    if args.check and stale:
        print(f"not what the banks give: {', '.join(stale)}; run tools/fingerprints.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
