"""The checks of lesson 13: what each rank holds, one file from all of them, a training that is cut, how few GPUs do."""
