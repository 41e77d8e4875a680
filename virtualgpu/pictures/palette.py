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
# Each has a value of its own, by which its colour in the dark theme is found.
EDGE = "#5C5C5C"  # around what is hollow, quieter than INK
SEAM = "#5D5D5D"  # around a fill and for its hatching: dark in both themes
ON = "#101010"  # words on a fill, which is bright in both themes; not on BLUE in the light one

# What holds memory, the same in every picture of it.
MEMORY = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer state": GREEN,
    "activations": PURPLE,
    "logits": YELLOW,
    "data": SKY,
    "temporaries": VERMILLION,
    "workspaces": INK,
    "communication": PAPER,
    "reserved, not allocated": RULE,
    "CUDA context": MUTED,
}

# The same in a dark theme: every fill is as bright there as in the light one, and ON reads on all of them, BLUE too.
DARK = {
    PAPER: "#161616",
    INK: "#F2F2F2",
    MUTED: "#B8B8B8",
    RULE: "#505050",
    EDGE: "#A3A3A3",
    SEAM: "#2A2A2A",
    ORANGE: "#E0A02A",
    SKY: "#9AD2F5",
    GREEN: "#2FA985",
    YELLOW: "#DDD24A",
    BLUE: "#4A90D0",
    VERMILLION: "#E2733A",
    PURPLE: "#D68BB6",
}
