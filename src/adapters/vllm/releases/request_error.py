"""How a request that failed in the engine tells its client why.

0.33: ``EngineCoreOutput.error`` becomes the exception that the request's stream ends with: HTTP 400 for the code
``validation_error``, else 500, both with the message. A release without it sends its own "Internal server error".
``LLM`` has no stream and gets finish reason error alone.
"""

from __future__ import annotations

from typing import Any

from vllm import outputs
from vllm.v1.engine import EngineCoreOutput

from ..outputs import Failure

_REQUEST_ERROR: Any = getattr(outputs, "RequestError", None) if "error" in EngineCoreOutput.__struct_fields__ else None


def request_error(failure: Failure | None) -> dict[str, Any]:
    """The arguments of ``EngineCoreOutput`` that say it; none where there is nothing to say, or no way to."""
    if failure is None or _REQUEST_ERROR is None:
        return {}
    code = "validation_error" if failure.asked_for else "generation_error"
    return {"error": _REQUEST_ERROR(code=code, message=failure.why)}
