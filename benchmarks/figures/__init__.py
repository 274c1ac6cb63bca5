"""Figures of ZEN's paper (OSDI 2025), reproduced: each module has `rows(options)` and `draw(rows, figure)`."""
