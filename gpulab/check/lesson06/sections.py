"""The headings of lecture 06 that its checks send a student to."""

QUESTION = "A question worth asking"
AGAIN = "Keep the input, compute the rest again"
SEGMENTS = "How many segments"
OPTIMIZER = "The optimizer's share"
HOST = "Send it to the host"
MISTAKES = "Common mistakes"

SECTIONS = (QUESTION, AGAIN, SEGMENTS, OPTIMIZER, HOST, MISTAKES)
