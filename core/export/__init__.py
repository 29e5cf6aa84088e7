"""What leaves the product: artifacts for other tools, and tables."""
