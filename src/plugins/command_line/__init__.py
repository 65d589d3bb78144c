"""The ``stepshape`` command."""
