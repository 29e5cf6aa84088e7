"""The screens of the workstation, each with a stylesheet of its name."""
