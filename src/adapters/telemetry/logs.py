"""Our log lines among vLLM's: same handler, same form, same level."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

_FRAMES = 3
"""From logging's point of view: structlog's proxy, its level method, the caller."""


def join_vllm_logs() -> None:
    """Send what structlog loggers say to children of vLLM's logger.

    Nothing where the process has configured structlog itself: then its word stands.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[_to_logging],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=_vllm_child,
        cache_logger_on_first_use=True,
    )


def _vllm_child(*names: Any) -> logging.Logger:
    return logging.getLogger(".".join(("vllm", *names)))


def _to_logging(
    logger: Any, level: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """The arguments of the standard library's call: ``event key=value ...``."""
    failure = event.pop("exc_info", None)
    said = event.pop("event")
    line = " ".join([str(said), *(f"{key}={value}" for key, value in event.items())])
    # ``exception`` goes through ``error``: one frame more.
    return (line,), {"exc_info": failure, "stacklevel": _FRAMES + (failure is not None)}
