"""How the documentation is built: ``nox -s docs``."""

from hedged_pubsub._version import __version__

project = "hedged-pubsub"
author = "The hedged-pubsub authors"
copyright = author  # noqa: A001 - the name is Sphinx's
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "hedged-pubsub"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# An extra, which the documentation can be built without.
autodoc_mock_imports = ["apache_beam"]

# The documentation of other projects is not looked into: a build needs no network.
nitpick_ignore_regex = [
    ("py:.*", r"(_asyncio|asyncio|collections|concurrent|datetime|google|grpc|os)\..*"),
    # Of a class that users get, and do not make.
    ("py:class", r"hedged_pubsub\._core\.topic_state\.Recording"),
]
