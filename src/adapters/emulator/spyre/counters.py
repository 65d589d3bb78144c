"""What the card was made to do: artifacts compiled, copies between host and card, operators handed to the host."""

from __future__ import annotations

from collections import Counter

import attrs

from .device import loaded_shim

_ARTIFACTS: Counter[tuple[str, str]] = Counter()


@attrs.frozen(kw_only=True)
class Counters:
    """Sums since the process began or since :func:`reset_counters`."""

    artifacts: dict[tuple[str, str], int]
    """graphs compiled, by (kernel, shape of its inputs)"""
    eager_kernels: dict[str, int]
    """artifacts of eager operators, by operator: one a signature (dtypes, sizes, strides, offsets, plain arguments)"""
    fallbacks: dict[str, int]
    """calls handed to the host, by operator"""
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


def counters() -> Counters:
    """The counts of this process."""
    return Counters(artifacts=dict(_ARTIFACTS), **loaded_shim().counts())


def reset_counters(*, compiled: bool = False) -> None:
    """Set every count to 0. ``compiled`` True: also forget which eager signatures have an artifact."""
    _ARTIFACTS.clear()
    loaded_shim().reset_counts(compiled)


def count_artifact(kernel: str, shape: str) -> None:
    """One graph more was compiled."""
    _ARTIFACTS[kernel, shape] += 1
