"""SQL databases behind one small protocol: a SQLite file or a PostgreSQL server.

==================  ===================================================================================
``base.py``         ``Database``, the protocol, and ``Statement``, one SQL text for both databases
``command.py``      ``Command``: statements, parameters and how to read the result, as one value
``sqlite.py``       a SQLite file
``postgres.py``     a PostgreSQL server
``urls.py``         opens the database that a URL names
``migrations.py``   creates and updates tables, once, however many processes start together
==================  ===================================================================================
"""
