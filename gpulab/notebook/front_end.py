"""Adds keyboard control, accessibility and text wrapping to ipywidgets in the browser, by a script and CSS.

Radio buttons become one group for arrow keys and screen readers, which also read out answers. Where the browser lacks
anywidget's front-end part, quiz and prediction work without these.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from virtualgpu.pictures import asleep

BOX_CLASS = "gpulab-furniture"  # used by the script and the style
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
    """Return the widgets in a column. Screen readers read out changes of `answer`, one of them, and name the group of
    radio buttons, if there is one, by `label`."""
    import ipywidgets as widgets

    answer.add_class(ANSWER_CLASS)
    try:
        helpers = [_front_end_class()(label=label)]
    except ImportError:
        helpers = []
    # of no height, so that nothing shows where the browser lacks anywidget's front-end part
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
