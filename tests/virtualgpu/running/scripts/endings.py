"""Ends as it is told."""

import atexit
import os
import signal
import sys
import time

import torch

parent = os.getpid()
tensor = torch.ones(1000, 1000, device="cuda")
total = tensor.sum()
atexit.register(lambda: os.getpid() == parent and print(f"at exit the sum is {total.item():.0f}"))


def fail():
    raise ValueError("what went wrong\nand more of it")


how = sys.argv[1]
print(f"{__name__}, {sys.argv}", flush=True)
if how == "raise":
    fail()
elif how == "message":
    sys.exit("a last word")
elif how == "code":
    sys.exit(7)
elif how == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print("the child's exit code:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(30)
