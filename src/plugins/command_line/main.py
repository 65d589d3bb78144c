"""Entry of the ``stepshape`` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ... import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="stepshape")
    parser.add_argument("--version", action="version", version=__version__)
    parser.parse_args(arguments)
    parser.print_help()
    return 0
