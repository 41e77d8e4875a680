"""What is no error does not look like one: an exercise that is still to be written gets a quiet line.

The check raises all the same, since that is how a grader and a script see it; JupyterLab does not show the error below
the quiet line. Other front ends show both.
"""

from __future__ import annotations

import html

from ..display import in_notebook, show

_CARD = """\
<div class="gpulab-not-yet" style="border-left: 3px solid var(--jp-brand-color2, #56B4E9); padding: 0.2em 0.8em;">
○ {text}: write it in the cell above, then run this one again.</div>
<style>
.jp-OutputArea-child:has(.gpulab-not-yet) + .jp-OutputArea-child:has(> [data-mime-type*="vnd.jupyter."]) {{
  display: none;
}}
</style>"""


def not_attempted(text: str) -> None:
    """Show `text`, as in "window: not attempted yet", above the error that follows; nothing outside of a notebook."""
    if in_notebook():
        show(f"○ {text}", html=_CARD.format(text=html.escape(text)))
