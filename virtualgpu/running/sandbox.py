"""Sandbox a process with seccomp, so that it cannot change files or reach other processes.

The kernel enforces it, so it holds for C++, Rust and threads as for Python: files open for reading only, none is
created, renamed or removed, and there are no new sockets or processes, and no signals to others. A file that Python
opens for writing, such as a log, leads to /dev/null without an error.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import io
import os
import platform
import struct
import sys
from pathlib import Path
from typing import Any

# Refused system calls, by their numbers on x86-64 and arm64 (0: does not exist).
_REFUSED = {
    "creat": (85, 0), "openat2": (437, 437), "truncate": (76, 45), "unlink": (87, 0), "unlinkat": (263, 35),
    "rename": (82, 0), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, 0), "mkdirat": (258, 34),
    "rmdir": (84, 0), "link": (86, 0), "linkat": (265, 37), "symlink": (88, 0), "symlinkat": (266, 36),
    "mknod": (133, 0), "mknodat": (259, 33), "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, 0), "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54),
    "utime": (132, 0), "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "socket": (41, 198), "fork": (57, 0), "vfork": (58, 0), "clone3": (435, 435),
    "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "pidfd_send_signal": (424, 424), "ptrace": (101, 117), "process_vm_writev": (311, 271), "mount": (165, 40),
    "io_uring_setup": (425, 425), "mq_open": (240, 180), "shmget": (29, 194), "umount2": (166, 39),
}  # fmt: skip
_OPENS = {"open": (2, 0), "openat": (257, 56)}  # refused for writing; the flags are argument 1 and 2
_CLONE = (56, 220)  # refused but for threads
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x10000
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column above, AUDIT_ARCH

_LOAD, _EQUAL, _ANY_OF, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the filter's instructions (linux/bpf_common.h)
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.ENOSYS  # for clone3, the C library then takes clone, as for threads
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_SET_SECCOMP, _FILTER, _NO_NEW_PRIVILEGES, _PARENT_DEATH_SIGNAL = 22, 2, 38, 1


def is_supported() -> bool:
    """Return True if this process can be confined: Linux on x86-64 or arm64, and no file mapped for writing."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    maps = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    return not any(
        len(parts) == 6 and parts[1].startswith("rw") and parts[1].endswith("s") and _lasts(parts[5]) for parts in maps
    )


def _lasts(mapped: str) -> bool:
    return mapped.startswith("/") and not mapped.startswith(("/dev/", "/memfd:", "/SYSV")) and "(deleted)" not in mapped


def die_with_parent() -> None:
    """End this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, 9, 0, 0, 0)


def confine(kept: int) -> None:
    """Confine this process for good; only the open file `kept` stays writable. Raises OSError."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in (kept, nowhere):
            continue
        try:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                os.dup2(nowhere, fd, inheritable=False)
        except OSError as error:
            if error.errno != errno.EBADF:  # the descriptor of the listing, closed by now
                raise
    program = _program(*_MACHINES[platform.machine()])
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for call in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_SECCOMP, _FILTER, ctypes.c_void_p(ctypes.addressof(whole)), 0, 0),
    ):
        if prctl(*call):
            raise OSError(ctypes.get_errno(), "the kernel takes no seccomp filter")
    _pretend(nowhere)


def _pretend(nowhere: int) -> None:
    """Let Python open files for writing, and drop what it writes."""
    own = io.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return own(os.dup(nowhere) if set(mode) & set("wax+") else file, mode, *args, **kwargs)

    builtins.open = io.open = opened


def _program(column: int, machine: int) -> list[tuple[int, int, int, int]]:
    """Return the BPF filter: instructions of (code, lines to skip if true, lines to skip if false, number)."""
    refuse, allow = (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)
    lines = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, machine), refuse, (_LOAD, 0, 0, _NR)]
    for number in (numbers[column] for numbers in _REFUSED.values()):
        lines += [(_EQUAL, 0, 1, number), refuse] if number else []
    for argument, number in enumerate((numbers[column] for numbers in _OPENS.values()), start=1):
        flags = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
        lines += [(_EQUAL, 0, 4, number), flags, (_ANY_OF, 0, 1, _WRITES), refuse, allow] if number else []
    lines += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _ARGUMENTS), (_ANY_OF, 1, 0, _CLONE_THREAD), refuse, allow]
    return [*lines, allow]
