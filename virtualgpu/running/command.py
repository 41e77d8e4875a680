"""`python -m gpulab run [options] script.py args…`: parse and check the options, then run.

Arguments after the script's name are the script's. The report goes to standard error, so that the script's output can
be piped.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from ..choice import choose
from . import target
from .arguments import VIRTUAL, again, check_json
from .remedies import NAMES as REMEDIES

if TYPE_CHECKING:
    from .report import Alone
    from .session import Session

USAGE = (
    "python -m gpulab run [options] script.py [args ...]\n       python -m gpulab run [options] -m module [args ...]"
)
_EXAMPLES = """\
examples:
  python -m gpulab run train.py --epochs 1             train.py on a virtual T4
  python -m gpulab run --gpu A100-80 --shapes-only -m package.train
                                                       a module, without values
  python -m gpulab run --ranks 8 --gpu H100 --scaling train.py
                                                       rank 0 of 8, against one
  python -m gpulab run --json report.json train.py     the report, for programs
  timeout 60 python -m gpulab run train.py             the first minute's report

exit codes:
  0    the script ended, and what it asked for fits
  2    nothing was run: a wrong option, no such script, no PyTorch
  12   out of memory (ENOMEM), and the script did not catch it
  130  ended by Ctrl-C, after its report
  143  ended by SIGTERM, after its report
