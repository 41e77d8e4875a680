"""How an answer of a check looks that is no error: a pass is pleasant, what is still to be written is quiet.

For the latter the check raises all the same, since that is how a grader and a script see it; JupyterLab does not show
the error below the quiet line. Other front ends show both.
"""

from __future__ import annotations

import html

from virtualgpu.pictures.display import in_notebook, show
from virtualgpu.pictures.style import GREEN

_PASSED = """\
<div class="gpulab-passed" style="border-left: 3px solid {colour}; background: {colour}1f; padding: 0.3em 0.8em; \
white-space: pre-wrap;"><span aria-hidden="true">✔ </span><strong>{name}</strong> passed: {rest}</div>"""

_NOT_YET = """\
<div class="gpulab-not-yet" style="border-left: 3px solid var(--jp-brand-color2, #56B4E9); padding: 0.2em 0.8em;">
○ {text}: write it in the cell above, then run this one again.</div>
<style>
.jp-OutputArea-child:has(.gpulab-not-yet) + .jp-OutputArea-child:has(> [data-mime-type*="vnd.jupyter."]) {{
  display: none;
}}
</style>"""


def passed(name: str, says: str, *more: str) -> None:
    """Show that the check `name` has passed, what it `says` of the answer, and `more`, a line each."""
    rest = "\n".join(html.escape(line, quote=False) for line in (says, *more))
    page = _PASSED.format(colour=GREEN, name=html.escape(name), rest=rest)
    show("\n  ".join([f"✔ {name}: {says}", *more]), html=page)


def not_attempted(text: str) -> None:
    """Show `text`, as in "window: not attempted yet", above the error that follows; nothing outside of a notebook."""
    if in_notebook():
        show(f"○ {text}", html=_NOT_YET.format(text=html.escape(text)))
