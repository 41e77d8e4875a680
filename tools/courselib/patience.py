"""How long the tests and the build wait for what should have been over long ago.

Nothing that works takes near as long, on however busy a machine: this ends what hangs.
"""

HANG_SECONDS = 1800
