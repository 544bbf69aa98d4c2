"""Benchmarks that compare comporta with its peers in one run: ``make bench``.

The claims are ratios, because a ratio holds on every machine and an absolute number on none. See
``docs/reference/benchmarks.md`` for the method and the results of the last full run.
"""
