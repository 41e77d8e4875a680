"""Computes the states of a folder's files that a killed process or a power cut can leave, from a recording.

    with gpulab.crash.record(folder) as journal:
        save(state, folder / "checkpoint.pt")
    for state in journal.kills:
        with state.opened() as place:
            load(place / "checkpoint.pt")

Nothing is killed: the changes that Python makes under `folder` are recorded one by one, and the states are computed
from them. A killed process leaves what it has handed to the system, each operation done or not, and a write cut short.
A power cut also loses what has not been fsynced.

The model of a power cut is POSIX, which guarantees less than any one file system. Bytes are on the disk once their file
has been fsynced; a name that was made, changed or removed once its folder has been fsynced. Other changes may be there
or not, the later of two without the earlier, and a name without the bytes of its file: Pillai et al., "All File Systems
Are Not Created Equal", OSDI 2014, found each of these on a file system in use; ext4 with default mount options excludes
some. An atomic change is there as a whole or not at all.

No program can fsync a folder on Windows: there a name counts as on the disk at once, which is optimistic.
"""

from .journal import Journal, State
from .recorder import NotSeen
from .recording import record

__all__ = ["Journal", "NotSeen", "State", "record"]
