"""One screen a module, its rules in the ``.tcss`` beside it."""
