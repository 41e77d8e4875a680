"""How exercises and turns are judged: contracts, numbers, guards around the student's function, ranks, audits."""
