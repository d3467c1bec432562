"""What methods ask of a model's weights."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from kvlathe.codec import Shape, WeightGrams


def _attention_modules(model: PreTrainedModel) -> dict[int, torch.nn.Module]:
    return {
        module.layer_idx: module
        for module in model.modules()
        if isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "o_proj")
    }


def _projection(linear: torch.nn.Module, n_out: int) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Weights [n_out, inputs] and biases in float64 on the CPU; None where they are not those of a plain product."""
    if not isinstance(linear, torch.nn.Linear) or linear.weight.is_meta or not linear.weight.is_floating_point():
        return None
    if linear.weight.shape[0] != n_out:
        return None
    bias = None if linear.bias is None else linear.bias.detach().to("cpu", torch.float64)
    return linear.weight.detach().to("cpu", torch.float64), bias


class _Layer:
    """The products of one layer."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor):
        self.key, self.value, self.output = key, value, output  # weights [outputs, inputs]
        self.key_bias: torch.Tensor | None = None
        self.value_bias: torch.Tensor | None = None


def _layer_of(module: torch.nn.Module, shape: Shape) -> _Layer | None:
    n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    output = _projection(module.o_proj, module.o_proj.weight.shape[0]) if hasattr(module.o_proj, "weight") else None
    if output is None or output[0].shape[1] != n_q:
        return None
    if hasattr(module, "qkv_proj"):
        joined = _projection(module.qkv_proj, n_q + 2 * n_kv)
        if joined is None:
            return None
        layer = _Layer(joined[0][n_q : n_q + n_kv], joined[0][n_q + n_kv :], output[0])
        if joined[1] is not None:
            layer.key_bias, layer.value_bias = joined[1][n_q : n_q + n_kv], joined[1][n_q + n_kv :]
    else:
        key, value = (_projection(getattr(module, name, None), n_kv) for name in ("k_proj", "v_proj"))
        if key is None or value is None:
            return None
        layer = _Layer(key[0], value[0], output[0])
        layer.key_bias, layer.value_bias = key[1], value[1]
    norm = getattr(module, "k_norm", None)
    if norm is not None:
        # Of a row whose mean square is 1 the norm makes its own weights, however it stores them.
        ones = torch.ones(shape.head_dim, dtype=norm.weight.dtype, device=norm.weight.device)
        weights = norm(ones).detach().to("cpu", torch.float64)
        layer.key = layer.key * weights.repeat(shape.n_kv_heads).unsqueeze(-1)
        layer.key_bias = None
    return layer


def _grams(weights: torch.Tensor, n_heads: int) -> torch.Tensor:
    heads = weights.reshape(n_heads, -1, weights.shape[-1])
    return heads @ heads.transpose(1, 2)


def _biases(biases: list[torch.Tensor | None], shape: Shape) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
    if any(bias is None for bias in biases):
        return None
    rows = torch.stack([bias for bias in biases if bias is not None])
    return rows.reshape(shape.n_layers, shape.n_kv_heads, shape.head_dim).float().numpy()  # type: ignore[no-any-return]


def _key_bias(module: torch.nn.Module, shape: Shape) -> torch.Tensor | None:
    """None where keys have none, or are normalised behind it."""
    n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    if getattr(module, "k_norm", None) is not None:
        return None
    is_joined = hasattr(module, "qkv_proj")
    bias = getattr(module.qkv_proj if is_joined else getattr(module, "k_proj", None), "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.is_meta or bias.shape != ((n_q + 2 * n_kv,) if is_joined else (n_kv,)):
        return None
    return (bias[n_q : n_q + n_kv] if is_joined else bias).detach().to("cpu", torch.float64)


def key_biases_of(model: PreTrainedModel, shape: Shape) -> WeightGrams | None:
    """The biases of keys alone, without work on weights; None where there are none."""
    modules = _attention_modules(model)
    if sorted(modules) != list(range(shape.n_layers)):
        return None
    biases = _biases([_key_bias(modules[index], shape) for index in range(shape.n_layers)], shape)
    return None if biases is None else WeightGrams(key_biases=biases)


@torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
def weight_grams_of(model: PreTrainedModel, shape: Shape) -> WeightGrams | None:
    """Of a model whose attention has plain matrices; None where it has others, such as quantized ones."""
    modules = _attention_modules(model)
    if sorted(modules) != list(range(shape.n_layers)):
        return None
    keys, values, outputs = [], [], []
    key_biases: list[torch.Tensor | None] = []
    value_biases: list[torch.Tensor | None] = []
    for index in range(shape.n_layers):
        layer = _layer_of(modules[index], shape)
        if layer is None:
            return None
        keys.append(_grams(layer.key, shape.n_kv_heads))
        values.append(_grams(layer.value, shape.n_kv_heads))
        by_head = _grams(layer.output.T.contiguous(), shape.n_heads)
        outputs.append(by_head.reshape(shape.n_kv_heads, -1, *by_head.shape[1:]).sum(1))
        key_biases.append(layer.key_bias)
        value_biases.append(layer.value_bias)
    return WeightGrams(
        key_grams=torch.stack(keys).numpy(),
        value_grams=torch.stack(values).numpy(),
        output_grams=torch.stack(outputs).numpy(),
        key_biases=_biases(key_biases, shape),
        value_biases=_biases(value_biases, shape),
    )
