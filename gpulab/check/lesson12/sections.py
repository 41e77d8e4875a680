"""The headings of lecture 12 that its checks send a student to."""

PROCESSES = "One script, N processes"
RING = "What travels: an all-reduce by hand"
BUCKETS = "Buckets: sending while backward computes"
LINKS = "Links: when two GPUs are slower than one"
DATA = "Data: who gets which sample"
LAUNCHING = "Launching"
MISTAKES = "Common mistakes"
SCALING = "Scaling: weak and strong"
SECTIONS = (PROCESSES, RING, BUCKETS, LINKS, DATA, LAUNCHING, MISTAKES, SCALING)
