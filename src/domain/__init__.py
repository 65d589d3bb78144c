"""The policies: pure functions and small state machines over the values of ``ports``."""
