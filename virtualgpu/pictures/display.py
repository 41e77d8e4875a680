"""Build one output with text, a still picture or page, and a live widget.

A front end shows the richest form it knows: the widget where a kernel is alive, the SVG or HTML where
none is (GitHub, an exported page, a saved notebook), the text in a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .asleep import OURS, WIDGET_VIEW


def in_notebook() -> bool:
    """Return True inside an IPython kernel (JupyterLab, Colab, nbval), False in a script or a terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return shell is not None and hasattr(shell, "kernel")


def bundle(text: str, *, svg: str | None = None, html: str | None = None, widget: Any = None) -> dict[str, Any]:
    """Return the MIME bundle of `text` and the richer forms that are given; `widget` is an ipywidgets widget."""
    data: dict[str, Any] = {"text/plain": text}
    if html is not None:
        data["text/html"] = html
    if svg is not None:
        data["image/svg+xml"] = svg
    if widget is not None:
        data[WIDGET_VIEW] = widget._repr_mimebundle_()[WIDGET_VIEW] | {OURS: True}
    return data


def show(
    text: str,
    *,
    svg: str | None = None,
    html: str | None = None,
    widget: Callable[[], Any] | None = None,
) -> None:
    """Display the bundle in a notebook, print the text elsewhere; `widget` is called in a notebook only."""
    if not in_notebook():
        print(text)
        return
    from IPython.display import display

    display(bundle(text, svg=svg, html=html, widget=widget() if widget else None), raw=True)
