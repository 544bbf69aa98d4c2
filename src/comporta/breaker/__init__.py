"""Circuit breakers: a fleet that stops calling an upstream together, and tries it again together.

``machine.py`` is the machine, pure, beside its Lua twin; ``view.py`` what a worker knows of it; ``verbs.py``
what can be asked, each once, as a flow; ``breaker.py`` the faces.
"""
