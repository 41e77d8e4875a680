"""The rows that the record_*.py print: JSON, one for each case, begun with what names it.

So record.py goes on after a case that ends the process. Argument: the number of rows to skip.
"""

import gc
import json
import sys

import torch


def of_this_gpu(modes):
    """Those of `modes` that the GPU has: bf16 from capability 8.0 on."""
    every = torch.cuda.get_device_capability() >= (8, 0)
    return {name: mode for name, mode in modes.items() if every or "bf16" not in name}


def print_rows(cases, record, *, longest=300, **versions):
    """`cases` gives what names a row, and the arguments of which `record` makes the rest; an error has `longest`
    characters."""
    torch.backends.cuda.matmul.allow_tf32 = False
    skip = int(sys.argv[1])
    print(json.dumps({"torch": torch.__version__} | versions), flush=True)
    for number, (row, arguments) in enumerate(cases):
        if number < skip:
            continue
        print(json.dumps(row | {"started": number}), flush=True)
        torch.manual_seed(0)
        try:
            row = row | record(*arguments)
        except Exception as error:
            torch.cuda.memory._record_memory_history(None)
            row = row | {"error": f"{type(error).__name__}: {error}"[:longest]}
        print(json.dumps(row), flush=True)
        gc.collect()
        if number == skip:
            gc.freeze()  # what the first row imported: collections are then quick
