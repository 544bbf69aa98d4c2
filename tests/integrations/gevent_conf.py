"""A configuration file of gunicorn that patches the standard library before anything else is imported."""

from gevent import monkey

monkey.patch_all()
