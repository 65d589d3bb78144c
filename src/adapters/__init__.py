"""One side of one port each. Rooms do not import each other; they meet through ``ports``."""
