"""What the CPU speed benchmarks share."""
