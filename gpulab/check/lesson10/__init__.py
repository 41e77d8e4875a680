"""The checks of lesson 10: a bottleneck named from a trace, steps recorded on a schedule, one number for a job."""
