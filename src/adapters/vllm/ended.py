"""Requests that end outside vLLM's own step, until their clients have been told.

vLLM's ``finish_requests`` is for clients that left: it tells nobody. Whoever ends a request for another reason owes its
client an output; a stream without one stays open, and a server with an open stream does not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request

from .outputs import NOTHING_LEFT, Failure
from .releases.request_error import request_error


class EndedRequests:
    """Kept from the moment they end to the end of the step."""

    def __init__(self) -> None:
        self._requests: list[tuple[Request, Failure | None]] = []

    def add(self, requests: Iterable[Request], why: Mapping[str, Failure] | None = None) -> None:
        """``why``: by request id, for those that failed."""
        self._requests += [(request, (why or {}).get(request.request_id)) for request in requests]

    def tell(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Add an output for each to those of its client."""
        for request, failure in self._requests:
            ended = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                events=request.take_events(),
                trace_headers=request.trace_headers,
                **request_error(failure),
            )
            add_outputs(outputs, request.client_index, EngineCoreOutputs(outputs=[ended]))
        self._requests = []


def add_outputs(merged: dict[int, EngineCoreOutputs], client: int, outputs: EngineCoreOutputs) -> None:
    """``outputs`` besides what ``client`` gets already."""
    into = merged.get(client)
    if into is None:
        merged[client] = outputs
        return
    into.outputs = into.outputs + outputs.outputs
    if outputs.finished_requests:
        into.finished_requests = (into.finished_requests or set()) | outputs.finished_requests


def explain_rejected_tokens(outputs: Mapping[int, EngineCoreOutputs]) -> None:
    """A token that its grammar rejects ends its request with an error of vLLM's that has no cause. It is chosen only
    where everything is masked: the sampler takes some token then."""
    for of_client in outputs.values():
        for output in of_client.outputs:
            if output.finish_reason is FinishReason.ERROR:
                for name, value in request_error(NOTHING_LEFT).items():
                    if getattr(output, name) is None:
                        setattr(output, name, value)
