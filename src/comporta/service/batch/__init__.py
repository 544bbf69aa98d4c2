"""Batch jobs over many accounts that survive the death of a worker and fill a sheet, each row exactly once.

All pending work lives in the database. A worker leases it, runs it and stores the results.

- ``batches``: the interface for routes. ``factory`` opens it from the configuration.
- ``job_leases``: finds and leases work. ``runner`` runs a job, ``backfill`` a backfill.
- ``processor``: what is done for each account.
- ``sheet_writer``: writes the results of a running job to its sheet.
- ``sheets``, ``local_sheets``: where sheets are stored: Google Sheets or CSV files.
- ``whitelist``: who may have sheets.
- ``commands``, ``sql``, ``models``, ``migrations``: the database side.
- ``metrics``: counters.
"""
