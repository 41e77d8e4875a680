# %% title [markdown]
# # 12 · Exercises: many GPUs
#
# Each function is checked on your own code: run the check cell under it as often as you like. It draws fresh inputs every
# time, and when it fails it says what it expected, what came back, and which section of
# [the lecture](../notebooks/12_many_gpus.ipynb) to read.
#
# A cell that says *not attempted yet* is one you have not written. Everything after it still runs.

# %% setup
from collections import defaultdict

import gpulab

gpu = gpulab.setup()

# %% odd-text [markdown]
# ## 1 · The odd rank
#
# **Build** the part of `torchfrtrace` that you would miss most: from the flight recorders of all ranks, which one has
# parted from the others, and in which collective. **Why:** with 64 ranks nobody reads 64 lists, and those that hang are
# mostly not those that are wrong.
#
# 20 minutes · difficulty ●●●
#
# What comes is what `pickle.loads(_dump_fr_trace())` gave in the lecture, one dump for each rank, cut to the fields that
# are needed. An entry of a real dump, cut so:
#
# ```python
# {"process_group": ("0", "default_pg"), "collective_seq_id": 5, "profiling_name": "gloo:all_reduce",
#  "input_sizes": [[10, 3]], "input_dtypes": ["Float"], "state": "scheduled", "retired": False}
# ```
#
# `"process_group"` is the group's name, as in `groups`, and a description. `"retired"` is whether the collective has ended
# on this rank; gloo leaves `"state"` at `"scheduled"` even then. Dumps are not all written at the same moment, and in some
# operations a rank is done before the others have come: the source of a broadcast has sent, and goes on. All operations
# here are ones to which every rank brings equal sizes.
#
# A rank that is late and one that never comes look the same in a dump. What tells them apart is the timeout after which
# it is written.

# %% odd_rank tags=["solution"]
def odd_rank(dumps, groups):
    """Which rank has parted from the others, and where: (rank, group, number), or None if nobody has.

    dumps   {rank: dump} of the ranks that live; dump["entries"] are its last collectives, the oldest first
    groups  {group: its ranks}; each numbers its own collectives; at most one rank has parted, in one group

    Ranks part in the first collective of a group that they call differently (by name, input sizes or dtypes), whether
    it has ended or not; or in which one waits that another has not called. A rank without a dump has died: it has
    called what ended. What a full buffer has dropped says nothing.
    The rank is the one that stands alone. Of two it is the one that has not called, and None if both have.
    """
    # TODO: go through the numbers of each group, sort its ranks by what they called, and stop where they differ
    ### BEGIN SOLUTION
    called = {(group, rank): {} for group, ranks in groups.items() for rank in ranks}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            called[entry["process_group"][0], rank][entry["collective_seq_id"]] = entry
    for group, ranks in groups.items():
        for number in sorted({n for rank in ranks for n in called[group, rank]}):
            here = {rank: called[group, rank].get(number) for rank in ranks}
            waits = any(e and not e["retired"] for e in here.values())
            calls = defaultdict(list)  # the ranks by what they called; under "" those that have not
            for rank, e in here.items():
                if e or (waits and number > max(called[group, rank], default=0)):
                    calls[str([e["profiling_name"], e["input_sizes"], e["input_dtypes"]]) if e else ""].append(rank)
            if len(calls) > 1:
                odd = min(calls, key=lambda call: (len(calls[call]), call))  # of two, "" comes first
                return calls[odd][0] if len(ranks) > 2 or "" in calls else None, group, number
    ### END SOLUTION

# %% check-odd tags=["check"]
gpulab.check.odd_rank(odd_rank)

# %% odd-hints [markdown]
# <details><summary>Hint 1</summary>
#
# The place in a list means nothing: entries of all groups stand in it, and a full buffer has lost its first ones. What do
# two ranks have in common for the same collective? Sort all entries by that first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For one number of one group make a dictionary: what was called → the ranks that called it. A rank whose last number is
# smaller has not called; that counts only if somebody waits there. A rank that has a larger number, but not this one, has
# dropped it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With two keys in that dictionary the ranks have parted, and the shorter list is the odd rank. Where both lists have one
# rank, take the one that has not called; if both have called, the dumps do not tell which is right.
#
# </details>

# %% done [markdown]
# ## Done?
#
# The cell below shows what is recorded. Next: [the map of the course](../notebooks/00_start_here.ipynb).

# %% progress
gpulab.progress()
