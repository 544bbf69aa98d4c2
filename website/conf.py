"""The configuration of Sphinx for the documentation site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from comporta import __version__

project = "comporta"
author = "The comporta authors"
project_copyright = "The comporta authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# The prompt of a console block is not part of the command.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"comporta {__version__}"
html_static_path = [str(Path(__file__).with_name("style.css"))]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


_UNREADABLE = (
    (re.compile(r"(?:~?typing\.)?~(\w+)(?![\w.])"), r"\1"),  # parameters of generic types: ~typing.~P, ~P
    (re.compile(r"<(?:class|function) '?(?:\w+\.)*(\w+)'?(?: at 0x\w+)?>"), r"\1"),
    (re.compile(r"<(?:\w+\.)*\w+(?: object)?(?: at 0x\w+)?>"), "..."),  # <factory>, <object object>
)
"""What autodoc writes for types and defaults that Sphinx cannot parse, and what it shows instead."""


def setup(app: Sphinx) -> None:
    """Register the function that makes signatures readable."""
    app.connect("autodoc-process-signature", _readable_signature)


def _readable_signature(*event: Any) -> tuple[str | None, str | None]:
    """Return the arguments and the result of a signature without what only the interpreter understands."""
    return _readable(event[-2]), _readable(event[-1])


def _readable(text: str | None) -> str | None:
    for pattern, replacement in _UNREADABLE:
        text = text and pattern.sub(replacement, text)
    return text
