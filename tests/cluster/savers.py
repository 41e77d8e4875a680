"""Processes that save and wait to be killed: forked from one that has imported PyTorch, which takes the longest.

    python savers.py        in a folder with the lesson's checkpoints.py and train.py; commands are read from stdin

`save WAY FOLDER STEP` forks a process that stops itself (SIGSTOP), and, once it is continued, saves step STEP. `load
FOLDER` forks one that loads the newest checkpoint, and answers with its step: 0 without one, `all damaged` where none
is whole, `damaged: …` where it cannot be loaded, or is not what was saved. `train LOG ARGUMENTS` forks one that runs
train.py, which prints into LOG. Each of `save` and `train` is answered with the process's number; `ended` waits for it,
and is answered with its exit code, negative for a signal.
"""

import io
import os
import runpy
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

import checkpoints
import torch

import gpulab.data

PARTS = [torch.randn(100, 100) for _ in range(6)]  # each a record of its own in the file
torch.optim.AdamW(PARTS), gpulab.data.digits("train")  # these import more, once for all
torch.save(PARTS, io.BytesIO())


def state(step: int) -> dict:
    return {"model": [part + step for part in PARTS], "step": step}


def in_place(state: dict, folder: str, step: int) -> None:
    """What the lesson warns of: over the checkpoint that is there."""
    torch.save(state, f"{folder}/step{0:08}.pt")


def not_synced(state: dict, folder: str, step: int) -> None:
    """A file that is renamed, and not forced to the disk before."""
    torch.save(state, f"{folder}/unfinished.tmp")
    os.replace(f"{folder}/unfinished.tmp", f"{folder}/step{step:08}.pt")


WAYS = {"course": checkpoints.save, "in_place": in_place, "not_synced": not_synced}


def save(way: str, folder: str, step: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    WAYS[way](state(int(step)), folder, int(step))


def load(folder: str) -> str:
    try:
        with redirect_stdout(sys.stderr):  # what it says of damaged files is not our answer
            path = checkpoints.newest(folder)
    except RuntimeError:
        return "all damaged"
    if path is None:
        return "0"
    try:
        found = torch.load(path, weights_only=True)
    except Exception as error:
        return f"damaged: {path.name} {type(error).__name__}"
    step = found["step"]
    ours = isinstance(found["model"], list)  # and not train.py's
    if ours and not all(map(torch.equal, found["model"], state(step)["model"])):
        return f"damaged: {path.name} is not what was saved"
    return str(step)


def load_straight(folder: str) -> str:
    """As one who trusts the file: torch.load of the newest name."""
    try:
        return str(torch.load(max(f"{folder}/{n}" for n in os.listdir(folder) if n.startswith("step")))["step"])
    except Exception as error:
        return f"damaged: {type(error).__name__}"


def train(to: str, *arguments: str) -> None:
    sys.argv = ["train.py", *arguments]
    with open(to, "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    runpy.run_path("train.py", run_name="__main__")


def fork(work: Callable[..., object], *arguments: str) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return child


def answer(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    child = 0
    for line in sys.stdin:
        match line.split():
            case ["save", *arguments]:
                answer(str(child := fork(save, *arguments)))
            case ["train", *arguments]:
                answer(str(child := fork(train, *arguments)))
            case ["load", folder]:
                fork(lambda: answer(load(folder)))
                os.wait()
            case ["load_straight", folder]:
                fork(lambda: answer(load_straight(folder)))
                os.wait()
            case ["ended"]:
                answer(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
