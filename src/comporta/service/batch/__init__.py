"""Batch jobs over many accounts that survive the death of a worker and fill a sheet, each row exactly once.

All pending work lives in the database. All workers lease chunks of the same jobs, run them and store the
results. One worker at a time, under a lease of its own, writes the stored results to the sheet of a job.

- ``batches``: the interface for routes. ``factory`` opens it from the configuration.
- ``job_leases``: finds work and keeps leases. ``job_turns`` decides which job gets a place.
- ``runner``: processes the accounts of a chunk. ``account_gate`` runs one alone that may kill its worker.
- ``processor``: what is done for each account.
- ``sheet_turn``: writes stored results to the sheet of a job.
- ``sheets``, ``database_sheets``, ``local_sheets``: store sheets in Google Sheets, in the database or in CSV
  files. ``downloads`` reads the sheets that the service serves, with ``download_queries``.
- ``whitelist``: who may have sheets.
- ``commands``, ``chunk_commands``, ``sql``, ``chunk_sql``, ``models``, ``migrations``: the database side.
- ``metrics``: counters.
"""