any other is the script's own: of its sys.exit, 1 after an uncaught error
"""
_NOTES = """\
Bytes and GPU times are virtual: your own PyTorch calls, counted by the rules of PyTorch's CUDA allocator and timed by
a model of the GPU. Values are computed on this machine, which takes no virtual time. What the script does beside
PyTorch's calls (loading data, Python of its own) takes the time that it takes here, while the GPU works on;
--repeatable leaves it out. With --gpu real all numbers are measured.
Steps are those of the optimizers: every optimizer.step() is a mark.
With several ranks: torchrun --nproc-per-node 2 -m gpulab run script.py; each rank has a report of its own. Or
imagined: --ranks 64 --gpu H100; then this process is rank 0, and the others are taken to do what it does. With
--scaling the script runs twice, and writes twice what it writes: first on one GPU as --ranks 1 --skip-ddp has it.
With --what-if the script runs about ten times, each time with one thing changed from outside, and writes as often what
it writes to files; what it prints is dropped. Best with --shapes-only --repeatable, and few steps.
SIGTERM (timeout 60 python -m gpulab run …) and Ctrl-C end the script, and the report still comes; of a rank that waits
for others it says in what, and for whom.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run` to a parser that is made with `allow_abbrev=False`."""
    parser.usage = USAGE
    parser.epilog = f"{_EXAMPLES}\n{textwrap.fill(_NOTES, 80, break_on_hyphens=False)}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--gpu", metavar="NAME", help="T4, A100-80, H100, …, or real (default: GPULAB_GPU, else T4)")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many (default: 1; under torchrun one for each rank)")
    parser.add_argument("--ranks", type=int, metavar="N", help="imagine that this is rank 0 of N, one GPU each")
    parser.add_argument("--nodes", type=int, metavar="N", help="machines that the imagined ranks are spread over")
    parser.add_argument("--link", metavar="NAME", help="what joins the GPUs of a machine (default: the usual)")
    parser.add_argument(
        "--adapters", metavar="WHAT", help="what joins machines: 1, HDR, '4 x HDR' (default: the usual)"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="run it first on one GPU, without DDP's own cost, and compare"
    )
    parser.add_argument(
        "--skip-ddp", action="store_true", help="let DistributedDataParallel wrap modules and do nothing"
    )
    parser.add_argument("--shapes-only", action="store_true", help="no values: any size of model, and much faster")
    parser.add_argument("--repeatable", action="store_true", help="no time of this machine's: the same in every run")
    parser.add_argument("--json", metavar="FILE", help="write the report there too, - for standard output")
    parser.add_argument("--what-if", action="store_true", help="run it again with each of some remedies, and compare")
    parser.add_argument("--remedies", metavar="NAMES", help=f"of --what-if only these: {','.join(REMEDIES)}")
    parser.add_argument(
        "--price", metavar="GPU=HOUR", action="append", default=[], help="of --what-if: money, as in T4=1,L4=2"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="the script is FILE.py:FUNCTION: take the steps that FUNCTION(N) returns"
    )
    parser.add_argument("--trial", nargs=2, help=argparse.SUPPRESS)  # what --what-if runs: a patch, a file for Seen
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="script.py args", help="all of it the script's")


def main(options: argparse.Namespace) -> int:
    """Run; return the exit code that the help names. The report is written at the interpreter's exit."""
    if options.what_if:
        from . import what_if

        return what_if.main(options)
    try:
        session = prepare(options)
        if options.scaling:
            session.alone = run_on_one_gpu(options)
    except (target.CannotRun, ValueError) as error:
        print(f"gpulab run: {error}", file=sys.stderr)
        return 2
    if options.trial is not None:
        from . import seen

        seen.begin(*options.trial)
    session.begin()
    if not faulthandler.is_enabled():
        faulthandler.enable()  # if C code dereferences a virtual GPU's address, show at least the script's line
    atexit.register(session.finish)  # before the script registers anything, so after all of that
    try:
        return session.execute()
    except target.CannotRun as error:
        session.dismiss()
        print(f"gpulab run: {error}", file=sys.stderr)
        return 2


def prepare(options: argparse.Namespace) -> Session:
    """Return the session for these options. Raises CannotRun or ValueError for wrong ones."""
    if options.module is not None:
        if not options.module:
            raise target.CannotRun("-m needs the name of a module.")
        what = target.module_target(options.module[0], options.module[1:])
    else:
        what = _script(options.script[1:] if options.script[:1] == ["--"] else options.script, options.batch)
    mode, name = choose(options.gpu)
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if options.gpus is None else options.gpus
    check_json(options.json)

    import torch

    from ..gpu import VirtualGPU
    from .session import Session

    if mode == "auto":
        mode = "real" if options.gpu is not None and torch.cuda.device_count() else "virtual"
    if options.scaling and (options.ranks or 0) < 2:
        raise target.CannotRun("--scaling compares several ranks with one: it needs --ranks N, of two or more.")
    if options.skip_ddp and options.ranks != 1:
        raise target.CannotRun("--skip-ddp leaves out the exchange of gradients: it needs --ranks 1.")
    if mode == "real":
        for option, given in ((f"--{name.replace('_', '-')}", getattr(options, name) or False) for name in VIRTUAL):
            if given:
                raise target.CannotRun(f"{option} is for virtual GPUs, and --gpu real is not one.")
        if not torch.cuda.device_count():
            raise target.CannotRun(
                "--gpu real: PyTorch finds no CUDA GPU here. What to do: python -m gpulab doctor. "
                "Without a GPU, --gpu T4 runs the script on a virtual one."
            )
        return Session(what, None, keep=False, json_to=options.json)
    if options.ranks is not None and "RANK" in os.environ:
        raise target.CannotRun("--ranks imagines ranks, and torchrun has started real ones: leave one of them out.")
    gpu = VirtualGPU(
        name, count=count, compute=not options.shapes_only, counts_host=not options.repeatable, ranks=options.ranks,
        nodes=options.nodes, link=options.link, adapters=adapters_of(options),
    )  # fmt: skip
    gpu.skips_ddp = options.skip_ddp
    return Session(what, gpu, keep=options.gpu is not None, json_to=options.json)


def adapters_of(options: argparse.Namespace) -> int | str | None:
    """Return what joins the machines, as `VirtualGPU` takes it: a number, or words."""
    return int(options.adapters) if (options.adapters or "").isdigit() else options.adapters


def run_on_one_gpu(options: argparse.Namespace) -> Alone:
    """Run the script on one GPU in a process of its own, without DistributedDataParallel's work; its output is
    dropped."""
    from .report import Alone

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "alone.json"
        command = again(options, file, ranks=1, skip_ddp=True, gpus=None, nodes=None, link=None, adapters=None)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not file.exists():
            raise target.CannotRun(f"--scaling: on one GPU: {done.stderr.decode(errors='replace').strip()}")
        found = json.loads(file.read_text(encoding="utf-8"))
    if found["ending"]["code"]:
        return Alone(None, f"alone it ended with exit code {found['ending']['code']}: {found['ending']['why']}")
    median = next((steps["median"] for steps in found["steps"]), None)
    why = "" if median else "alone it took no two steps of an optimizer on the GPU"
    return Alone(median, why, found["skipped_ddp"])


def _script(command: list[str], batch: int | None) -> target.Target:
    if not command:
        raise target.CannotRun(f"no script is given.\nusage: {USAGE}")
    if batch is not None:
        return target.step_target(command[0], batch)
    return target.script_target(command[0], command[1:])
