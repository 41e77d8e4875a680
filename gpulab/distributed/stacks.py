"""Where a rank is, read from what Python's faulthandler wrote about it: the innermost line of the student's code."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*:$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def where(text: str, script: str) -> str:
    """ "train.py, line 9, in step: dist.all_reduce(x)", or "" where `text` shows nothing of `script` or its neighbours.

    `text` is a dump of all threads by faulthandler, the last one where there are several. Of a process that died, the
    thread that died counts, else the main thread, which comes last.
    """
    for block in _blocks(text):
        for path, line, function in block:
            if _own(path, script):
                return _sentence(path, line, function, script)
    return ""


def collective(text: str, script: str) -> str:
    """The function of torch.distributed in which the line that `where` names waits for other ranks, "" for none."""
    for block in _blocks(text):
        called = ""
        for path, _, function in block:
            if path.endswith(_C10D) and function in _COLLECTIVES:
                called = called or function
            if _own(path, script):
                return called
    return ""


_C10D = os.path.join("torch", "distributed", "distributed_c10d.py")
_COLLECTIVES = {
    *("all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "barrier", "send", "recv"),
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_to_all"),
    *("all_to_all_single", "gather", "gather_into_tensor", "gather_single", "scatter", "reduce_scatter"),
    *("reduce_scatter_tensor", "reduce_scatter_single"),
}


def _blocks(text: str) -> list[list[tuple[str, int, str]]]:
    """Frames (path, line, function) of each thread, innermost first: of the thread that tells most first."""
    threads = list(_THREAD.finditer(text))
    if not threads:
        return []
    blocks = [
        (match[1], text[match.end() : following.start() if following else len(text)])
        for match, following in zip(threads, [*threads[1:], None], strict=True)
    ]
    order = [block for _, block in reversed(blocks)]
    if "Fatal Python error" in text:
        order = [block for kind, block in blocks if kind == "Current thread"] + order
    return [[(p, int(line), function) for p, line, function in _FRAME.findall(_unescaped(block))] for block in order]


def _unescaped(text: str) -> str:
    """What faulthandler wrote as \\xfc, \\u2192 or \\U0001f3d6."""
    code = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
    return re.sub(code, lambda match: chr(int(match[match.lastindex or 0], 16)), text)


def _own(path: str, script: str) -> bool:
    if path == script:
        return True
    if path.startswith("<"):  # "<frozen importlib._bootstrap>", "<string>": no file of anybody's
        return False
    path, home = os.path.abspath(path), os.path.dirname(os.path.abspath(script))
    return path.startswith(home + os.sep) and not path.startswith(tuple(folder + os.sep for folder in _LIBRARIES))


_LIBRARIES = {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))} | {
    sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
}


def _sentence(path: str, line: int, function: str, script: str) -> str:
    home = os.path.dirname(os.path.abspath(script))
    place = f"{os.path.relpath(os.path.abspath(path), home)}, line {line}"
    if function != "<module>":
        place += f", in {function}"
    source = linecache.getline(path, line).strip()
    return f"{place}: {source}" if source else place
