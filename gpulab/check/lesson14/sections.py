"""The headings of lecture 14 that its checks send a student to."""

SAME = "The same run, to the bit"
WHOLE = "A file is whole or not there"
NOTICE = "The notice"
OFTEN = "How often to save"
SECTIONS = (SAME, WHOLE, NOTICE, OFTEN)
