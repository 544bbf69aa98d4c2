"""Leases: a worker takes many units of a limit in one step and uses them without another call to the store.

- ``operation``: the operation that ends one lease and grants the next
- ``client``: a limit that decides from the lease that this process holds
- ``scheduler``: the thread that returns unused units before a lease expires
"""
