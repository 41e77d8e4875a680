"""Shows a `MemoryCurve`: in a running notebook as a picture to zoom into, elsewhere as an image or in words."""

from __future__ import annotations

import base64
import html
from typing import Any

from virtualgpu.pictures import display, style
from virtualgpu.readings.curve import MemoryCurve

from .picture import draw


def show_curve(curve: MemoryCurve, first: int, last: int) -> None:
    """Show the points `first` to `last`."""
    svg = draw(curve, first, last).text(scale=style.scale())
    words = curve.describe()
    data = base64.b64encode(svg.encode()).decode("ascii")
    image = f'<img alt="{html.escape(words)}" src="data:image/svg+xml;base64,{data}" style="max-width:100%">'

    def widget() -> Any:
        try:
            from .zoom import zoomed
        except ImportError:  # anywidget is not installed: the image stands alone
            return None
        return zoomed(curve, first, last)

    display.show(words, html=image, widget=widget)
