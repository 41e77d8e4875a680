"""Answers to "which switches stay"."""

from banks.bank import Bank
from banks.edits import add, change

BANK = Bank("keep_switches")
LOOP, KEEP, START = "    for name in switches:\n", "stay = [*stay, name]", "stay, plain_loss = [], None"
WITHOUT = "without = [run(stay) for _ in range(1 + repeats)]"
TRIED = "tried = [run([*stay, name]) for _ in range(1 + repeats)]"
MEDIAN, MIN = "statistics.median(ms for ms, _, _ in tried[1:])", "min(ms for ms, _, _ in without[1:])"
PLAIN = "        if plain_loss is None:\n            plain_loss = without[0][2]\n"
SAME = "all(abs(loss - plain_loss) <= tolerance * abs(plain_loss) for _, _, loss in tried)"


@BANK.right
def with_a_helper(run, switches, repeats, most_mib, tolerance):
    def measured(on):
        first, *counted = (run(tuple(on)) for _ in range(1 + repeats))
        return sorted(ms for ms, *_ in counted), max(mib for _, mib, _ in [first, *counted]), first[2]

    kept, plain = [], run(())[2]
    for switch in switches:
        times, _, _ = measured(kept)
        try:
            new_times, mib, loss = measured({*kept, switch})
        except RuntimeError:
            continue
        if mib <= most_mib and abs(loss / plain - 1) <= tolerance and new_times[repeats // 2] < times[0]:
            kept.append(switch)
    return kept


BANK.right(change(START, "stay, plain_loss = [], run([])[2]"))
BANK.right(change("statistics.median(", "statistics.median_low("))
BANK.mistakes(
    ("what came back is a set", "a list, in the order of switches", change("return stay", "return set(stay)")),
    ("nothing came back", "the return is missing", change("return stay", "")),
    ("the first step, which compiles or tunes, is among those that count",
     "leave out the first of each side: times of tried[1:], and of without[1:]", change("in tried[1:]", "in tried")),
    ("no step goes before those that count", "1 + repeats steps on each side, and the times of the last `repeats`",
     (change(WITHOUT, WITHOUT.replace("1 + ", "")), change(TRIED, TRIED.replace("1 + ", "")),
      change("in tried[1:]", "in tried"), change("in without[1:]", "in without"))),
    ("a gain within the noise is taken for one",
     "two medians of the same job differ too: compare with the fastest step without the switch",
     change(MIN, MIN.replace("min", "statistics.median")), change(MEDIAN, MEDIAN.replace("statistics.median", "min"))),
    ("a gain above the noise is taken for noise", "below the fastest, by however little: noise differs from job to job",
     change("< fastest", "< 0.97 * fastest")),
    ("a switch stays that is just as fast", "below the fastest: <, not <=", change("< fastest", "<= fastest")),
    ("every step with the switch has to be faster", "its median counts: one hiccup is no verdict",
     change(MEDIAN, MEDIAN.replace("statistics.median", "max"))),
    ("the mean of the times is taken, which one hiccup moves", "statistics.median leaves one slow step alone",
     change(MEDIAN, MEDIAN.replace("median", "mean"))),
    ("the slowest and the fastest step are left out, and the mean of the others decides",
     "two slow steps of five move it; the median stays where more than half of the steps are",
     change(MEDIAN, "statistics.mean(sorted(ms for ms, _, _ in tried[1:])[1:-1])")),
    ("a hiccup without the switch speaks for the switch",
     "the fastest step without it is not moved by a hiccup; the mean is",
     change(MIN, MIN.replace("min", "0.95 * statistics.mean"))),
    ("one step decides", "its median over all `repeats` steps", change(MEDIAN, "tried[-1][0]")),
    ("the slower switches stay", "milliseconds: less is better", change("< fastest", "> fastest")),
    ("each switch is tried alone, not on top of those that stay",
     "two switches may save the same launches; the second then gains nothing: run([*stay, name])",
     (change("run(stay)", "run([])"), change("run([*stay, name])", "run([name])"))),
    ("the comparison is always with the job without any switch",
     "without this switch, and with those that stay: run(stay)", change("run(stay)", "run([])")),
    ("what it is compared with was measured long before",
     "machines warm up and slow down: measure without the switch again, right before",
     (change(f"{LOOP}        {WITHOUT}\n", f"    {WITHOUT}\n{LOOP}"), add("without = tried", after=KEEP))),
    ("the fastest step of earlier comparisons is what it is compared with",
     "machines warm up and slow down: compare with the steps right before",
     (change(MIN, f"so_far or {MIN}"), add(f"so_far = {MIN.replace('without', 'tried')}", after=KEEP),
      add("so_far = None", before=START))),
    ("a switch that does not stay is on in later steps", "add the name to the list only if it stays",
     (add("kept.append(name)", before=KEEP), change(f"            {KEEP}", f"        {KEEP}"),
      add("kept = []", before=START), change("return stay", "return kept"))),
    ("the steps with the switch come first", "first without, then with it",
     (change(WITHOUT, "without = [run(stay) for _ in range(1 + repeats)] if plain_loss is None else None"),
      add("without = without or [run(stay) for _ in range(1 + repeats)]", before="fastest = "))),
    ("the memory is not looked at", "a switch that does not fit does not stay: max of all MiB with it, and most_mib",
     change("all(mib <= most_mib for _, mib, _ in tried)", "True")),
    ("the memory of the first step is not looked at",
     "what is compiled or tuned at first needs memory as well; out of memory is out of memory",
     change("for _, mib, _ in tried)", "for _, mib, _ in tried[1:])")),
    ("the memory of the first step alone is looked at", "no step with it may take more: all of tried",
     change("for _, mib, _ in tried)", "for _, mib, _ in tried[:1])")),
    ("exactly most_mib is taken for too much", "takes more than most_mib: compare with <=",
     change("mib <= most_mib", "mib < most_mib")),
    ("the loss is not looked at", "a faster step with another result is no gain: compare the loss",
     change(SAME, "True")),
    ("a loss that is too low passes", "another loss is another result, also a lower one: abs",
     change("abs(loss - plain_loss)", "(loss - plain_loss)")),
    ("a loss that is too high passes", "another loss is another result: abs",
     change("abs(loss - plain_loss)", "(plain_loss - loss)")),
    ("the tolerance is taken as it is, not as a part of the loss", "tolerance times the loss without any switch",
     change("tolerance * abs(plain_loss)", "tolerance")),
    ("the tolerance is taken as a part of the loss with the switch",
     "it is a part of the loss without any switch, which no switch moves; math.isclose takes the larger of the two",
     change("tolerance * abs(plain_loss)", "tolerance * abs(loss)")),
    ("a switch stays with which the loss is NaN",
     "every comparison with NaN is False: ask whether the loss is within the tolerance, not whether it is outside",
     change(SAME, SAME.replace("all(", "not any(").replace("<=", ">"))),
    ("where the loss is negative, the tolerance is negative too",
     "a part of the loss is a part of its size: tolerance * abs(plain_loss)", change("abs(plain_loss)", "plain_loss")),
    ("the loss is compared with that of the step before, so that small changes add up",
     "take the loss once, before any switch is on", change("if plain_loss is None:", "if True:")),
    ("a switch that this machine lacks ends the whole search",
     "run raises RuntimeError there: catch it, and go on with the next switch",
     change("except RuntimeError:", "except ZeroDivisionError:")),
    ("a switch that fails after the first step ends the whole search",
     "out of memory may come in any step: the try stands round all steps with the switch",
     (change(TRIED, "tried = [run([*stay, name])]"),
      add("tried += [run([*stay, name]) for _ in range(repeats)]", before="fastest = "))),
    ("a RuntimeError of the job itself is taken for the switch's",
     "put the try around the steps with the switch only: without it nothing is left that could be measured",
     (change(f"        {WITHOUT}\n{PLAIN}", ""), add(WITHOUT, before=TRIED),
      change("        fastest = ", f"{PLAIN}        fastest = "))),
    ("no other switch is tried after one that is missing", "continue, and not break", change("continue", "break")),
    ("exceptions are caught that are not a missing switch's",
     "except RuntimeError, and nothing wider: a user who interrupts, a bug, a full disk are not yours to hide",
     change("except RuntimeError:", "except Exception:")),
    ("more steps are run than asked for", "1 + repeats steps on each side: each costs time on a GPU",
     (change(TRIED, TRIED.replace("1 + ", "2 + ")), change("in tried[1:]", "in tried[2:]"))),
    ("steps are run after the last decision",
     "2 × (1 + repeats) for each switch, and no more: each costs time on a GPU",
     add("run(stay)", before="return stay")),
)  # fmt: skip
