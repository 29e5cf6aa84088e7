"""`serve` and `web`: pages for the browser of your own machine, on loopback and behind a token."""
