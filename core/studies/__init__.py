"""Studies: a grid of specs, the runs that fill it, and its tables. No torch."""
