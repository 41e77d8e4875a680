"""The checks of lesson 12: functions called on real ranks, and the rank that parted from the others."""
