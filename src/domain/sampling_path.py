"""Host or device: where each row's token is chosen, and why (contract 6.7; design, choice 6)."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from ..ports.capabilities import ModelCapabilities
from ..ports.sampling import DeviceSampling, HostReason, SampleOnDevice, SamplingPath, SamplingTraits
from ..ports.step import Phase


@attrs.frozen(kw_only=True)
class SamplingRules:
    """What is fixed for the life of the engine."""

    mode: SampleOnDevice
    capabilities: ModelCapabilities
    vocab_size: int

    def own_reason(self, traits: SamplingTraits) -> HostReason | None:
        """Why this request alone needs the host whatever it is batched with; None: the device can do it.

        Order is the order of reporting. A seeded request goes to the device only where its path can never be
        changed by a neighbour, that is where the path is per row: its stream then has one source for life.
        """
        can = self.capabilities
        if traits.grammar:
            return HostReason.GRAMMAR
        if traits.logprobs is not None:
            return HostReason.LOGPROBS
        if traits.custom_processors:
            return HostReason.CUSTOM_PROCESSORS
        if traits.bad_words:
            return HostReason.BAD_WORDS
        if traits.allowed_token_ids:
            return HostReason.ALLOWED_TOKEN_IDS
        if traits.logit_bias:
            return HostReason.LOGIT_BIAS
        if traits.min_tokens:
            return HostReason.MIN_TOKENS
        if traits.min_p and not traits.greedy:
            # vLLM applies min_p to random rows only: the best token always survives it.
            return HostReason.MIN_P
        if traits.penalties:
            # A device sampler wants the token history by slot, and a packed one once gave a neighbour's penalties to
            # rows that had asked for none (contract 8.32). Until the port carries it, the host applies them.
            return HostReason.PENALTIES
        if not traits.greedy:
            if can.max_device_top_k is not None and not 1 <= traits.top_k <= can.max_device_top_k:
                return HostReason.TOP_K
            if traits.seed is not None and not (
                can.supports_device_seeds and can.supports_tokens_and_logits and self.mode is SampleOnDevice.ALL
            ):
                return HostReason.SEED
        return None

    def path(self, phase: Phase, own: Sequence[HostReason | None]) -> SamplingPath:
        """The path of one step from its rows' own reasons, in row order."""
        n = len(own)
        if self.mode is SampleOnDevice.OFF:
            return _all_host(n, HostReason.NO_DEVICE_SAMPLER)
        if phase is Phase.PREFILL and self.mode is SampleOnDevice.DECODE_ONLY:
            return _all_host(n, HostReason.PREFILL_ON_HOST)
        host = tuple(i for i, reason in enumerate(own) if reason is not None)
        if not host:
            return SamplingPath(num_rows=n)
        reasons = Counter(reason for reason in own if reason is not None)
        if not self.capabilities.supports_tokens_and_logits:
            if len(host) < n:
                reasons[HostReason.NEIGHBOUR] += n - len(host)
            host = tuple(range(n))
        return SamplingPath(num_rows=n, host=host, reasons=dict(reasons))

    def wire(self, traits: SamplingTraits) -> DeviceSampling:
        """A device-sampled row's parameters on the wire (contract 3.8).

        ``top_k`` off or beyond the vocabulary becomes the vocabulary; greedy, and ``top_k=1`` whatever its
        ``top_p``, become exact argmax: a device that keeps 32 candidates would leave a random nucleus otherwise.
        """
        if traits.greedy or traits.top_k == 1:
            return DeviceSampling(temperature=0.0, top_k=1, top_p=1.0, seed=None)
        top_k = traits.top_k if 0 < traits.top_k < self.vocab_size else self.vocab_size
        return DeviceSampling(temperature=traits.temperature, top_k=top_k, top_p=traits.top_p, seed=traits.seed)


def _all_host(n: int, reason: HostReason) -> SamplingPath:
    return SamplingPath(num_rows=n, host=tuple(range(n)), reasons={reason: n} if n else {})
