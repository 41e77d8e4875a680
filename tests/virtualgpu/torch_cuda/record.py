"""Record what PyTorch's own CUDA code does, without a GPU: ops.json, ops_cudnn.json, steps.json, models.json,
errors.json, products.json, attention.json, layers.json, sync_norm.json and recurrent.json beside this.

    python tests/virtualgpu/torch_cuda/record.py [ops] [steps] [models] [errors] [...] [--capability 7.5 8.0 9.0]

Needs Linux, gcc and a CUDA build of torch with its libraries from PyPI. The stand-in (driver.c, cudnn.c, cublaslt.c,
nothing.c, loaded before CUDA's libraries) answers the calls that PyTorch makes to CUDA.

Real, because it is PyTorch's own code: which operator and which kernel run (attention's choice by capability,
autocast's lists, foreach and fused optimizers), every tensor that is made, its dtype and shape, what autograd keeps,
the order of allocations and frees, the caching allocator with its numbers and messages, cuBLAS workspaces, every
exception.

Convolutions and cuDNN's attention want no workspace in ops.json and in most rows of steps.json and models.json;
where it says "cudnn": "planned", the workspaces are those that the real cuDNN plans for a device of that description.

Not real: no kernel runs. Device memory reads as zeros, so a size that depends on values (nonzero, unique, the segments
of a sorted embedding gradient) is that of zeros, where a recorder does not say what is to be read; `.item()` gives 0;
GradScaler sees finite gradients. cuDNN's older interface asks for no workspace, reserve or dropout state (batch norm in
channels_last; recurrent layers too, but where "cudnn" is "planned", and in recurrent.json); CUB's temporary storage
follows an occupancy that leaves registers out; cuBLASLt's heuristic has one answer. Nothing is timed.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import stand_in

HERE = Path(__file__).resolve().parent
EVERYTHING = [
    "ops", "ops_cudnn", "steps", "models", "errors", "products", "attention", "layers", "sync_norm", "recurrent",
]  # fmt: skip
WHAT = "PyTorch's CUDA code on a stand-in driver; no kernel ran"


def rows(library: Path, script: str, capability: str, devices: int = 1, **settings: str):
    """The JSON rows that a script prints; where one ends the process, a row that says so, and on from the next."""
    skip = 0
    while True:
        environment = stand_in.environment(library, capability, devices) | settings
        command = [sys.executable, "-W", "ignore", str(HERE / script), str(skip)]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        process = subprocess.Popen(command, env=environment, **quiet)
        started = None
        for line in process.stdout:
            row = json.loads(line)
            number = row.pop("started", None)
            if number is None:
                started = None
                yield row
            else:
                started, skip = row, number + 1
        process.wait()
        if started is None:
            return
        yield started | {"error": f"the process ended with {process.returncode}"}


def recorded(library: Path, what: str, capability: str):
    """Steps are recorded thrice: as torch 2.15 is, with cuBLAS workspaces kept as before it, and with cuDNN's plans;
    those of further models without the second. Of operators with cuDNN's plans, the memory of those that it changes."""
    if what == "ops_cudnn":
        memory = ("op", "mode", "forward", "forward_events", "backward", "backward_events", "error", "backward_error")
        plain = {(row["op"], row["mode"]): row for row in rows(library, "record_ops.py", capability) if "op" in row}
        for row in rows(library, "record_ops.py", capability, **stand_in.cudnn()):
            if "op" not in row:
                yield row
            elif row != plain[row["op"], row["mode"]]:
                yield {key: row[key] for key in memory if key in row}
        return
    if what == "recurrent":
        yield from rows(library, "record_recurrent.py", capability, **stand_in.cudnn())
        return
    yield from rows(library, f"record_{what}.py", capability, devices=2 if what == "errors" else 1)
    if what == "steps":
        yield from rows(library, "record_steps.py", capability, TORCH_CUBLAS_WORKSPACE_CACHE="1")
    if what in ("steps", "models"):
        yield from rows(library, f"record_{what}.py", capability, **stand_in.cudnn())


def write(name: str, head: dict, table: list[dict]) -> None:
    """One row per line. Rows that differ in nothing but capability and mode become one, with both as lists: it holds
    for every pair of them, but for bf16 on 7.5, which is not recorded. "16" stands for the mode's 16-bit type."""
    merged: dict[str, list[tuple[str, str]]] = {}
    for row in table:
        capability, mode = row["capability"], str(row.get("mode"))
        rest = {key: value for key, value in row.items() if key not in ("capability", "mode")}
        text = json.dumps(rest, separators=(",", ":"))
        if mode.endswith("16"):
            kind = "f16" if mode.endswith("fp16") else "bf16"
            text = re.sub(rf"(?<=[\",(]){kind}(?=[\",)])", "16", text)
        merged.setdefault(text, []).append((capability, mode))
    lines = []
    for text, pairs in merged.items():
        by_capability: dict[str, list[str]] = {}
        for capability, mode in pairs:
            by_capability.setdefault(capability, []).append(mode)
        groups: dict[str, tuple[list[str], list[str]]] = {}
        for capability, modes in reversed(by_capability.items()):
            same = [m for m in groups if [x for x in groups[m][1] if capability != "7.5" or "bf16" not in x] == modes]
            capabilities, _ = groups.setdefault(same[0] if same else capability, ([], modes))
            capabilities.insert(0, capability)
        for capabilities, modes in groups.values():
            apart = {"capability": capabilities} | ({} if modes == ["None"] else {"mode": modes})
            lines.append(json.dumps(apart | json.loads(text), separators=(",", ":")))
    (HERE / name).write_text(json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=EVERYTHING)
    parser.add_argument("--capability", nargs="*", default=list(stand_in.GPUS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = stand_in.build(Path(folder))
        for what in asked.what:
            table: list[dict] = []
            head = {"what": WHAT, "context": stand_in.CONTEXT, "gpus": {c: stand_in.GPUS[c] for c in asked.capability}}
            for capability in asked.capability:
                for row in recorded(library, what, capability):
                    if "torch" in row:
                        head |= row
                        continue
                    table.append({"capability": capability} | row)
                    if len(table) % 50 == 0:
                        write(f"{what}.json", head, table)
                write(f"{what}.json", head, table)
                errors = sum("error" in row for row in table)
                print(f"{what}, up to {capability}: {len(table)} rows, {errors} errors", flush=True)


if __name__ == "__main__":
    main()
