"""Answers to the challenge `GPUMemoryTracker`: one block, blocks beside others, errors, several GPUs and none."""

from banks.bank import Bank
from banks.edits import add, change, drop

import gpulab

BANK = Bank("memory_tracker", "GPUMemoryTracker")
RESET, COUNT, PEAK = "torch.cuda.reset_peak_memory_stats(gpu)", "self._now[gpu] - self._entry[gpu]", "self._peak[gpu])"
MAX = "max(tracker._peak[gpu], torch.cuda.max_memory_allocated(gpu))"
PEAKS, DELTAS = "sum(self.peak_by_gpu.values())", "sum(self.delta_by_gpu.values())"
ABOVE = "self.peak_memory_mb - sum(self._entry.values()) / 2**20"
AVAILABLE = "bool(self._in_mib(self._entry.get))"
NOTED = "self._now, self._peak = dict(self._entry), dict(self._entry)"
ENTERS = "gpus = self._find_gpus()\n        for gpu in gpus:\n            torch.cuda.synchronize(gpu)\n"
LEAVES = "for gpu in self._entry:\n                torch.cuda.synchronize(gpu)"
TELLS = "        self._tell_all()\n        for gpu in gpus:"
CLOSES = "            self._tell_all()\n            self._open.remove(self)"
REFUSES = "if self in self._open:\n            raise"
NONE_YET = "if self._entry is None:\n            raise RuntimeError"
INSIDE = "        if self in self._open:\n            self._tell_all()\n"
ALL = 'if self.device == "all":\n            return list(range(torch.cuda.device_count()))\n        '
TO_OPEN = "for tracker in cls._open:"
OWN_ONLY = """            every, type(self)._open = self._open, [self] if {0} else self._open
            self._tell_all()
            type(self)._open = every
            self._open.remove(self)
            {1} and list(map(torch.cuda.reset_peak_memory_stats, self._entry))"""


def tells(which):
    """At entry only the open trackers `which` take the counter's peak."""
    some = f"every, type(self)._open = self._open, [t for t in self._open if {which}]"
    return change(
        TELLS, f"        {some}\n        self._tell_all()\n        type(self)._open = every\n        for gpu in gpus:"
    )


@BANK.right
class Own:
    """gpulab's own tracker; the values are set when the block has ended."""

    def __init__(self, device=None):
        self.tracker = gpulab.GPUMemoryTracker(device=device)

    def __getattr__(self, name):
        raise RuntimeError(f"{name} is known when a block has ended")

    def __enter__(self):
        self.tracker.__enter__()
        self.__dict__ = {"tracker": self.tracker}
        return self

    def __exit__(self, *error):
        try:
            return self.tracker.__exit__(*error)
        finally:
            own, by_gpu = self.tracker, {int(one.device.partition(":")[2]): one for one in self.tracker.devices}
            self.available, self.peak_memory_mb, self.memory_delta_mb = (
                own.available,
                own.peak_memory_mb,
                own.memory_delta_mb,
            )
            self.peak_above_entry_mb = own.peak_above_entry_bytes / 1024 / 1024
            self.peak_by_gpu = {gpu: one.peak_bytes / 2**20 for gpu, one in by_gpu.items()}
            self.delta_by_gpu = {gpu: one.delta_bytes / 2**20 for gpu, one in by_gpu.items()}


BANK.right(
    (
        change(INSIDE, INSIDE.replace("self._tell_all()", "raise RuntimeError")),
        change(MAX, 'max(tracker._peak[gpu], torch.cuda.memory_stats(gpu)["allocated_bytes.all.peak"])'),
        change(ENTERS, f"{ENTERS}        torch.cuda.empty_cache()\n"),
    )
)

