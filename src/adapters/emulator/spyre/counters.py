"""What the card was made to do: artifacts compiled, copies between host and card, operators handed to the host."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import attrs

from .coverage import plain_name


@attrs.frozen(kw_only=True)
class Counters:
    """Sums since the process began or since they were reset."""

    artifacts: dict[tuple[str, str], int]
    """graphs compiled, by (kernel, shape of its inputs)"""
    eager_kernels: dict[tuple[str, str], int]
    """artifacts of eager operators, by (operator, shape of its tensors): one for each dtype, size, stride, offset and
    plain argument"""
    fallbacks: dict[str, int]
    """calls handed to the host, by operator; those of a graph once, when it is compiled"""
    host_to_device: int
    host_to_device_bytes: int
    device_to_host: int
    device_to_host_bytes: int
    eager_calls: int
    """operator calls outside compiled graphs"""

    @property
    def compiles(self) -> int:
        """Artifacts of both kinds."""
        return sum(self.artifacts.values()) + sum(self.eager_kernels.values())

    @property
    def copies(self) -> int:
        """Copies between host and card, both ways."""
        return self.host_to_device + self.device_to_host

    def flat(self) -> dict[str, int]:
        """The sums as one row of numbers, for a report."""
        return {
            "artifacts": sum(self.artifacts.values()),
            "eager_kernels": sum(self.eager_kernels.values()),
            "fallbacks": sum(self.fallbacks.values()),
            "host_to_device": self.host_to_device,
            "host_to_device_bytes": self.host_to_device_bytes,
            "device_to_host": self.device_to_host,
            "device_to_host_bytes": self.device_to_host_bytes,
        }


class Tally:
    """The counts kept in Python; the shim keeps those of calls that Python never sees."""

    def __init__(self) -> None:
        self.artifacts: Counter[tuple[str, str]] = Counter()
        self.eager_kernels: Counter[tuple[str, str]] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def read(self, shim: ModuleType) -> Counters:
        counted = shim.counts()
        fallbacks = Counter(self.fallbacks)
        for name, calls in counted.pop("fallbacks").items():
            fallbacks[plain_name(name.partition(".")[0])] += calls
        return Counters(
            artifacts=dict(self.artifacts),
            eager_kernels=dict(self.eager_kernels),
            fallbacks=dict(fallbacks),
            **counted,
        )

    def reset(self, shim: ModuleType, *, compiled: bool) -> None:
        self.artifacts.clear()
        self.eager_kernels.clear()
        self.fallbacks.clear()
        shim.reset_counts(compiled)
