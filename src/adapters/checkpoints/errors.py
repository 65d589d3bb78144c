"""What a conversion raises when the user can mend it."""

from __future__ import annotations


class CheckpointError(Exception):
    """A conversion that cannot be done; the message is one sentence of cause and one of mend."""
