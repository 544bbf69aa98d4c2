"""Files that only grow.

- ``append_only.py``: appends data as a whole or not at all
- ``journal.py``: tells a resumed run which bytes it wrote itself
- ``torn_tail.py``: finds and repairs the incomplete end that a killed process left
"""
