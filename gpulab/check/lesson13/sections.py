"""The headings of lecture 13 that its checks send a student to."""

BYTES = "Where the bytes go"
UNITS = "Gather, compute, let go"
PRACTICE = "fully_shard in practice"
SAVED = "Saved on two, loaded on one and on three"
PLANNED = "A 7B, a 13B and a 70B planned"
CHOICE = "Which one"
SECTIONS = (BYTES, UNITS, PRACTICE, SAVED, PLANNED, CHOICE)
