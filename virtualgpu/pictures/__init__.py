"""How things are shown: the palette, SVG, and what a notebook is given, with or without a kernel."""
