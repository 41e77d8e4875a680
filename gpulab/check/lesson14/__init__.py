"""The checks of lesson 14: a run that goes on to the bit, whole checkpoints, the notice, and how often to save."""
