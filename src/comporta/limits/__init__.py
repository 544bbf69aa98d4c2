"""Rate limits: how much may pass, decided for all workers together.

One file per strategy, pure Python beside its Lua twin; ``limiter.py`` is the face users call.
"""
