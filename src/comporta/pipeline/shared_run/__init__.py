"""Shared runs: one run of a pipeline, on which any number of processes and machines work.

The lines of the run are a table in the database of the sink. Workers claim a few lines at a time under
leases. The transaction that writes the rows of a line also deletes the line, so every line has its rows, or a
dead letter, exactly once, whatever is killed.

- ``source.py``: :class:`TableSource`, which users pass to a ``Pipeline``
- ``run_identity.py``: identifies a run by a digest of its lines and its ``identity``; uses no database
- ``line_loader.py``: one worker copies the lines into the table, under a lease
- ``reader.py``: claims lines until the run is complete
- ``item_sink.py``: rows, dead letters and confirmations in one transaction
- ``progress_log.py``: leases, confirmations and the report of one worker
- ``outage.py``: how workers wait while the database cannot be reached
- ``removal.py``: removes runs
- ``commands.py``, ``sql.py``, ``migrations.py``, ``models.py``: the database
"""

from comporta.pipeline.shared_run.source import RunLine, TableSource

__all__ = ["RunLine", "TableSource"]
