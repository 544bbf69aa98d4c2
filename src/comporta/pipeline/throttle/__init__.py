"""A global limit and one for each partition, obeyed together: see ``throttle.py``."""
