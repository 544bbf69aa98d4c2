"""SQL databases: a file of SQLite's, or a PostgreSQL server, behind one small protocol.

``base.py`` says what a database does and in which words it is asked; ``sqlite.py`` and ``postgres.py`` do it;
``crew.py`` has the threads that wait for them; ``migrations.py`` brings the tables up to date.
"""
