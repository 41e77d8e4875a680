"""What a crash leaves of a folder: every state in which a killed process, or a power cut, can leave its files.

    with gpulab.crash.record(folder) as journal:
        save(state, folder / "checkpoint.pt")
    for state in journal.kills:
        with state.opened() as place:
            load(place / "checkpoint.pt")

Nothing is killed: the changes that Python makes under `folder` are written down one by one, and the states are computed
from them. A process that is killed leaves what it has handed to the system, each operation whole or not begun, and a
write cut short. A power cut takes more: what has not been fsynced.

The model of a power cut is that of POSIX, which promises less than any one file system keeps. Bytes are on the disk
once their file has been fsynced. A name that was made, changed or removed is there once its folder has been fsynced.
What has not been may be there or not, the later of two changes without the earlier, and a name without the bytes of its
file: Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, found each of these on a file system in use;
ext4, as it is mounted by default, spares a program some of them. Of a change that is atomic all is there, or nothing.

No program can fsync a folder on Windows: there a name counts as being on the disk at once, which is kinder than a disk.
"""

from .journal import Journal, State
from .recorder import NotSeen
from .recording import record

__all__ = ["Journal", "NotSeen", "State", "record"]
