"""Everything that touches ttnn."""
