"""comporta beside its peers, measured in one run: ``make bench``.

What is claimed is a ratio, because ratios hold on every machine and absolute figures on none. See
``docs/benchmarks.md`` for the method and the figures of the last full run.
"""
