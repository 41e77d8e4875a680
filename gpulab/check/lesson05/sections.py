"""The sections of the lecture that a failed check of lesson 05 sends its reader to."""

MESSAGE = "The message, number by number"
HOLDERS = "Who keeps a tensor alive"
CACHE = "What `empty_cache` does"
LEAKS = "Leaks that are, and leaks that are not"
EVALUATION = "Evaluation keeps nothing, if you say so"
SEARCH = "The largest batch that fits"
MISTAKES = "Common mistakes"
SECTIONS = (MESSAGE, HOLDERS, CACHE, LEAKS, EVALUATION, SEARCH, MISTAKES)
