"""The checks of lesson 07: comparing precisions, one step in mixed precision, a loss scaler, the choice of a format.

Those that need a GPU run in the scope of a virtual one, on every machine, so that bytes and times are exact.
"""
