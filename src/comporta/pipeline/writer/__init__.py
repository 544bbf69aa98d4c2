"""Batch writers: rows collected into batches for a sink.

- ``writer.py``: :class:`BatchWriter` and its blocking interface, which users call
- ``core.py``: the flows behind both interfaces, from open to close
- ``buffers.py``: rows that wait for a batch; pure
- ``delivery.py``: one batch on its way to the sink: limiter, retries, dead letters
- ``ledger.py``: the outcome of each batch: settled rows, counts, hooks
- ``pending_failures.py``: errors that the next caller gets
- ``stats.py``: statistics and metrics
- ``at_exit.py``: writes what open writers hold when the program ends
"""
