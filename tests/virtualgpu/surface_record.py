"""Record what PyTorch answers on a GPU: `python tests/virtualgpu/surface_record.py` rewrites surface_answers.json.

The expressions are the ones in that file. They run in PyTorch's CUDA build on the stand-in for the driver that
torch_cuda/ has: the code is PyTorch's own, but no kernel runs, so no answer may depend on what a kernel computes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

FILE = Path(__file__).parent / "surface_answers.json"


def evaluate(expression: str) -> str:
    """What the expression gives, or the kind and the first line of its error."""
    import copy
    import io
    import pickle

    import numpy
    import torch

    names = {"torch": torch, "copy": copy, "pickle": pickle, "io": io, "numpy": numpy}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = repr(eval(expression, names))
        except Exception as error:
            answer = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return re.sub("0x[0-9a-f]+", "0x…", answer)


def main() -> None:
    """In a process for each number of GPUs, in the order of the file: some expressions change what others answer."""
    if len(sys.argv) > 1:
        recorded = json.loads(FILE.read_text())["gpus"][sys.argv[1]]
        print(json.dumps([[expression, evaluate(expression)] for expression, _ in recorded]))
        return
    sys.path.insert(0, str(FILE.parent / "torch_cuda"))
    import stand_in
    import torch

    known = json.loads(FILE.read_text())["gpus"]
    with tempfile.TemporaryDirectory() as folder:
        library = stand_in.build(Path(folder))
        for count in known:
            environment = stand_in.environment(library, "7.5", int(count)) | {"OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, count]
            ran = subprocess.run(command, env=environment, capture_output=True, check=True, cwd=folder)
            known[count] = json.loads(ran.stdout.splitlines()[-1])
    FILE.write_text(dumped(torch.__version__, known))


def dumped(version: str, gpus: dict[str, list[list[str]]]) -> str:
    """One row on a line."""
    parts = [
        f'"{count}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        for count, rows in gpus.items()
    ]
    what = "PyTorch's CUDA build on a stand-in driver that shows Tesla T4s; no kernel ran"
    return f'{{"torch": "{version}", "what": "{what}", "gpus": {{\n' + ",\n".join(parts) + "\n}}\n"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
