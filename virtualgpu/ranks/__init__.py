"""Ranks: what a process group does on virtual GPUs, with real ranks or imagined ones, in values, memory and time."""
