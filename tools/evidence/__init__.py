"""What the tables of `bench.py` and `accuracy.py` are made of: what is measured, and published trainings run again."""
