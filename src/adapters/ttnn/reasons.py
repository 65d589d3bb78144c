"""What ttnn says when something fails, in one line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The reason without the backtrace: a TT_FATAL has it below ``info:``, other errors in their first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "info:" in lines[:-1]:
        return lines[lines.index("info:") + 1]
    return lines[0] if lines else type(error).__name__
