"""Answers to "find the recompilation"."""

from itertools import pairwise

import torch
from banks.bank import Bank
from banks.edits import change, drop
from torch._dynamo.testing import CompileCounter

BANK = Bank("graphs_per_call")
LIMITS = "with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000):"
COMPILE = "compiled = torch.compile(function, backend=backend)"
CALL = "            compiled(*args)"


@BANK.right
def with_a_counter(function, calls):
    """PyTorch's own counting backend."""
    torch._dynamo.reset()
    counter, seen = CompileCounter(), [0]
    with torch._dynamo.config.patch(recompile_limit=len(calls) + 10):
        compiled = torch.compile(function, backend=counter)
        for args in calls:
            compiled(*args)
            seen.append(counter.frame_count)
    return [after - before for before, after in pairwise(seen)]


@BANK.right
def by_the_stats(function, calls):
    """Dynamo counts the graphs as well."""
    torch.compiler.reset()
    graphs, found = torch._dynamo.utils.counters["stats"], []
    with torch._dynamo.config.patch("recompile_limit", 500):
        compiled = torch.compile(function, backend="eager")
        for args in calls:
            before = graphs["unique_graphs"]
            compiled(*args)
            found.append(graphs["unique_graphs"] - before)
    return found


BANK.right((change("    torch.compiler.reset()\n", ""), change(COMPILE, f"torch.compiler.reset()\n        {COMPILE}")))
BANK.mistakes(
    ("the graphs of all calls together are returned", "one number for each call, in a list",
     change("return counts", "return len(graphs)")),
    ("whether a call compiled is returned, not how many graphs",
     "True and False: count the graphs; a call with a break compiles two",
     change("len(graphs) - before)", "len(graphs) > before)")),
    ("a call counts as one compilation, however many graphs it makes",
     "after a graph break the rest is a graph of its own, and the backend is called again",
     change("len(graphs) - before)", "int(len(graphs) > before))")),
    ("the counts grow from call to call", "the number of graphs after a call, minus that before it",
     change("counts.append(len(graphs) - before)", "counts.append(len(graphs))")),
    ("the function is called as it is", "call what torch.compile returned",
     change(CALL, "            function(*args)")),
    ("the function is called more than once with each",
     "compiled(*args) runs it already: another call draws, prints and counts once more",
     change(CALL, f"{CALL}\n{CALL}")),
    ("the count is taken before the call",
     "a graph is compiled when the function is called: compiled(*args), then look",
     (change("            counts.append(len(graphs) - before)", ""),
     change(CALL, f'            counts.append(len(graphs) - before)\n{CALL}'))),
    ("the first call is left out", "the first compilation counts too: one number for each of calls",
     change("return counts", "return counts[1:]")),
    ("the function is compiled anew for each call",
     "torch.compile once, before the loop: a new backend shares nothing with the one before",
     (change(f'        {COMPILE}\n', ""),
     change(CALL, f'            torch.compiler.reset()\n            {COMPILE}\n{CALL}'))),
    ("what was compiled before is not compiled again, or compiled differently",
     "compiled code is kept with the function, whoever compiled it: torch.compiler.reset()",
     drop("torch.compiler.reset()")),
    ("after the eighth compilation of a function nothing is counted",
     "then Dynamo gives up: raise recompile_limit for a while, with torch._dynamo.config.patch(…)",
     change(LIMITS, "if True:")),
    ("after some dozens of compilations nothing is counted",
     "a limit of yours is a limit too: take one that no function reaches",
     change("recompile_limit=10_000, accumulated", "recompile_limit=64, accumulated")),
    ("a setting of Dynamo stays changed",
     "it outlives your function: with torch._dynamo.config.patch(…) puts it back, also after an exception",
     change(LIMITS, "torch._dynamo.config.recompile_limit = 10_000\n    if True:"),
     change("    return counts", "    torch._dynamo.config.suppress_errors = True\n    return counts")),
    ("after an exception a setting of Dynamo stays changed",
     "with, or finally: an exception of function leaves yours before its last line",
     (change(LIMITS, "limit, torch._dynamo.config.recompile_limit = torch._dynamo.config.recompile_limit, 10_000\n    "
     "if True:"), change("    return counts", "    torch._dynamo.config.recompile_limit = limit\n    return counts"))),
    ("lengths are symbols from the start", "dynamic=True is no default: by default the second length makes them one",
     change("backend=backend)", "backend=backend, dynamic=True)")),
    ("each length is compiled by itself",
     "dynamic=False is no default: by default the second length makes them a symbol",
     change("backend=backend)", "backend=backend, dynamic=False)")),
    ("a graph break is an error", "fullgraph=True is no default: here breaks are counted",
     change("backend=backend)", "backend=backend, fullgraph=True)")),
    ("an exception of the function is swallowed", "no try: it is the caller's to see",
     change(CALL,
     "            try:\n                compiled(*args)\n            except Exception:\n                pass")),
    ("there has to be a call", "calls may be empty, and the list is empty then",
     change("    return counts", "    return counts or [0]")),
)  # fmt: skip
