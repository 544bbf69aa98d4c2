"""SQL databases behind one small protocol: a SQLite file or a PostgreSQL server.

==========================  ============================================================================
``base.py``                 ``Database``, the protocol, and ``Statement``, one SQL text for both databases
``command.py``              ``Command``: statements, parameters and how to read the result, as one value
``sqlite.py``               a SQLite file
``postgres.py``             a PostgreSQL server
``postgres_async.py``       PostgreSQL connections for awaiting callers, a pool for each event loop
``postgres_connection.py``  connections whose calls end at a deadline
``postgres_socket.py``      drives psycopg's generators by the events of a socket
``postgres_errors.py``      PostgreSQL errors as ``DatabaseError``
``urls.py``                 opens the database that a URL names
``leases.py``               the SQL of leases on rows
``migrations.py``           creates and updates tables, once, however many processes start together
==========================  ============================================================================
"""
