"""The terminal front end. It never imports torch: everything measured runs elsewhere."""
