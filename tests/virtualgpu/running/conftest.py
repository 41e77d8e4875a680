"""The fixture that runs a script in this process."""

import gc
import sys

import pytest
import torch

from virtualgpu.running import command, target

from .starting import SCRIPTS, Done, options_of


@pytest.fixture
def run(capfd, monkeypatch):
    """`run(script, *its_arguments, options=[…])` in this process."""
    for name in ("GPULAB_GPU", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)

    def go(script, *arguments, options=()):
        path = SCRIPTS / f"{script}.py" if isinstance(script, str) else script
        session = command.prepare(options_of(*options, path, *arguments))
        capfd.readouterr()
        with target.interpreter_restored():
            session.begin()
            try:
                code = session.execute()
                names = dict(vars(sys.modules["__main__"]))
                report = session.report()
                session.finish()
            finally:
                session.close()
        out, err = capfd.readouterr()
        return Done(code, out, err, report, names)

    benchmark = torch.backends.cudnn.benchmark
    yield go
    torch.backends.cudnn.benchmark = benchmark  # a script may set it, and this process goes on
    gc.collect()
