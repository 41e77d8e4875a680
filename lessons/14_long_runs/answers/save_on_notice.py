"""Answers to "the notice"."""

import contextlib
import signal

from banks.bank import Bank
from banks.edits import change, drop

BANK = Bank("save_on_notice")
NOTED, NOTES, SETS = "noticed = []", "noticed.append(number)", "signal.signal(signal.SIGTERM, before)"
REASONS, TIME = "if noticed or done == last or (done - first)", "(done - first) % every == 0"
UNNOTICED = change(REASONS, "if done == last or (done - first)")
LEAVE, SAVE, DONE = "            if noticed and done < last:\n", "                save(done)\n", "done = step + 1"
FINALLY, LOOP = f"    finally:\n        {SETS}", "        for step in range"
TOLD = change(f"            {DONE}\n", f"            {DONE}\n            told = bool(noticed)\n")


def handler(*lines):
    """A handler that takes note, and does this."""
    body = "".join(f"        {line}\n" for line in (NOTES, *lines))
    return (
        change(NOTED, f"noticed, done, saving = [], first, []\n\n    def handler(number, frame):\n{body}"),
        change(f"lambda number, frame: {NOTES}", "handler"),
    )


def without_finally(loop):
    """What ends the function stands after the loop, which is changed by this too."""
    return change("    try:\n", "    if True:\n"), *loop, change(
        f"                return 75\n        return 0\n{FINALLY}",
        f"                break\n        {SETS}\n        return 75 if noticed and done < last else 0",
    )  # fmt: skip


@BANK.right
def with_a_context(train_step, save, first, last, every):
    """A class that takes note, a while loop, and what was saved last kept in a variable."""

    class Notice(contextlib.ContextDecorator):
        came = False

        def __enter__(self):
            self.before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self.note)
            return self

        def note(self, *args):
            self.came = True

        def __exit__(self, *error):
            signal.signal(signal.SIGTERM, self.before)

    done = saved = first
    with Notice() as notice:
        while done < last and not notice.came:
            train_step(done)
            done += 1
            if (done - first) % every == 0:
                save(done)
                saved = done
        if saved != done:
            save(done)
    return 0 if done == last else 75


