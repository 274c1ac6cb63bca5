"""What takes times and counts bytes: programs that print the figures of docs/benchmarks.md."""
