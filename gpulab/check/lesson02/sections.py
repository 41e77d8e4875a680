"""The sections of the lecture that a failed check may send a student to."""

CHOOSE = "Choosing the device"
NONE = "The same questions where there is no GPU"
MAKE = "Made there, or moved there"
TENSOR = "What .to does to a tensor"
MODEL = "What .to does to a model"
OPTIMIZER = "The optimizer and the move"
TOGETHER = "Together on one device"
SEVERAL = "Several GPUs"
SEE = "Seeing where things are"
LATE = "The error that comes late"
MISTAKES = "Common mistakes"

SECTIONS = (CHOOSE, NONE, MAKE, TENSOR, MODEL, OPTIMIZER, TOGETHER, SEVERAL, SEE, LATE, MISTAKES)
