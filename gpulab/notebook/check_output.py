"""Displays a check's outcome that is no failure: a pass, or an exercise that is not attempted yet.

For the latter the check raises too, for graders and scripts; JupyterLab hides the error below the line, other front
ends show both.
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
    """Show that the check `name` has passed, its sentence `says`, and the lines `more`."""
    rest = "\n".join(html.escape(line, quote=False) for line in (says, *more))
    page = _PASSED.format(colour=GREEN, name=html.escape(name), rest=rest)
    show("\n  ".join([f"✔ {name}: {says}", *more]), html=page)


def not_attempted(text: str) -> None:
    """Show `text`, such as "window: not attempted yet", above the error that follows; only in a notebook."""
    if in_notebook():
        show(f"○ {text}", html=_NOT_YET.format(text=html.escape(text)))
