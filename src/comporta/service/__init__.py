"""The services: a search that survives its sources, batches that never block. Needs the extra ``service``.

``config`` says how it is configured, ``parts`` what routes work with, ``app`` puts them together and
``serving`` has uvicorn serve it; ``routes/`` has one module for each group of paths, and ``problems`` what
they answer when something is wrong.
"""
