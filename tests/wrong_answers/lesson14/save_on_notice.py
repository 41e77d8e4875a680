"""Answers to "the notice"."""

import contextlib
import signal

from ..bank import Bank
from ..edits import change

BANK = Bank("save_on_notice")
HANDLER = "lambda number, frame: noticed.append(number)"
REASONS = "if noticed or done == last or (done - first) % every == 0:"
LEAVE = "            if noticed and done < last:\n                return 75\n"
FINALLY = "    finally:\n        signal.signal(signal.SIGTERM, before)"


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
            return False

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


BANK.right(change("return 0", "return int(bool(noticed and done < last)) * 75"))
BANK.mistakes(
    ("SIGTERM ends the process, and nothing is saved",
     "signal.signal(signal.SIGTERM, handler): without one the system ends the process",
     change(f'signal.signal(signal.SIGTERM, {HANDLER})', "signal.getsignal(signal.SIGTERM)")),
    ("SIGTERM ends the process: another signal has the handler",
     "SIGINT is Ctrl-C; the notice is SIGTERM: signal.signal(signal.SIGTERM, handler)",
     (change(f'signal.signal(signal.SIGTERM, {HANDLER})', f'signal.signal(signal.SIGINT, {HANDLER})'),
     change(FINALLY, "    finally:\n        signal.signal(signal.SIGINT, before)"))),
    ("the handler saves, in the middle of a step",
     "it runs between any two instructions: weights of this step beside moments of the last one. Take "
     "note, and save after the step",
     (change("noticed = []", "noticed, done = [], first\n\n    def handler(number, frame):\n        "
     "noticed.append(number)\n        save(done)\n"), change(HANDLER, "handler"),
     change(REASONS, "if done == last or (done - first) % every == 0:"))),
    ("the handler saves within a step",
     "a save that is not disturbed by another one is still one of half a step: take note, and save " "after the step",
     (change("noticed = []", "noticed, done, saving = [], first, []\n\n    def handler(number, frame):\n        "
     "noticed.append(number)\n        if not saving:\n            save(done)\n"), change(HANDLER, "handler"),
     change(REASONS, "if done == last or (done - first) % every == 0:"), change("                save(done)\n",
     "                saving.append(done)\n                save(done)\n                saving.clear()\n"))),
    ("the handler ends the run in the middle of a step",
     "sys.exit() in it raises SystemExit wherever the program is: take note, and return after the step",
     change(HANDLER, "lambda number, frame: exec('raise SystemExit(75)')")),
    ("the handler saves half a step and ends the run", "take note, finish the step, save, return",
     (change("noticed = []",
     "noticed, done = [], first\n\n    def handler(number, frame):\n        save(done)\n        raise "
     "SystemExit(75)\n"), change(HANDLER, "handler"))),
    ("the notice is looked at when it is time to save anyway", "the notice may be over by then: look after each step",
     (change(REASONS, "if done == last or (done - first) % every == 0:"),
     change("            if noticed and done < last:",
     "            if noticed and done < last and (done - first) % every == 0:"))),
    ("the notice is looked at before a step, and one more is made", "look after the step",
     (change("            train_step(step)\n", "            told = bool(noticed)\n            train_step(step)\n"),
     change("            if noticed and done < last:", "            if told and done < last:"),
     change("if noticed or done == last", "if told or done == last"))),
    ("it saves at the notice, and goes on", "return 75 after the save",
     (change(LEAVE, ""), change("        return 0\n", "        return 75 if noticed and False else 0\n"))),
    ("it leaves at the notice without a save", "save(done), then return",
     change(REASONS, "if done == last or (done - first) % every == 0:")),
    ("what is saved already is saved again", "one save for all reasons: if noticed or it is time",
     change("                save(done)\n",
     "                save(done)\n            if noticed and done < last:\n                save(done)\n")),
    ("where it is time to save anyway, a notice brings a second save",
     "one save for both reasons: if noticed or it is time",
     (change("            done = step + 1\n", "            done, told = step + 1, bool(noticed)\n"),
     change(REASONS, "if done == last or (done - first) % every == 0:"),
     change("            if noticed and done < last:\n",
     "            if told and done < last:\n                save(done)\n            if noticed and done "
     "< last:\n"))),
    ("where it is time to save after the last step, the end is saved twice",
     "one save for both reasons: if it is time or done == last",
     (change("noticed or done == last or", "noticed or"), change("        return 0\n",
     "        if not noticed and first < last:\n            save(last)\n        return 0\n"))),
    ("a notice during a save brings another save of the same step",
     "what has been saved is saved: remember of which step",
     (change("            if noticed and done < last:\n",
     "            if noticed and done < last:\n                if told != "
     "len(noticed):\n                    save(done)\n"),
     change("            done = step + 1\n", "            done, told = step + 1, len(noticed)\n"))),
    ("a notice during a save is seen one step later", "look once more after the save",
     (change("            done = step + 1\n", "            done, told = step + 1, bool(noticed)\n"),
     change("if noticed or done == last", "if told or done == last"),
     change("            if noticed and done < last:", "            if told and done < last:"))),
    ("the handler takes itself away, and a second notice ends the process",
     "the same signal comes again from some schedulers: leave the handler until the end",
     (change("noticed = []", "noticed = []\n\n    def handler(number, frame):\n        noticed.append(number)\n        "
     "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"), change(HANDLER, "handler"))),
    ("two notices are none", "a second one says the same: set the flag, and leave it set",
     change(HANDLER, "lambda number, frame: noticed.clear() if noticed else noticed.append(number)")),
    ("it saves after every step", "a save takes time: every so many steps, at the end, and at the notice",
     change(REASONS, "if True:")),
    ("with every = 1 it does not save", "after each step then: a remainder of 0 is always there",
     change("(done - first) % every == 0", "(done - first) % every == int(every == 1)")),
    ("it saves at multiples of every, wherever the run has begun", "(done - first) % every",
     change("(done - first) % every == 0", "done % every == 0")),
    ("it saves under the number of the step that was made, not of the next one",
     "step + 1 are done: with step itself it is trained again",
     change("                save(done)", "                save(step)")),
    ("the end is not saved", "the result of the run: done == last", change("noticed or done == last or", "noticed or")),
    ("it begins at step 0", "range(first, last): the run goes on from a checkpoint",
     change("range(first, last)", "range(last)")),
    ("it makes one step too many", "range(first, last) ends at last - 1",
     (change("range(first, last)", "range(first, last + 1)"), change("done == last or", "step == last or"))),
    ("a step is made where there is none left",
     "a job that has come to its end may be started again: look before the first step, as range does",
     change("range(first, last)", "range(first, max(last, first + 1))")),
    ("it saves where no step has been made", "what there is was loaded from a checkpoint: save after a step",
     change("        for step in range",
     "        if first == last:\n            save(last)\n        for step in range")),
    ("0 is returned where steps are left", "75: whoever has started the run starts it again",
     change("return 75", "return 0")),
    ("75 is returned though all steps are made", "a notice in the last step leaves nothing to do: 0",
     change("        return 0\n", "        return 75 if noticed else 0\n")),
    ("the number of steps done is returned", "0 or 75, for sys.exit", change("return 75", "return done")),
    ("the handler stays when the function is left",
     "the program goes on, and no longer hears SIGTERM: set the old one in a finally",
     change(FINALLY, "    finally:\n        pass")),
    ("the handler of SIGTERM is the system's own afterwards, not the one from before",
     "signal.signal returns the one from before",
     change(FINALLY, "    finally:\n        signal.signal(signal.SIGTERM, signal.SIG_DFL)")),
    ("the handler is set back after an exception, and stays at the regular end",
     "finally, not except: it is run in both cases",
     (change("    finally:", "    except BaseException:"),
     change("signal.signal(signal.SIGTERM, before)", "signal.signal(signal.SIGTERM, before)\n        raise"))),
    ("after an exception the handler stays", "try … finally, or a context manager",
     (change("    try:\n", "    if True:\n"), change('                return 75\n        return 0\n' + FINALLY,
     "                break\n        signal.signal(signal.SIGTERM, before)\n        return 75 if done < "
     "last else 0"))),
    ("after an exception of save the handler stays",
     "a full disk is an exception too: try … finally around the whole loop",
     (change("    try:\n", "    if True:\n"), change("            train_step(step)\n",
     "            try:\n                train_step(step)\n            except "
     "BaseException:\n                signal.signal(signal.SIGTERM, before)\n                raise\n"),
     change('                return 75\n        return 0\n' + FINALLY,
     "                break\n        signal.signal(signal.SIGTERM, before)\n        return 75 if "
     "noticed and done < last else 0"), change("noticed = []", "noticed, done = [], last"))),
    ("an exception of save does not reach the caller", "a run that cannot save must not go on as if it had: no except",
     change("                save(done)\n",
     "                try:\n                    save(done)\n                except "
     "Exception:\n                    pass\n")),
    ("SIGINT is taken for a notice as well",
     "Ctrl-C is for whoever sits there, and wants to see where it was: SIGTERM alone",
     change("    try:\n",
     "    signal.signal(signal.SIGINT, lambda number, frame: noticed.append(number))\n    try:\n")),
    ("an exception of a step is taken for a notice", "no except: a step that fails is an error of the run",
     change("    finally:", "    except Exception:\n        save(step)\n        return 75\n    finally:")),
    ("Ctrl-C is taken for a notice", "who interrupts wants to see where: no except",
     change("    finally:", "    except KeyboardInterrupt:\n        return 75\n    finally:")),
    ("after an exception, in the middle of a step, it saves",
     "the state is half of a step: the last checkpoint is the one to go on from",
     change("    finally:", "    except BaseException:\n        save(step)\n        raise\n    finally:")),
)  # fmt: skip
