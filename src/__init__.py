"""Stepshape: vLLM on accelerators that want every step the same shape.

The rings, outermost first: ``plugins`` > ``adapters`` > ``domain`` > ``ports``; imports point down only.
"""

__version__ = "0.1.0"
