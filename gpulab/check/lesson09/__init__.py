"""The checks of lesson 09: how long a step waits for data, a loader for a machine's cores, seeds of workers."""
