"""State of the running virtual GPU: the current scope, its devices, storage labels, and patches."""
