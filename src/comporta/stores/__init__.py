"""State engines: where the state of limits and other policies is kept, and who shares it.

A store does one thing: apply an operation to the states of some keys, atomically. What the operation
means is the operation's business.
"""
