"""Checkpoints that are whole or not there, and where the random generators stand."""

import io
import os
import pathlib
import random
import shutil
import zipfile
import zlib

import numpy as np
import torch


def random_state():
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),  # weights_only=True reads no NumPy array
        "cpu": torch.get_rng_state(),
        "gpus": torch.cuda.get_rng_state_all(),  # [] without a GPU
    }


def set_random_state(state):
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for gpu, numbers in zip(range(torch.cuda.device_count()), state["gpus"], strict=False):
        torch.cuda.set_rng_state(numbers, gpu)


def whole(path):
    """Are the bytes those that were written? An OSError is raised: it says nothing of the bytes."""
    content = pathlib.Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if archive.testzip():
                return False
        torch.load(io.BytesIO(content), map_location="meta", weights_only=True)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):
        return False
    return True


def listed(folder, ending):
    """In the order of their steps. Unlike glob, os.listdir raises if the folder cannot be read."""
    names = [name for name in os.listdir(folder) if name.startswith("step") and name.endswith(ending)]
    return [pathlib.Path(folder, name) for name in sorted(names)]


def newest(folder):
    """The newest whole checkpoint's path; None if none was ever saved."""
    for path in reversed(listed(folder, ".pt")):
        if whole(path):
            return path
        print(f"{path.name} is damaged, and set aside", flush=True)
        path.replace(path.with_suffix(".damaged"))
    if listed(folder, ".damaged"):
        raise RuntimeError(f"all checkpoints in {folder} are damaged: starting at step 0 would lose the run")
    return None


def too_many(paths, keep, milestone=1000):
    """All but the last `keep` and every `milestone`th step."""
    return [path for path in paths[:-keep] if int(path.stem[4:]) % milestone]


def save(state, folder, step, keep=3):
    """Write folder/step00000040.pt, whole or not at all; its path. The last `keep` stay."""
    folder = pathlib.Path(folder)
    path, temporary = folder / f"step{step:08}.pt", folder / "unfinished.tmp"
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    for later in [other for other in listed(folder, ".pt") if other > path]:
        later.replace(later.with_suffix(".left"))
    os.replace(temporary, path)
    if os.name == "posix":  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    for old in too_many(listed(folder, ".pt"), keep):
        old.unlink()
    return path


def upload(path, store, keep=3):
    """Copy a checkpoint into `store`; a mark, written last, says that it is whole."""
    store, mark = pathlib.Path(store), path.with_suffix(".done").name
    for later in [other for other in listed(store, ".done") if other.name >= mark]:
        later.unlink()
    shutil.copyfile(path, store / path.name)
    (store / mark).touch()
    for old in too_many(listed(store, ".done"), keep):
        old.unlink()
        old.with_suffix(".pt").unlink()


def fetch(store, folder):
    """Bring the newest with a mark into `folder`, if it is not there."""
    for mark in listed(store, ".done")[-1:]:
        path = pathlib.Path(folder, mark.with_suffix(".pt").name)
        if not path.exists():
            shutil.copyfile(mark.with_suffix(".pt"), path.with_name("unfinished.tmp"))
            os.replace(path.with_name("unfinished.tmp"), path)
