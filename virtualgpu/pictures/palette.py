"""The colours of every picture, in a light theme and in a dark one."""

# Okabe and Ito's eight colours, distinguishable with any colour vision (jfly.uni-koeln.de/color).
# Dark ink reads on all of them but BLUE and BLACK (at least 4.9 : 1); white reads on those two.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
PALETTE = (BLUE, ORANGE, GREEN, VERMILLION, SKY, PURPLE, YELLOW, BLACK)

PAPER = "#FFFFFF"
INK = "#111111"
MUTED = "#555555"  # for what explains; 7.5 : 1 on PAPER
RULE = "#C9C9C9"  # for edges and grids, which carry no text
EDGE = "#5C5C5C"  # around a fill and for its hatching: it shows on every fill, and is quieter than INK

ON = "#101010"  # words on a fill: the same in both themes, since a fill is bright in both

# The same in a dark theme: light ink reads on every fill (4.5 : 1), every fill shows on the ground (3 : 1).
DARK = {
    PAPER: "#161616",
    INK: "#F2F2F2",
    MUTED: "#B8B8B8",
    RULE: "#505050",
    EDGE: "#A3A3A3",
    ORANGE: "#926400",
    SKY: "#2273A6",
    GREEN: "#007D62",
    YELLOW: "#777000",
    BLUE: "#6BB8F0",
    VERMILLION: "#B84D00",
    PURPLE: "#A94E7C",
}
