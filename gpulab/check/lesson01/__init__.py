"""The checks of lesson 01: what a layer costs, what a GPU does for a whole job, and what an operation waits for.

Each compares numbers with a formula on inputs drawn afresh. Where they differ, the formulas of the known
misconceptions are tried on the same inputs, and the one that gives the student's number is named.
"""
