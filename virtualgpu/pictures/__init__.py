"""Presentation: palette, SVG drawing, and notebook output with or without a kernel."""
