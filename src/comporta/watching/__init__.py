"""Seeing a whole fleet from anywhere: what every worker tells the state, and what can be read back from it.

::

    calls, answers ─► tallies ─┐                          ┌─► fleet.looking     cards, workers, events
    upstreams ─────► card ─────┼─► teller ─► the state ───┤
    events ────────────────────┘      (once in 2 s)       └─► fleet.recalling   an hour of figures

``series.py`` knows which figure stands in which column. Whoever reads needs the state and nothing else: any
worker, and a command line that is none.
"""

from comporta.watching.card import card
from comporta.watching.fleet import looking, own_card, recalling
from comporta.watching.series import columns_of, minute_of
from comporta.watching.tallies import Tallies
from comporta.watching.teller import Teller

__all__ = ["Tallies", "Teller", "card", "columns_of", "looking", "minute_of", "own_card", "recalling"]
