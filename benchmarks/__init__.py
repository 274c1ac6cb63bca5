"""Programs that take times and count bytes: they print the figures of docs/benchmarks.md."""
