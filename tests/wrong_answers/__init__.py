"""The answers that students give to the exercises, by lesson, and what their checks say to each."""
