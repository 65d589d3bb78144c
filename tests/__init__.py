"""Tests of three kinds: ``unit`` (pure, fast), ``integration`` (real libraries), ``e2e`` (the served system)."""