BANK.mistakes(
    ("SIGTERM ends the process, and nothing is saved",
     "signal.signal(signal.SIGTERM, handler): without a handler the system ends the process; SIGINT is Ctrl-C",
     change(f"signal.signal(signal.SIGTERM, lambda number, frame: {NOTES})", "signal.getsignal(signal.SIGTERM)")),
    ("the handler saves, in the middle of a step",
     "it runs between any two instructions: weights of this step with moments of the last one. Set a flag, and save "
     "after the step", (*handler("save(done)"), UNNOTICED),
     (*handler("saving or save(done)"), UNNOTICED,
      change(SAVE, f"                saving.append(done)\n{SAVE}                saving.clear()\n"))),
    ("the handler ends the run in the middle of a step",
     "sys.exit() in the handler raises SystemExit wherever the program is: set a flag, and return after the step",
     handler("raise SystemExit(75)")),
    ("the handler saves half a step and ends the run", "set a flag, finish the step, save, return",
     handler("save(done)", "raise SystemExit(75)")),
    ("a notice of an earlier call is remembered", "each call has a list of its own: noticed = [] in the function",
     (change("first, last, every):", "first, last, every, noticed=[]):"), drop(NOTED))),
    ("the notice is checked only when a save is due anyway", "the time may be up by then: check after each step",
     (UNNOTICED, change(LEAVE, LEAVE.replace(":", f" and {TIME}:")))),
    ("the notice is checked before a step, and one more step is made", "check after the step",
     (change("            train_step(step)\n", "            told = bool(noticed)\n            train_step(step)\n"),
      change(LEAVE, LEAVE.replace("noticed", "told")), change("if noticed or", "if told or"))),
    ("it saves at the notice, and continues", "return 75 after the save", change(LEAVE, LEAVE.replace("noticed", "False"))),
    ("it returns at the notice without a save", "save(done), then return", UNNOTICED),
    ("what is already saved is saved again", "one save for all reasons: if noticed or a save is due",
     change(SAVE, f"{SAVE}            if noticed and done < last:\n{SAVE}")),
    ("if a save is due anyway, a notice causes a second one",
     "one save for both reasons: if noticed or a save is due",
     (TOLD, UNNOTICED, change(LEAVE, f"            if told and done < last:\n{SAVE}{LEAVE}"))),
    ("if a save is due after the last step, the end is saved twice",
     "one save for both reasons: if it is time or done == last",
     (change("noticed or done == last or", "noticed or"), change(
         "        return 0\n", "        if not noticed and first < last:\n            save(last)\n        return 0\n"))),
    ("a notice during a save causes another save of the same step",
     "do not save it again: remember which step was saved",
     (change(f"{DONE}\n", f"{DONE}\n            told = len(noticed)\n"),
      change(LEAVE, f"{LEAVE}                if told != len(noticed):\n    {SAVE}"))),
    ("a notice during a save is noticed one step later", "check again after the save",
     (TOLD, change("if noticed or", "if told or"), change(LEAVE, LEAVE.replace("noticed", "told")))),
    ("the handler removes itself, and a second notice ends the process",
     "some schedulers send the signal again: keep the handler until the end",
     handler("signal.signal(signal.SIGTERM, signal.SIG_DFL)")),
    ("two notices cancel each other", "a second one means the same: set the flag, and leave it set",
     change(NOTES, f"noticed.clear() if noticed else {NOTES}")),
    ("it saves after every step", "a save takes time: save every `every` steps, at the end, and at the notice",
     change(f"{REASONS} % every == 0:", "if True:")),
    ("with every = 1 it does not save", "after each step then: a remainder of 0 is always there",
     change(TIME, "(done - first) % every == int(every == 1)")),
    ("it saves at multiples of every, wherever the run started", TIME, change(TIME, "done % every == 0")),
    ("it saves under the number of the step that was made, not of the next one",
     "step + 1 steps are done: with `step` that step would be trained again", change("save(done)", "save(step)")),
    ("the end is not saved", "the result of the run: done == last", change("noticed or done == last or", "noticed or")),
    ("it starts at step 0", "range(first, last): the run continues from a checkpoint",
     change("range(first, last)", "range(last)")),
    ("it makes one step too many", "range(first, last) ends at last - 1",
     (change("range(first, last)", "range(first, last + 1)"), change("done == last or", "step == last or"))),
    ("a step is made though none is left",
     "a finished job may be started again: test before the first step, as range does",
     change("range(first, last)", "range(first, max(last, first + 1))")),
    ("it saves though no step has been made", "the state was loaded from a checkpoint: save only after a step",
     change(LOOP, f"        if first == last:\n            save(last)\n{LOOP}")),
    ("0 is returned though steps are left", "return 75, so that the run is started again",
     change("return 75", "return 0")),
    ("75 is returned though all steps are made", "after a notice in the last step nothing is left to do: return 0",
     change("        return 0\n", "        return 75 if noticed else 0\n")),
    ("the number of steps done is returned", "return 0 or 75", change("return 75", "return done")),
    ("the handler stays when the function ends",
     "the program continues, and ignores SIGTERM: restore the old handler in a finally",
     change(FINALLY, "    finally:\n        pass")),
    ("the handler of SIGTERM is the system default afterwards, not the previous one",
     "signal.signal returns the previous handler", change(SETS, "signal.signal(signal.SIGTERM, signal.SIG_DFL)")),
    ("the handler is restored after an exception, but not at the normal end",
     "finally, not except: it runs in both cases",
     change(FINALLY, f"    except BaseException:\n        {SETS}\n        raise")),
    ("after an exception the handler stays", "try … finally, or a context manager", without_finally(())),
    ("after an exception of save the handler stays",
     "a full disk is an exception too: try … finally around the whole loop",
     without_finally((change("            train_step(step)\n", "            try:\n                train_step(step)\n"
                             f"            except BaseException:\n                {SETS}\n                raise\n"),))),
    ("an exception of save does not reach the caller",
     "a run that cannot save must not continue as if it had: no except",
     change(SAVE, f"                with __import__('contextlib').suppress(Exception):\n    {SAVE}")),
    ("SIGINT is treated as a notice as well",
     "after Ctrl-C the user wants to see where the program was: handle only SIGTERM",
     change("    try:\n", f"    signal.signal(signal.SIGINT, lambda number, frame: {NOTES})\n    try:\n")),
    ("an exception of a step is treated as a notice", "no except: a step that fails is an error of the run",
     change("    finally:", "    except Exception:\n        save(step)\n        return 75\n    finally:")),
    ("Ctrl-C is treated as a notice", "the user wants to see where it was interrupted: no except",
     change("    finally:", "    except KeyboardInterrupt:\n        return 75\n    finally:")),
    ("after an exception, in the middle of a step, it saves",
     "the state is in the middle of a step: continue from the last checkpoint",
     change("    finally:", "    except BaseException:\n        save(step)\n        raise\n    finally:")),
)  # fmt: skip
