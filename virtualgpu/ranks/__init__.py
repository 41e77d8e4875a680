"""Process groups on virtual GPUs, with real or imagined ranks: values, memory and time."""
