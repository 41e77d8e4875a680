"""Answers to "the odd rank": which rank parted from the others, in which collective, from flight recorders."""

from collections import Counter

from ..bank import Bank
from ..edits import change

BANK = Bank("odd_rank")
SOLUTION = BANK.solution
CALL = '[e["profiling_name"], e["input_sizes"], e["input_dtypes"]]'
MISSING = "(waits and number > max(called[group, rank], default=0))"
KEPT = 'called[entry["process_group"][0], rank][entry["collective_seq_id"]]'
KEY = "(len(calls[call]), call)"
RANK = 'calls[odd][0] if len(ranks) > 2 or "" in calls else None'
HERE = "called[group, rank].get(number) for rank in ranks"


def by_number(dumps, groups):
    """(group, its ranks, {rank: {number: entry}}); of a rank that died no entry."""
    for group, ranks in groups.items():
        entries = {rank: dumps[rank]["entries"] if rank in dumps else [] for rank in ranks}
        own = {r: [e for e in its if e["process_group"][0] == group] for r, its in entries.items()}
        yield group, ranks, {r: {e["collective_seq_id"]: e for e in its} for r, its in own.items()}


BANK.right(change(f"{RANK}, group, number", f"[{RANK}, group, number]"))


@BANK.right
def counts_calls(dumps, groups):
    found = None
    for group, ranks, made in by_number(dumps, groups):
        for n in sorted({n for its in made.values() for n in its}, reverse=True):
            here = {r: its[n] for r, its in made.items() if n in its}
            what = {r: (e["profiling_name"], str(e["input_sizes"]), *e["input_dtypes"]) for r, e in here.items()}
            if not all(e["retired"] for e in here.values()):
                what |= {r: None for r, its in made.items() if all(m < n for m in its)}
            often = Counter(what.values()).most_common()
            if len(often) > 1:
                rare = None if len(ranks) == 2 else often[-1][0]
                found = next((r for r in what if what[r] == rare), None), group, n
    return found


@BANK.wrong("the rank with the fewest entries is taken", "who calls something else has as many as the others")
def fewest_entries(dumps, groups):
    for group, _, made in by_number(dumps, groups):
        counts = {rank: len(its) for rank, its in made.items()}
        rank = min(counts, key=counts.get)
        if len(set(counts.values())) > 1:
            return rank, group, counts[rank] + 1


@BANK.wrong("the last entries of the lists are compared", "ranks go on after they part, and all groups stand in a list")
def last_entries(dumps, groups):
    last = {r: (e["process_group"][0], e["collective_seq_id"]) for r, d in dumps.items() for e in d["entries"][-1:]}
    often = Counter(last.values()).most_common()
    return next((r, *last[r]) for r in last if last[r] == often[-1][0]) if len(often) > 1 else None


@BANK.wrong("the dump of a rank that died is asked for", "it has none: go through dumps, or ask `rank in dumps`")
def asks_the_dead(dumps, groups):
    return SOLUTION({rank: dumps[rank] for ranks in groups.values() for rank in ranks}, groups)


@BANK.wrong("where nobody has parted something else than None is returned", "None itself is asked for, not a tuple")
def three_nones(dumps, groups):
    return SOLUTION(dumps, groups) or (None, None, None)


BANK.mistakes(
    ("a rank that is behind is blamed though nobody waits for it",
     'gloo leaves "state" at "scheduled" when a collective has ended: "retired" tells',
     change('not e["retired"]', 'e["state"] != "completed"')),
    ("a rank that has not called is never found",
     'the ranks of the group that have no entry count, where one has not "retired"', change(f' or {MISSING}', "")),
    ("a collective counts as waiting only if it has ended nowhere",
     "one rank that waits is enough: the source of a broadcast is done before the others",
     change('any(e and not e["retired"]', 'all(not (e and e["retired"])')),
    ("the names alone are compared", "sizes and dtypes too", change(CALL, 'e["profiling_name"]')),
    ("the sizes alone are compared", "names and dtypes too", change(CALL, 'e["input_sizes"]')),
    ("dtypes are not compared", "the bytes differ with them", change(', e["input_dtypes"]', "")),
    ("the number of elements is compared, not the sizes", "a transposed tensor has as many",
     change('e["input_sizes"]', '[rows * columns for rows, columns in e["input_sizes"]]')),
    ("the first tensor alone is compared", "an entry has the sizes and dtypes of all of them, or none",
     change(CALL, '[e["profiling_name"], e["input_sizes"][:1], e["input_dtypes"][:1]]')),
    ("each entry is taken to have one tensor", "a barrier has none: compare the lists as they are",
     change(CALL, '[e["profiling_name"], e["input_sizes"][0], e["input_dtypes"]]')),
    ("whole entries are compared", '"retired" is no part of the call: one is done before another', change(CALL, "e")),
    ("different calls are found only while one waits", "they may end, with wrong numbers",
     change("if len(calls) > 1", "if waits and len(calls) > 1")),
    ("the last number that differs is told", "later ones differ because the first one did",
     change("in called[group, rank]})", "in called[group, rank]}, reverse=True)")),
    ("numbers of different groups are compared", "each group counts from 1: keep them apart",
     change(f'{KEPT} = entry',
     'for g in groups: called.setdefault((g, rank), {})[entry["collective_seq_id"]] = entry')),
    ("entries are counted by their place in the list", "its first ones may be lost: collective_seq_id",
     change('[entry["collective_seq_id"]]', '[len(called[entry["process_group"][0], rank]) + 1]')),
    ("what a buffer has dropped counts as not called", "who has a larger number has called it",
     change(MISSING, "waits")),
    ("one of those that agree is blamed", "the odd rank is in the shorter list", change("min(calls", "max(calls")),
    ("one that has not called is blamed where one rank waits alone", "63 against one: it made one more",
     change(KEY, '(call != "", len(calls[call]))')),
    ("of two ranks the one that waits is blamed", "look at the one that has not come",
     change(KEY, '(len(calls[call]), call == "")')),
    ("of two that call different things one is blamed", "nothing in the dumps says which is right",
     change(RANK, "calls[odd][0]")),
    ("a rank that died is left out", "it has no dump, and stands in groups", change(HERE, f'{HERE} if rank in dumps')),
    ("a rank that has called nothing of the group yet is left out", "others may wait in its first one",
     change(MISSING, f'called[group, rank] and {MISSING}')),
    ("a rank that died is missing from the first entry on", "what has ended, it has called",
     change(MISSING, f'rank not in dumps or {MISSING}')),
    ("the rank's place in its group is returned", "the rank is its number in the job",
     change(RANK, RANK.replace("calls[odd][0]", "ranks.index(calls[odd][0])"))),
    ("the number is one too small", "that of the call in which they part, not of the last before",
     change("None, group, number", "None, group, number - 1")),
    ("the rank alone is returned", "its group and the number are asked for, too",
     change(f'{RANK}, group, number', RANK)),
)  # fmt: skip
