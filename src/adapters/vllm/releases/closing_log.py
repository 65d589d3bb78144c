"""A traceback that vLLM prints, now and then, at a shutdown that went well.

0.33: the front end closes its sockets by one callback and cancels the task that reads from them by another
(``MPClient.shutdown`` and ``AsyncLLM.shutdown``, both from a second thread). Where the thread is held up in between,
the task finds the engine gone first and logs ``EngineDeadError`` with a traceback (``AsyncLLM output_handler
failed``). There is no hook in between; a filter of the logger drops that one record, and only after the launcher said
that a shutdown was asked for. An engine that dies is reported as before.
"""

from __future__ import annotations

import logging

from vllm.v1.engine.exceptions import EngineDeadError

LAUNCHER = "vllm.entrypoints.launchers.launcher"
HANDLER = "vllm.v1.engine.async_llm"
ASKED_FOR = "[shutdown] API server: shutdown triggered"


class ClosingFilter(logging.Filter):
    """For the two loggers. With vLLM's level above INFO the launcher is not heard, and nothing is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == LAUNCHER and record.msg == ASKED_FOR:
            self._closing = True
        if not self._closing or record.name != HANDLER or not record.exc_info:
            return True
        return not isinstance(record.exc_info[1], EngineDeadError)


def expect_the_end() -> None:
    """Install the filter, once a process."""
    loggers = [logging.getLogger(name) for name in (LAUNCHER, HANDLER)]
    if any(isinstance(known, ClosingFilter) for known in loggers[0].filters):
        return
    closing = ClosingFilter()
    for logger in loggers:
        logger.addFilter(closing)
