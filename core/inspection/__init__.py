"""Anyone's trace, snapshot or nsys export, decoded by a child process into our tables."""
