"""Budgets: reserve an estimate before a call, and settle what the call really cost after it.

- ``flows``: what a limiter can do with a budget, each method once
- ``operation``: settling one call, as an operation that any store can apply
- ``settlements``: the settlements of ended reservations, sent together a few milliseconds later
- ``reservation``: what ``async with limiter.reserve(key, cost) as budget`` gives to the program
"""
