"""Budgets: reserve an estimate before a call, and settle its actual cost after it.

- ``flows``: every budget method of a limiter, implemented once
- ``operation``: settling one call, as an operation that any store can apply
- ``settlements``: the settlements of ended reservations, sent together a few milliseconds later
- ``reservation``: the object that ``async with limiter.reserve(key, cost) as budget`` provides
"""
