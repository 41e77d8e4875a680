# Every command is tools/course.py's; `python tools/course.py lab` is the same without make.
PYTHON ?= python3

help lab test explore versions cluster doctor notebooks check lint bench gpu setup:
	@$(PYTHON) tools/course.py $@

.PHONY: help lab test explore versions cluster doctor notebooks check lint bench gpu setup
