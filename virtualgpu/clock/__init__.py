"""The virtual time: a host, streams and engines, and how fast a GPU does what. No torch."""
