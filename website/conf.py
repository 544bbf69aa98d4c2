"""The configuration of Sphinx for the documentation site."""

from __future__ import annotations

from pathlib import Path

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