BANK.mistakes(
    # One block
    ("a peak from before the block is in the values", "the counter runs since its last reset: reset it in __enter__",
     change(RESET, "pass")),
    ("a peak from between making and entering the tracker is in the values", "the counter is reset in __init__",
     (change(RESET, "pass"),
      change("self.device = device",
             f"self.device = device\n        for gpu in self._find_gpus():\n            {RESET}"))),
    ("the change is counted from where the tracker was made", "it is read in __init__: read it in __enter__",
     (
      add("self._made = [*map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))]",
          after="self.device = device"),
      change(DELTAS, "sum((self._now[g] - self._made[g]) / 2**20 for g in self.delta_by_gpu)")),
     (
      add("self._made = [*map(torch.cuda.memory_allocated, range(torch.cuda.device_count()))]",
          after="self.device = device"), change(COUNT, "self._now[gpu] - self._made[gpu]"))),
    ("the peak leaves out what was allocated at entry",
     "that is peak_above_entry_mb; a peak is absolute: all that must fit on the GPU",
     change(PEAK, "self._peak[gpu] - self._entry[gpu])"),
     (change(PEAKS, f"{PEAKS} - sum(self._entry.values()) / 2**20"), change(ABOVE, "self.peak_memory_mb"))),
    ("what is allocated at the end is reported as the peak", "what was highest in between is max_memory_allocated()",
     change(MAX, "torch.cuda.memory_allocated(gpu)")),
    ("the peak is that of reserved memory",
     "free blocks are reserved too; tensors are counted by max_memory_allocated()",
     change(MAX, MAX.replace("allocated", "reserved"))),
    ("the values are not in MiB", "PyTorch's messages count in 2**20 bytes, even where they say MB",
     change("nbytes(gpu) / 2**20", "nbytes(gpu) / 1e6"), change("nbytes(gpu) / 2**20", "nbytes(gpu)"),
     change("nbytes(gpu) / 2**20", "nbytes(gpu) / 2**10")),
    ("the change is all that is allocated at the end", "the change is that less what was allocated at entry",
     change(COUNT, "self._now[gpu]"), change(DELTAS, f"{DELTAS} + sum(self._entry.values()) / 2**20")),
    ("the change is taken from the peak, not from the end", "peak less entry is peak_above_entry_mb",
     change(COUNT, "self._peak[gpu] - self._entry[gpu]"), change(DELTAS, "self.peak_above_entry_mb")),
    ("the change has the wrong sign", "more at the end than at entry is a change above 0: end less entry",
     change(COUNT, "self._entry[gpu] - self._now[gpu]"), change(DELTAS, f"-{DELTAS}")),
    ("a change below 0 loses its sign", "a block that frees more than it allocates has a negative change: leave out "
                                        "max(0, …) and abs()",
     *(change(old, f"{how}{old})") for old in (COUNT, DELTAS) for how in ("max(0, ", "abs("))),
    ("peak_above_entry_mb is another number", "subtract what was allocated at entry, and nothing else, from the peak",
     *(change(ABOVE, new) for new in ("self.peak_memory_mb", "self.memory_delta_mb", ABOVE.replace("_entry", "_now")))),
    ("`with … as tracker` gives nothing", "__enter__ has to return self", drop("return self")),
    ("the values change after the block", "the counters are read when a value is asked for: read them in __exit__",
     change(INSIDE, "        self._open.append(self)\n        self._tell_all()\n        self._open.remove(self)\n")),
    ("peak_memory_mb is a method, not a value", "put @property above it, or set it: it is read without parentheses",
     change(f"property(lambda self: {PEAKS})", f"lambda self: {PEAKS}")),
    ("the tracker has no peak_above_entry_mb", "the exercise names all six",
     change(f"    peak_above_entry_mb = property(\n        lambda self: {ABOVE}\n    )", "")),
    ("available is a count", "True or False: whether there was a GPU at entry",
     change(AVAILABLE, AVAILABLE.replace("bool", "len"))),
    ("available is False for device=0", "0 is false, but it is the number of a GPU: test whether any GPU is watched",
     change(AVAILABLE, f"bool({AVAILABLE} and (self.device is None or self.device))")),
    ("available is computed when it is read", "note at entry whether there is a GPU",
     change(AVAILABLE, "torch.cuda.is_available()")),
    ("the GPU is another one now", "torch.cuda.set_device() lasts: hand each function the number, or put it back",
     change(ENTERS, ENTERS.replace("torch", "torch.cuda.set_device(gpu) or torch"))),
    # A second block, and reading too early
    ("a second block shows the peak of the one before", "reset everything that was recorded before in __enter__",
     change(NOTED, "self._now, self._peak = dict(self._entry), getattr(self, '_peak', None) or dict(self._entry)")),
    ("the change counts from the first entry of the tracker", "reset everything that was recorded before in __enter__",
     change("self._entry = {gpu:", "self._entry = self._entry or {gpu:")),
    ("a second block shows the change of the first", "a value computed once is not computed again",
     change(DELTAS, f"self.__dict__.setdefault('_first', {DELTAS})")),
    ("before the first block there are values that were not measured",
     "0 or {} looks like a result: raise RuntimeError",
     change(NONE_YET, "if self._entry is None:\n            return {}\n            raise RuntimeError"),
     change(PEAKS, f"{PEAKS} if self._entry is not None else 0.0"),
     change(ABOVE, f"{ABOVE} if self._entry is not None else 0.0")),
    ("inside the block the peak is what the counter says, which another tracker has reset",
     "it is the larger of what the tracker has recorded and what the counter says then",
     change(PEAK, "torch.cuda.max_memory_allocated(gpu) if self in self._open else self._peak[gpu])")),
    ("inside the second block the values of the first are still there", "clear them in __enter__",
     (add("self._old = dict(self._peak)", after="_open.remove"),
      change(PEAK, "getattr(self, '_old', self._peak)[gpu])"))),
    ("inside the block the values are those of the last reset", "read the counters when a value is asked for",
     change(INSIDE, "")),
    # Beside other trackers
    ("the inner tracker erases the outer one's peak",
     "before a reset, every open tracker takes the counter's peak into its own",
     change(TELLS, "        for gpu in gpus:"),
     (change(TELLS, "        for gpu in gpus:"), change(CLOSES, OWN_ONLY.format("True", "False")))),
    ("the outer tracker knows only what came after the inner one",
     "both entering and leaving reset the counter, and no other tracker reads it before",
     (change(TELLS, "        for gpu in gpus:"), change(CLOSES, OWN_ONLY.format("True", "True")))),
    ("what was highest in the inner block is missing from the outer",
     "the counter is reset at the end, and no other tracker reads it before", change(CLOSES, OWN_ONLY.format("True",
     "True"))),
    ("what was highest after the inner block is missing from the outer",
     "at its exit it takes the counter's peak once more",
     (change(MAX, f"tracker._peak[gpu] if getattr(tracker, '_sealed', False) else {MAX}"),
      change(NOTED, f"{NOTED}\n        self._sealed = False"),
      add("vars(self._open[-1] if self._open else self)['_sealed'] = True", after="_open.remove"))),
    ("the inner tracker shows a peak that was before it",
     "it has to reset the counter too, once the outer one has read it", change(RESET, f"self._open or {RESET}")),
    ("with several trackers open, a peak does not reach every tracker that it belongs to",
     "it belongs to each one that is open, however deep",
     change(TO_OPEN, "for tracker in cls._open[-3:]:"), change(TO_OPEN, "for tracker in cls._open[-2:]:")),
    ("one tracker can be entered twice at the same time", "raise RuntimeError when the tracker is among the open ones",
     change(REFUSES, "if False:\n            raise")),
    ("a refused entry spoils the block that is open",
     "the refusal must come first in __enter__, before anything is recorded or reset",
     (change(REFUSES, "if False:\n            raise"),
      add("if self in self._open: raise RuntimeError('too late')", before="_open.append")),
     change(REFUSES, REFUSES.replace("raise", "self._peak = dict.fromkeys(self._peak, 0)\n            raise"))),
    ("a tracker in another thread erases this one's peak",
     "the list of open trackers has to be one for all threads, not one for each",
     (add("self._thread = __import__('threading').get_ident()", before="_open.append"),
      change(TO_OPEN, "for tracker in [t for t in cls._open if t._thread == __import__('threading').get_ident()]:"))),
    ("the tracker that entered last is taken off the list, not the one that leaves",
     "self._open.remove(self): it need not be the last", change("_open.remove(self)", "_open.pop()")),
    # Errors
    ("an exception in the block is swallowed", "__exit__ returns something true: return False or nothing",
     change("return False", "return True")),
    ("OutOfMemoryError is swallowed", "it is an exception like any other",
     change("return False", "return kind is torch.OutOfMemoryError")),
    ("__exit__ takes no arguments", "three arguments besides self",
     change("__exit__(self, kind, error, trace)", "__exit__(self)")),
    ("after an exception the tracker stays open", "remove it from the list of open ones in any case",
     change("            self._open.remove(self)", "            self._open.remove(self) if kind is None else None")),
    ("after an exception the tracker cannot be entered again",
     "its mark as open is cleared only if there is no exception",
     (change(REFUSES, "if getattr(self, '_busy', False):\n            raise"),
      add("self._busy = True", before="_open.append"), add("self._busy = kind is not None", after="_open.remove"))),
    ("after an exception the values are not those of the end", "__exit__ has to read the counters in any case",
     change(CLOSES, CLOSES.replace("self._tell", "kind is None and self._tell"))),
    ("after an exception such as KeyboardInterrupt the values are not those of the end",
     "it is no Exception, and ends a block too",
     change(CLOSES, CLOSES.replace("self._tell", "(kind is None or issubclass(kind, Exception)) and self._tell"))),
    ("another exception comes out of the block", "__exit__ raises",
     change("return False", "if kind:\n            raise RuntimeError('failed')")),
    ("what was highest in a block that failed is missing from the outer",
     "do everything after an exception that you do without one", change(CLOSES, OWN_ONLY.format("kind", "kind"))),
    ("after a kernel's error the tracker stays open",
     "synchronize() raises it, and what stands after it never runs: close in a finally",
     (change("        try:", "        if True:"), change("finally:", "if True:"))),
    ("a kernel's error is held back", "what synchronize() raises has to come out of __exit__",
     change("        finally:", "        except RuntimeError:\n            pass\n        finally:")),
    ("after a kernel's error the values are not those of the end",
     "the counters are on the host, and can still be read: before the wait, or in a finally",
     (change(LEAVES, f"{LEAVES}\n            self._tell_all()"),
      change(CLOSES, "            self._open.remove(self)"))),
    ("a tracker whose wait at entry raises is open for ever", "wait first, then mark it as open: no __exit__ follows",
     (change(ENTERS, "gpus = self._find_gpus()\n"),
      change("return self", "[torch.cuda.synchronize(gpu) for gpu in gpus]\n        return self"))),
    # Several GPUs, and none
    ("the device that was asked for is ignored",
     "each function that reports memory takes a GPU's number: without one it means the current GPU",
     (change('self.device == "all"', "False"), change(" if self.device is None else self.device]", "]"))),
    ("the tracker follows the current GPU, which changes inside the block", "find out which it is once, in __enter__",
     change(MAX, MAX.replace("(gpu)", "(None if tracker.device is None else gpu)"))),
    ("GPU 0 is treated as no number", "0 is false: ask `is None`",
     change("if self.device is None else", "if not self.device else")),
    ("all GPUs are watched though one was asked for", "without a number, watch the one that is current at entry",
     change('if self.device == "all"', "if True")),
    ("not every GPU is watched though all were asked for", '"all" is each from 0 to torch.cuda.device_count() - 1',
     change("list(range(torch.cuda.device_count()))", "[0]"),
     change("list(range(torch.cuda.device_count()))", "[0, 1]")),
    ("the largest peak is returned as the sum of the peaks", "each GPU has to hold its own peak, and these are added",
     change(PEAKS, "max(self.peak_by_gpu.values(), default=0.0)")),
    ('"all" is passed to torch as a device', "torch knows no such device: query each GPU by its number",
     change(ALL, "")),
    ("the class takes no device", "GPUMemoryTracker(device=None)",
     (change("self, device=None", "self"), change("= device", "= None"))),
    ("peak_by_gpu is a list", "a dict from GPU number to MiB is asked for",
     (change("self._in_mib(lambda gpu: self._peak[gpu])", "[*self._in_mib(lambda gpu: self._peak[gpu]).values()]"),
      change(PEAKS, "sum(self.peak_by_gpu)"))),
    ("one GPU's peak is mixed with another's", "there is a peak counter for each GPU",
     change(MAX,
            "max(tracker._peak[gpu], *(torch.cuda.max_memory_allocated(g) for t in cls._open for g in t._entry))")),
    ("trackers that also watch other GPUs are left out",
     "before a GPU's counter is reset, every tracker that watches it takes its peak, even if it watches others too",
     tells("[*t._entry] == gpus")),
    ("two trackers of one GPU do not know each other",
     "device=None and device=0 can mean the same: compare the GPUs, not the arguments",
     tells("'all' in (t.device, self.device) or t.device == self.device")),
    ("the GPU that was current when the tracker was made is watched", "ask in __enter__, where the block begins",
     (add("self._found = self._find_gpus()", after="self.device = device"),
      change("gpus = self._find_gpus()", "gpus = self._found"))),
    ("a GPU is needed", "call torch.cuda.is_available() in __enter__, and do nothing if it is False",
     change("if not torch.cuda.is_available()", "if False"),
     change("if not torch.cuda.is_available()", "if not torch.cuda.is_available() and self.device is None")),
    ("without a GPU a value is None", "code that adds up or prints the values runs on a laptop, too: 0.0",
     (change(PEAKS, f"{PEAKS} if self.peak_by_gpu else None"),
      change(ABOVE, f"{ABOVE} if self.peak_by_gpu else None"))),
    ("without a GPU available is not False", "0 MiB measured and nothing measured are different things",
     change(f"property(lambda self: {AVAILABLE})", "True")),
    ("without a GPU there is a GPU 0", "no GPU in peak_by_gpu and delta_by_gpu",
     change(f"{COUNT})", f"{COUNT}) or {{0: 0.0}}")),
    ("without a GPU no value can be read", "only before the first block reading is refused",
     change("if self._entry is None", "if not self._entry")),
    ("the tracker waits for no GPU", "torch.cuda.synchronize(gpu): an error of a kernel shows at the next wait",
     (change(ENTERS, "gpus = self._find_gpus()\n"), change(LEAVES, "pass"))),
    ("the tracker does not wait for the GPU at entry", "an error from before the block is then not blamed on it",
     change(ENTERS, "gpus = self._find_gpus()\n")),
    ("the tracker does not wait for the GPU at exit", "an error of this block then comes out of this block",
     change(LEAVES, "pass")),
    ("the tracker waits for the current GPU, not for the one that it watches",
     "without a number synchronize() waits for the current GPU only",
     (change(ENTERS, ENTERS.replace("(gpu)", "()")), change(LEAVES, LEAVES.replace("(gpu)", "()"))),
     change(LEAVES, LEAVES.replace("(gpu)", "(None if self.device is None else gpu)"))),
    ("the tracker waits for one stream, not for the GPU", "torch.cuda.synchronize(gpu) waits for all its streams",
     change(ENTERS, ENTERS.replace("synchronize(gpu)", "current_stream(gpu).synchronize()")),
     change(LEAVES, LEAVES.replace("synchronize(gpu)", "default_stream(gpu).synchronize()"))),
    ("what it makes is no context manager", "two underscores on both sides", change("def __enter__", "def __enter")),
)  # fmt: skip
