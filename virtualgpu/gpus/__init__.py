"""Specifications of the GPU models that can be simulated. No torch."""
