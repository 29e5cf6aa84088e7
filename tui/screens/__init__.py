"""One folder a screen, with its stylesheet ``screen.tcss``."""
