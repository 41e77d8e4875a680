"""What the performance and accuracy tables are made of: benches, published figures, a long mixed run."""
