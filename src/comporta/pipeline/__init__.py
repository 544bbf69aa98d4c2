"""Work in a stream: bounded, throttled on two levels, written in batches, nothing lost.

``channel.py`` joins producers and consumers, ``throttle.py`` keeps a global limit and one per partition,
``writer.py`` gathers rows into batches for a sink (``sinks/``), ``pipeline.py`` joins them all.
"""
