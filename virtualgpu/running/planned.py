"""`python -m virtualgpu plan FILE.py:FUNCTION --batch N`: run the steps that FUNCTION(N) returns, in shapes-only mode.

It prints the report of a run, and on which GPUs the step fits; on request also the largest batch that does.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace

from ..choice import choose
from ..gpus.specs import SPECS
from . import command, target, what_if
from .report import Planned, Report, Steps

_EXAMPLES = """\
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
_OF_RUN = ("gpu", "ranks", "nodes", "link", "adapters", "json", "what_if")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `plan` to a parser."""
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help="FUNCTION(batch) builds all and returns the step")
    parser.add_argument("--batch", type=int, required=True, metavar="N")
    parser.add_argument("--gpu", metavar="NAME", help="such as T4 or H100 (default: as `run`)")
    parser.add_argument("--largest", action="store_true", help="find the largest batch that fits, too")
    parser.add_argument("--where", action="store_true", help="find the line of the forward pass behind the peak, too")
    parser.add_argument("--ranks", type=int, metavar="N", help="plan one rank of so many, and its scaling")
    for name, kind in (("nodes", int), ("link", str), ("adapters", str)):
        parser.add_argument(f"--{name}", type=kind, help="as of `run`")
    parser.add_argument("--json", metavar="FILE", help="write the report there too, - for standard output")
    parser.add_argument("--what-if", action="store_true", help="plan it again with each of some remedies, and compare")


def main(options: argparse.Namespace) -> int:
    """Plan; return the exit code that the help names."""
    run = _as_run(options)
    if options.what_if:
        return what_if.main(run)
    try:
        if choose(options.gpu)[0] == "real":
            raise target.CannotRun(f"gpu={options.gpu!r}: a plan is for a kind of GPU, one of {', '.join(SPECS)}")
        session = command.prepare(run)
        if run.scaling:
            session.alone = command.run_on_one_gpu(run)
        with target.interpreter_restored():
            session.begin()
            try:
                code = session.execute()
                report = session.report()
            finally:
                session.dismiss()
                session.close()
    except (target.CannotRun, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    planned = Planned(options.batch, tuple(_fits_on(report)))
    if options.largest or options.where:
        planned = _looked_for(options, report, planned)
    steps = tuple(replace(each, samples=_samples(each, options.batch)) for each in report.steps)
    session.write(replace(report, plan=planned, steps=steps), sys.stderr if options.json == "-" else sys.stdout)
    return code


def _as_run(options: argparse.Namespace) -> argparse.Namespace:
    """Return the options of the run that is made."""
    words = ["--shapes-only", "--repeatable", "--batch", str(options.batch)]
    for name in _OF_RUN:
        value = getattr(options, name)
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += ["--scaling"] if (options.ranks or 1) > 1 and not options.what_if else []
    parser = argparse.ArgumentParser(allow_abbrev=False)
    command.add_options(parser)
    return parser.parse_args([*words, "--", options.target])


def _samples(steps: Steps, batch: int) -> float | None:
    return batch / steps.median if steps.median else None


def _fits_on(report: Report) -> Iterator[tuple[str, bool | None]]:
    """Return whether the same blocks fit on each GPU; None between allocated and reserved: only a run shows."""
    if not report.used:
        return
    gpu = max(report.used, key=lambda gpu: gpu.memory.peak_allocated)
    memory, tried = gpu.memory, None if gpu.shortage is None else gpu.shortage.tried
    allocated, used = memory.peak_allocated, memory.peak_used or 0
    context = used - memory.peak_reserved
    if report.ending.out_of_memory:
        if tried is None or not tried.until:
            return
        allocated, used = tried.allocated, tried.used
    for name, spec in SPECS.items():
        if name == report.gpu:
            yield name, not report.ending.out_of_memory
        elif used <= spec.memory_bytes:
            yield name, True
        else:
            yield name, False if allocated + context > spec.memory_bytes else None


def _looked_for(options: argparse.Namespace, report: Report, planned: Planned) -> Planned:
    """Add what the planner finds with more runs of the step."""
    from ..planning import plan

    file, _, function = options.target.rpartition(":")
    with target.interpreter_restored():
        build = runpy.run_path(file, run_name="planned")[function]
        found = plan(
            build, options.batch, report.gpu, where=options.where, largest=options.largest, ranks=options.ranks,
            nodes=options.nodes, link=options.link, adapters=command.adapters_of(options),
        )  # fmt: skip
    where = "" if found.where is None else str(found.where)
    return replace(planned, where=where, largest=found.largest_batch, tried=len(found.tried))
