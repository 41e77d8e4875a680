"""The GPUs that can be virtual: what their vendors say of them. No torch."""
