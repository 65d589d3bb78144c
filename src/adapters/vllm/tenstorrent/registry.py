"""Registering the models of a mesh with vLLM, and finding the class that serves an architecture."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.logger import init_logger
from vllm.model_executor.models import ModelRegistry

from ....domain.bundles import Bundle, SkippedBundle, choose_registrations
from ....domain.model_table import PREFIX, EmulatedClasses, builtin_table, emulated_target, prefixed, read_choices
from ....domain.rules import ConfigurationError
from ....domain.selection import Device

log = init_logger(f"vllm.{__name__}")


class ModelRegistrar:
    """Knows which ``module:Class`` serves an architecture on this host. Registering twice is allowed."""

    def __init__(
        self,
        device: Device,
        emulated: EmulatedClasses,
        environment: Mapping[str, str],
        bundles: Sequence[Bundle | SkippedBundle],
    ) -> None:
        self._device = device
        self._emulated = emulated
        self._environment = environment
        self._bundles = bundles

    def register_all(self) -> None:
        """Register what can be named without a checkpoint: bundles, and on a real mesh tt-metal's models; on the
        emulator every causal LM of ``transformers``. What vLLM does not know is registered under its own name as well:
        vLLM looks a checkpoint's architecture up before it asks the platform, and would refuse it (contract 8.41).

        For the same reason test models are among them; without their option :meth:`target_of` refuses them later."""
        targets = self._targets(test_models=True)
        for architecture, target in list(targets.items()):
            bare = architecture.removeprefix(PREFIX)
            if bare not in ModelRegistry.models:
                targets.setdefault(bare, target)
        if self._device is Device.EMULATED:
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

            choices = read_choices(self._environment)
            for architecture in dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
                target = emulated_target(architecture, choices, self._emulated)
                targets.setdefault(prefixed(architecture), target)
                if architecture not in ModelRegistry.models:
                    targets.setdefault(architecture, target)
        for architecture, target in targets.items():
            _register(architecture, target)

    def target_of(self, architectures: Sequence[str], test_models: bool = False) -> tuple[str, str]:
        """Return (architecture without our prefix, ``module:Class``) for the first of ``architectures`` that is
        served, and register it. Raises :class:`ConfigurationError` naming what is served where none is."""
        targets = self._targets(test_models)
        for architecture in architectures:
            name = prefixed(architecture)
            target = targets.get(name)
            if target is None and self._device is Device.EMULATED:
                target = emulated_target(architecture, read_choices(self._environment), self._emulated)
            if target is not None:
                _register(name, target)
                return name.removeprefix(PREFIX), target
        wanted = ", ".join(architectures) or "a checkpoint without architectures"
        if not test_models and any(prefixed(name) in self._targets(test_models=True) for name in architectures):
            raise ConfigurationError(
                (f"{wanted} is a test model; set additional_config.tt.register_test_models to true to serve it",)
            )
        raise ConfigurationError(
            (
                f"no model for a Tenstorrent mesh serves {wanted}; serve one of {', '.join(sorted(targets))}, "
                "or bring a bundle with EXTRA_MODELS_DIR",
            )
        )

    def _targets(self, test_models: bool) -> dict[str, str]:
        builtin = builtin_table(read_choices(self._environment), test_models) if self._device is Device.REAL else {}
        chosen = choose_registrations(self._bundles, builtin)
        for bundle in chosen.skipped:
            log.warning("model bundle %r skipped: %s", bundle.folder, bundle.reason)
        return dict(chosen.targets)


def load_class(target: str) -> Any:
    """Import ``module:Class``. Raises :class:`ConfigurationError` if there is no such module or class."""
    module, _, name = target.partition(":")
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            (f"model class {target} cannot be imported ({error}); install what it needs or name another model",)
        ) from error
    try:
        return getattr(loaded, name)
    except AttributeError as error:
        raise ConfigurationError((f"module {module} has no class {name}; correct the model's main_class",)) from error


def _register(architecture: str, target: str) -> None:
    module, _, name = target.partition(":")
    present = ModelRegistry.models.get(architecture)
    # vLLM warns about an architecture that is registered again, even as what it is.
    if present is not None and (getattr(present, "module_name", None), getattr(present, "class_name", None)) == (
        module,
        name,
    ):
        return
    ModelRegistry.register_model(architecture, target)
