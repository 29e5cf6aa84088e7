"""Tables of an imported trace, snapshot or nsys export, decoded in a child process."""
