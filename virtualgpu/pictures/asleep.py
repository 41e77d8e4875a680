"""Mark live widgets whose kernel is gone, in the open page and in a saved notebook.

The page of a running notebook keeps the widget and marks it; a style puts words where ipywidgets has a red icon. A
saved notebook keeps only the view of a widget, which JupyterLab shows as "Error displaying widget: model not found".
So an extension of Jupyter's server, which `make lab` asks for, saves the still picture and the text in its place.
"""

from __future__ import annotations

import html
from typing import Any

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
OURS = "gpulab"  # marks the views of our own widgets; those of others are saved as they are
WORDS = "This one is asleep: run this cell again."
UNRUN = "<p>Run this cell to move it.</p>"  # in a still picture, which WORDS replace

_CLASS = "gpulab-live"
_LOOK = "border-left: 3px solid var(--jp-brand-color2, #56B4E9); padding: 0.2em 0.8em; margin: 0.3em 0;"
_STYLE = f"""<style>
.{_CLASS} .jupyter-widgets-disconnected::before {{ content: none; }}
.{_CLASS}.jupyter-widgets-disconnected::before {{
  content: "{WORDS}"; display: block; width: auto; height: auto; font: inherit; text-align: left; line-height: 1.5;
  color: var(--jp-content-font-color1, inherit); {_LOOK}
}}
.{_CLASS}.jupyter-widgets-disconnected :is(button, input, select) {{ opacity: 0.5; }}
.{_CLASS}.jupyter-widgets-disconnected :is(label, button, input, select) {{ pointer-events: none; }}
</style>"""


def mark_without_kernel(box: Any) -> Any:
    """Make the `ipywidgets` box show a note when its kernel is gone; return the box."""
    import ipywidgets

    box.add_class(_CLASS)
    box.children = (*box.children, ipywidgets.HTML(_STYLE, layout=ipywidgets.Layout(display="none")))
    return box


def replace_widget_views(notebook: dict[str, Any]) -> None:
    """Replace the views of our widgets by their still picture or text, under WORDS. `notebook` is a notebook's content
    as Jupyter saves it, of format 4, and is changed in place."""
    for cell in notebook.get("cells", ()):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            view = data.get(WIDGET_VIEW)
            if isinstance(view, dict) and OURS in view:
                del data[WIDGET_VIEW]
                still = (
                    _text(data.get("text/html")).replace(UNRUN, "")
                    or f"<pre>{html.escape(_text(data.get('text/plain')))}</pre>"
                )
                data["text/html"] = f'<p class="gpulab-asleep" style="{_LOOK}">{WORDS}</p>\n{still}'


def _text(lines: str | list[str] | None) -> str:
    return "".join(lines or ())


def _before_saving(model: dict[str, Any], **_: Any) -> None:
    if model["type"] == "notebook":
        replace_widget_views(model["content"])


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    # when all extensions are loaded: jupytext's puts another contents manager in the place of the first
    server.io_loop.add_callback(lambda: server.contents_manager.register_pre_save_hook(_before_saving))
