"""The headings of lecture 11 that its checks send a student to."""

LAUNCHES = "Fewer launches"
BREAKS = "torch.compile: one graph, or several"
AGAIN = "Recompilations"
TABLE = "Your decision table"
MISTAKES = "Common mistakes"
SECTIONS = (LAUNCHES, BREAKS, AGAIN, TABLE, MISTAKES)
