"""Pipelines: a source, a step for every item, a sink, and a checkpoint to resume from.

- ``pipeline.py``: :class:`Pipeline` and its blocking interface, which users call
- ``runner.py``: one run, from open to shutdown
- ``sources.py``, ``reader.py``: where items come from, and how they reach the event loop
- ``executor.py``: the step of one item, with its retries
- ``per_key_order.py``: items of one key one after another; pure
- ``output.py``: rows on their way to the sink, with the items they came from
- ``item_sink.py``: sinks that take the rows of items
- ``item_log.py``: the protocol of an object that records finished items
- ``progress_log.py``, ``checkpoint.py``, ``offsets.py``: which items are done, and the file that records it
- ``progress.py``, ``report.py``: progress for people and programs
- ``signals.py``: Ctrl-C and SIGTERM
"""
