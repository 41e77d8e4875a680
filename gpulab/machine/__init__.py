"""Chooses and examines the machine of a notebook: `setup` with its card, and the doctor."""
