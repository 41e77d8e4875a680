"""Grades exercises and turns: contracts, numeric answers, a sandbox for the student's function, ranks, audits."""
