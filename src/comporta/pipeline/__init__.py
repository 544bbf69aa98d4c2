"""Work in a stream: bounded, throttled on two levels, written in batches, nothing lost.

``channel.py`` joins producers and consumers, ``throttle/`` keeps a global limit and one per partition,
``writing/`` gathers rows into batches for one of the ``sinks/``, and ``runs/`` joins a source, a step and a
sink into a pipeline that can be killed and goes on. ``letters.py`` keeps what was given up, and ``cells.py``
what may stand in a cell.
"""
