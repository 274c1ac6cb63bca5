"""Figures of ZEN's paper (OSDI 2025), redone: each module has `rows(options)` and `draw(rows, figure)`."""
