"""Tables of a foreign trace, snapshot or nsys export, decoded by a child process."""
