"""The headings of lecture 09 that its checks send a student to."""

FETCH = "A question worth asking"
WORKERS = "Workers"
SEEDS = "Random numbers of workers"
MISTAKES = "Common mistakes"
SAMPLER = MISTAKES
SECTIONS = (FETCH, WORKERS, SEEDS, MISTAKES)
