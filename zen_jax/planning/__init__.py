"""What is sent, how fast links are, and which scheme is therefore the fastest.

Counts of gradients, stacked (`profile`) or live (`profiler`), make a profile (`sparsity`); `calibrate` measures a
`cluster`. From both follow `costs`, then an `estimate`, then a `plan`. `simulate` does the same for other clusters,
`autotune` inside a loop.
"""
