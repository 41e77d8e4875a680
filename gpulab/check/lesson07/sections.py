"""The headings of lecture 07 that its checks send a student to."""

FORMATS = "What 16 bits keep"
AUTOCAST = "Autocast decides for each operation"
SAVES = "What it saves, and from which batch on"
GPUS = "Which GPU is fast in what"
SCALER = "Gradients that vanish, and the scaler"
ORDER = "The order: unscale, clip, step, update"
WEIGHTS = "Weights stay in float32"
TF32 = "TF32: the switch that is already on"
JOBS = "Which format for which job"
MISTAKES = "Common mistakes"
SECTIONS = (FORMATS, AUTOCAST, SAVES, GPUS, SCALER, ORDER, WEIGHTS, TF32, JOBS, MISTAKES)
