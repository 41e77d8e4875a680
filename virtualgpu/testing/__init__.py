"""Tests of anyone's program on a virtual GPU: a plugin for pytest, and what it lets a test assert."""
