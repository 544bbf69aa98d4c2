"""Files that only grow.

- ``append_only.py``: appends data as a whole or not at all
- ``append_journal.py``: records which bytes a run wrote itself, for when it resumes
- ``torn_tail.py``: finds and repairs the incomplete end that a killed process left
"""
