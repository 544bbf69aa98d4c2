"""Jobs over many accounts that never block, survive whoever runs them, and fill a sheet, each row once.

What there is to do stands in the database and nowhere else (``migrations``, ``statements``, ``requests``); a
worker takes a lease on it (``taking``) and does it: a job (``running``), its rows for the sheet (``filling``)
or the rows from before there was one (``backfill``). ``batches`` is what routes talk to.
"""
