"""The checks of lesson 08: windows, token weighting, mixed precision with clipping, and BatchNorm."""
