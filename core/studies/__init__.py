"""Studies: a grid of specs, the runs that fill it, and the tables it becomes. No torch."""
