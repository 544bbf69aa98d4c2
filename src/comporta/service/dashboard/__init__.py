"""The dashboard: one page that shows the whole fleet, whichever worker serves it.

``document`` says what there is to see, ``kept`` what of it is in the database and ``discreet`` what of it is
nobody's business; ``live`` tells it to open pages, ``files`` are the pages themselves, and ``doors`` decides
who may look.
"""
