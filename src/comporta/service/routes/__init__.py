"""One module for each group of paths; each has a ``router``."""
