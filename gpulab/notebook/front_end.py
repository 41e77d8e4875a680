"""What ipywidgets leaves out of a quiz and a prediction in the browser, put in by a small script and a style.

Radio buttons become one group, which arrow keys walk through and a screen reader names; answers are spoken; long
text wraps. Where the browser lacks anywidget's half, quiz and prediction work without all that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from virtualgpu.pictures import asleep

BOX_CLASS = "gpulab-furniture"  # the script and the style look for these two
ANSWER_CLASS = "gpulab-answer"

_SCRIPT = """
let groups = 0;

function furnish(box, label) {
  const group = `gpulab-group-${++groups}`;
  for (const radio of box.querySelectorAll("input[type=radio]")) {
    radio.name = group;
    // JupyterLab would take the arrow keys, to walk from cell to cell; it asks the element that has the focus.
    radio.setAttribute("data-lm-suppress-shortcuts", "true");
  }
  const radios = box.querySelector(".widget-radio-box");
  radios?.setAttribute("role", "radiogroup");
  radios?.setAttribute("aria-label", label);
  // A screen reader speaks what changes inside a region, not a region that comes and goes.
  box.querySelector(".gpulab-answer .widget-html-content")?.setAttribute("role", "status");
}

function render({ model, el }) {
  let frame;
  // The view is made before it and its neighbours are put into their box.
  const wait = () => {
    const box = el.closest(".gpulab-furniture");
    if (box?.querySelector(".gpulab-answer .widget-html-content")) furnish(box, model.get("label"));
    else frame = requestAnimationFrame(wait);
  };
  wait();
  return () => cancelAnimationFrame(frame);
}

export default { render };
"""

_STYLE = """
.gpulab-furniture { margin-bottom: 0.5em; }
.gpulab-furniture .widget-html-content { line-height: 1.5; }
.gpulab-furniture .widget-html-content p { margin: 0.3em 0; }
.gpulab-furniture .widget-radio, .gpulab-furniture .widget-radio-box { height: auto; width: auto; }
.gpulab-furniture .widget-radio-box label {
  display: flex; align-items: flex-start; height: auto; padding: 0; margin: 0.1em 0; line-height: 1.5;
  white-space: normal;
}
.gpulab-furniture .widget-radio-box label input {
  order: -1; flex: none; float: none; position: static; width: 1em; height: 1em; margin: 0.25em 0.6em 0 0.2em;
}
.gpulab-furniture .widget-text { flex-wrap: wrap; align-items: center; height: auto; }
.gpulab-furniture .widget-text .widget-label {
  flex: 0 1 auto; height: auto; line-height: 1.5; text-align: left; white-space: normal;
}
.gpulab-furniture .widget-text input { flex: 0 0 15em; }
"""


def box(children: Sequence[Any], *, answer: Any, label: str) -> Any:
    """The widgets under one another; `answer`, one of them, is spoken when it changes, and `label` names the group
    of radio buttons, where there is one."""
    import ipywidgets as widgets

    answer.add_class(ANSWER_CLASS)
    try:
        helpers = [_front_end_class()(label=label)]
    except ImportError:
        helpers = []
    # of no height, so that nothing shows where the browser lacks anywidget's half
    hidden = [widgets.Box(helpers, layout=widgets.Layout(height="0", overflow="hidden", margin="0"))]
    outer = widgets.VBox([*children, *hidden])
    outer.add_class(BOX_CLASS)
    return asleep.mark_without_kernel(outer)


@functools.cache
def _front_end_class() -> Any:
    import anywidget
    import traitlets

    class FrontEnd(anywidget.AnyWidget):
        _esm = _SCRIPT
        _css = _STYLE
        label = traitlets.Unicode().tag(sync=True)

    return FrontEnd
