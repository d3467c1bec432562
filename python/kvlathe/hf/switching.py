"""Has a model use an attention function for as long as it runs on a cache of ours."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from kvlathe.errors import UnsupportedError
from kvlathe.hf.attention import ATTENTION


def text_config_of(model_or_config: PreTrainedModel | PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the part of a model that writes text."""
    config = getattr(model_or_config, "config", model_or_config)
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(f"a model of transformers or its config is needed, not {type(model_or_config).__name__}")
    return config.get_text_config(decoder=True)


def _modules_of_text(model: PreTrainedModel) -> list[PreTrainedModel]:
    text = text_config_of(model)
    return [
        module
        for module in model.modules()
        if isinstance(module, PreTrainedModel) and module.config.get_text_config(decoder=True) is text
    ]


def attention_configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """What decides which attention the text part of a model has."""
    if not model._can_set_attn_implementation():
        raise UnsupportedError(
            f"{type(model).__name__} does not choose its attention by transformers' AttentionInterface, so kvlathe's "
            "cannot take its place"
        )
    configs: list[PreTrainedConfig] = []
    for module in _modules_of_text(model):
        if all(module.config is not config for config in configs):
            configs.append(module.config)
    return configs


@contextlib.contextmanager
def attention_set(configs: list[PreTrainedConfig], name: str) -> Iterator[None]:
    """The attention implementation of `configs` is `name` within it."""
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(configs, before):
            config._attn_implementation_internal = implementation


def _positions_behind_padding(kwargs: dict[str, Any], n_past: int) -> torch.Tensor | None:
    mask = kwargs.get("attention_mask")
    if kwargs.get("position_ids") is not None or not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return None
    if bool(mask.all()):
        return None
    return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, n_past:]


class ModelSwitch:
    """Has one model use `kvlathe` in every forward that is given a cache of this switch, and in no other.

    It is hooks around the forwards of the model and of the models in it. They also give a padded
    batch that says no positions those behind its padding.
    """

    def __init__(self, model: PreTrainedModel):
        self._configs = attention_configs(model)
        self._inside: list[torch.nn.Module] = []  # forwards that are running
        self._set: contextlib.AbstractContextManager[None] | None = None
        self._handles: list[Any] = []
        self._n_caches = 0
        self._modules = [weakref.ref(module) for module in _modules_of_text(model)]

    def hold(self, cache: Cache) -> None:
        """Hooks stay on the model while a cache lives."""
        if self._n_caches == 0:
            for reference in self._modules:
                module = reference()
                if module is not None:
                    self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                    self._handles.append(module.register_forward_hook(self._after, with_kwargs=True, always_call=True))
        self._n_caches += 1
        weakref.finalize(cache, self._let_go)

    def _let_go(self) -> None:
        self._n_caches -= 1
        if self._n_caches > 0:
            return
        self._leave_down_to(0)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _cache_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Cache | None:
        for argument in (*kwargs.values(), *args):
            if isinstance(argument, Cache) and getattr(argument, "switch", None) is self:
                return argument
        return None

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A forward that was interrupted (Ctrl-C) has not been left: no forward runs within itself.
        if module in self._inside:
            self._leave_down_to(self._inside.index(module))
        cache = self._cache_of(args, kwargs)
        if cache is None:
            return None
        if not self._inside:
            self._set = attention_set(self._configs, ATTENTION)
            self._set.__enter__()
        self._inside.append(module)
        positions = _positions_behind_padding(kwargs, cache.get_seq_length())
        return None if positions is None else (args, {**kwargs, "position_ids": positions})

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        if module in self._inside:
            self._leave_down_to(self._inside.index(module))

    def _leave_down_to(self, depth: int) -> None:
        del self._inside[depth:]
        if not self._inside and self._set is not None:
            self._set.__exit__(None, None, None)
            self._set = None


_switches: weakref.WeakKeyDictionary[PreTrainedModel, ModelSwitch] = weakref.WeakKeyDictionary()


def switch_of(model: PreTrainedModel) -> ModelSwitch:
    """The one switch of a model."""
    switch = _switches.get(model)
    if switch is None:
        switch = _switches[model] = ModelSwitch(model)
    return switch
