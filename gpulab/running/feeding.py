"""How long a run waits for its data: the time in `next()` of PyTorch's DataLoader, by this machine's clock.

Without workers that is the loading itself, with them the wait for one. It changes nothing that the loader does.
"""

from __future__ import annotations

import threading
import time
from typing import Any


class Feeding:
    """From now on, `seconds` is what the main thread has spent in the `next()` of all loaders, and `batches` how many
    they gave. A loader that a data set asks in turn counts once."""

    def __init__(self) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self.seconds, self.batches = 0.0, 0
        self._class: Any = _BaseDataLoaderIter  # all loaders' iterators are of it
        self._own = own = _BaseDataLoaderIter.__next__
        self._inside = False
        feeding = self

        def __next__(self: Any) -> Any:
            if feeding._inside or threading.current_thread() is not threading.main_thread():
                return own(self)
            feeding._inside = True
            began = time.monotonic()  # which no scope replaces
            try:
                batch = own(self)
                feeding.batches += 1
                return batch
            finally:
                feeding.seconds += time.monotonic() - began
                feeding._inside = False

        self._put(__next__)

    def end(self) -> None:
        """Count no longer."""
        self._put(self._own)

    def _put(self, function: Any) -> None:
        self._class.__next__ = function
