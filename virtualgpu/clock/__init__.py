"""Performance model: a simulated host, streams, engines, links and NCCL. No torch."""
