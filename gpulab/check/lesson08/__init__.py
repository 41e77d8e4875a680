"""The checks of lesson 08: windows, token weighting, mixed precision with clipping, and BatchNorm.

Each runs the student's function beside a reference on the same small model. Where the answer is wrong, the
gradients it stepped with are compared with what each known misconception would give, and that one is named.
"""
