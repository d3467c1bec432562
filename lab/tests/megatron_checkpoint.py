"""Checkpoints of Megatron for tests, written with the standard library: the files of torch.save and of torch.distributed.checkpoint
with the names, the pickles and the splits of NVIDIA's branch of Dynamic Memory Compression.
"""

import argparse
import collections
import contextlib
import io
import json
import pathlib
import pickle
import sys
import types
import zipfile

STORAGES = {"BF16": "BFloat16Storage", "F32": "FloatStorage", "F16": "HalfStorage", "I64": "LongStorage"}
ELEMENT_BYTES = {"BF16": 2, "F32": 4, "F16": 2, "I64": 8}
_DISTRIBUTED = "torch.distributed.checkpoint"


class Matrix:
    """Rows of the same number of bytes, as a list of them; `columns` is None for a vector."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape = dtype, tuple(shape)
        width = len(data) // shape[0]
        self.rows = [bytes(data[i : i + width]) for i in range(0, len(data), width)]

    def data(self):
        return b"".join(self.rows)

    def take(self, rows):
        rows = list(rows)
        return Matrix(self.dtype, (len(rows), *self.shape[1:]), b"".join(self.rows[r] for r in rows))

    def columns(self, begin, end):
        n = ELEMENT_BYTES[self.dtype]
        return Matrix(self.dtype, (self.shape[0], end - begin), b"".join(row[begin * n : end * n] for row in self.rows))


def stack(parts):
    return Matrix(parts[0].dtype, (sum(p.shape[0] for p in parts), *parts[0].shape[1:]), b"".join(p.data() for p in parts))


def as_f32(matrix):
    data = b"".join(b"\0\0" + matrix.data()[i : i + 2] for i in range(0, len(matrix.data()), 2))
    return Matrix("F32", matrix.shape, data)


def _made(module, name, base=(object,), **members):
    """A class that pickles as module.name."""
    return type(name, base, {"__module__": module, "__qualname__": name, **members})


class _Storage:
    def __init__(self, key, element_type, n_elements):
        self.key, self.element_type, self.n_elements = key, element_type, n_elements


_STORAGE_CLASSES = {name: _made("torch", name) for name in STORAGES.values()}


def _rebuild_tensor_v2():
    """Only its name is pickled."""


_rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
ModelType = _made("megatron.core.enums", "ModelType", __reduce__=lambda self: (type(self), (1,)), __init__=lambda self, *_: None)


class _TorchPickler(pickle.Pickler):
    """protocol 2, storages by their keys, as torch.save does it."""

    def __init__(self, file, storages):
        super().__init__(file, protocol=2)
        self._storages = storages

    def persistent_id(self, thing):
        if not isinstance(thing, _Storage):
            return None
        return ("storage", _STORAGE_CLASSES[thing.element_type], thing.key, "cpu", thing.n_elements)

    def reducer_override(self, thing):
        if not isinstance(thing, Matrix):
            return NotImplemented
        key = str(len(self._storages))
        self._storages.append(thing.data())
        stride = (thing.shape[1], 1) if len(thing.shape) == 2 else (1,)
        if len(thing.shape) == 3:
            stride = (thing.shape[1] * thing.shape[2], thing.shape[2], 1)
        storage = _Storage(key, STORAGES[thing.dtype], len(thing.data()) // ELEMENT_BYTES[thing.dtype])
        return _rebuild_tensor_v2, (storage, 0, thing.shape, stride, False, collections.OrderedDict())


@contextlib.contextmanager
def _modules(**names):
    """Modules of which pickle can see that they have the things that it writes by name."""
    for name in list(names):
        while "." in name:  # packages hold the modules
            name = name.rpartition(".")[0]
            names.setdefault(name, [])
    before = {name: sys.modules.get(name) for name in names}
    for name, things in names.items():
        module = types.ModuleType(name)
        for thing in things:
            setattr(module, thing.__qualname__, thing)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def torch_save(state):
    """The bytes that torch.save leaves."""
    file, storages = io.BytesIO(), []
    with _modules(**{"torch": _STORAGE_CLASSES.values(), "torch._utils": [_rebuild_tensor_v2], "megatron.core.enums": [ModelType]}):
        _TorchPickler(file, storages).dump(state)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", file.getvalue())
        for key, data in enumerate(storages):
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def arguments_of(config, n_tensor, n_pipeline, **changes):
    """What Megatron's args hold of a Llama model with DMC, and some of what else they hold."""
    values = {
        "num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"],
        "num_attention_heads": config["num_attention_heads"], "num_query_groups": config["num_key_value_heads"],
        "group_query_attention": True, "kv_channels": config["head_dim"], "ffn_hidden_size": config["intermediate_size"],
        "max_position_embeddings": config["max_position_embeddings"], "norm_epsilon": config["rms_norm_eps"], "rotary_base": 10000,
        "rotary_percent": 1.0, "rotary_interleaved": False, "position_embedding_type": "rope", "normalization": "RMSNorm",
        "swiglu": True, "add_bias_linear": False, "add_qkv_bias": False, "apply_layernorm_1p": False, "num_experts": None,
        "untie_embeddings_and_output_weights": not config["tie_word_embeddings"], "tensor_model_parallel_size": n_tensor,
        "pipeline_model_parallel_size": n_pipeline, "virtual_pipeline_model_parallel_size": None, "model_type": ModelType(),
        "dmc_init_val": 5, "dmc_window_size": 12, "dmc_temp": 0.1, "dmc_cr": 4.0, "dmc_finetune": True, "dmc_is_stage_one": False,
    }
    return argparse.Namespace(**(values | changes))


class CoreModel:
    """A model of Hugging Face's Llama family under the names and in the order of Megatron's core models."""

    def __init__(self, config, tensors):
        self.config = config
        self._tensors = {name: Matrix("BF16", shape, data) for name, (shape, data) in tensors.items()}
        self._padding = 64

    def convert_to(self, change):
        self._tensors = {name: change(matrix) for name, matrix in self._tensors.items()}

    def _padded(self, name):
        """With rows for tokens that do not exist."""
        rows = self._tensors[name]
        return stack([rows, rows.take([0] * self._padding)])

    def globals(self):
        """Tensors outside of the layers, on the first and on the last pipeline rank."""
        first = {"embedding.word_embeddings.weight": self._padded("model.embed_tokens.weight")}
        last = {"decoder.final_layernorm.weight": self._tensors["model.norm.weight"]}
        if not self.config["tie_word_embeddings"]:
            last["output_layer.weight"] = self._padded("lm_head.weight")
        return first, last

    def layer(self, index, n_tensor, is_local=False):
        """Each tensor of a layer as the list of what tensor-parallel ranks hold of it."""
        c, of = self.config, lambda name: self._tensors[f"model.layers.{index}.{name}.weight"]
        n_groups, d = c["num_key_value_heads"], c["head_dim"]
        m = c["num_attention_heads"] // n_groups
        groups = [stack([of("self_attn.q_proj").take(range(g * m * d, (g + 1) * m * d)),
                         of("self_attn.k_proj").take(range(g * d, (g + 1) * d)),
                         of("self_attn.v_proj").take(range(g * d, (g + 1) * d))]) for g in range(n_groups)]
        share = c["intermediate_size"] // n_tensor
        heads = c["num_attention_heads"] * d // n_tensor
        ranks = range(n_tensor)
        norms = ("input_layernorm.weight", "pre_mlp_layernorm.weight") if is_local else (
            "self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight")
        return {
            norms[0]: [of("input_layernorm")] * n_tensor,
            norms[1]: [of("post_attention_layernorm")] * n_tensor,
            "self_attention.linear_qkv.weight": [
                stack(groups[t * n_groups // n_tensor : (t + 1) * n_groups // n_tensor]) for t in ranks],
            "self_attention.linear_proj.weight": [of("self_attn.o_proj").columns(t * heads, (t + 1) * heads) for t in ranks],
            "mlp.linear_fc1.weight": [stack([of(f"mlp.{half}_proj").take(range(t * share, (t + 1) * share)) for half in ("gate", "up")])
                                      for t in ranks],
            "mlp.linear_fc2.weight": [of("mlp.down_proj").columns(t * share, (t + 1) * share) for t in ranks],
        }


def _rows_of_rank(matrix, t, n_tensor):
    share = matrix.shape[0] // n_tensor
    return matrix.take(range(t * share, (t + 1) * share))


def _shard(tensors, t, n_tensor):
    return {name: m if "layernorm" in name else _rows_of_rank(m, t, n_tensor) for name, m in tensors.items()}


def write_torch(folder, model, n_tensor, n_pipeline, iteration=250, is_local=False, **changes):
    """`--ckpt-format torch`. Returns the folder of the iteration."""
    folder = pathlib.Path(folder)
    place = folder / f"iter_{iteration:07d}"
    n_layers = model.config["num_hidden_layers"]
    first, last = model.globals()
    for p in range(n_pipeline):
        layers = [model.layer(layer, n_tensor, is_local) for layer in range(p * n_layers // n_pipeline, (p + 1) * n_layers // n_pipeline)]
        for t in range(n_tensor):
            weights = collections.OrderedDict(_shard(first, t, n_tensor) if p == 0 else {})
            for i, layer in enumerate(layers):
                weights |= {f"decoder.layers.{i}.{name}": ranks[t] for name, ranks in layer.items()}
                weights[f"decoder.layers.{i}.self_attention.linear_qkv._extra_state"] = io.BytesIO(b"state of fp8")
            weights |= _shard(last, t, n_tensor) if p == n_pipeline - 1 else {}
            rank = place / (f"mp_rank_{t:02d}_{p:03d}" if n_pipeline > 1 else f"mp_rank_{t:02d}")
            rank.mkdir(parents=True)
            (rank / "model_optim_rng.pt").write_bytes(torch_save({
                "args": arguments_of(model.config, n_tensor, n_pipeline, **changes), "checkpoint_version": 3.0, "iteration": iteration,
                "model": weights, "rng_state": [{"random": (3, (1, 2), None)}]}))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return place


_METADATA_CLASSES = {name: _made(f"{_DISTRIBUTED}.metadata", name) for name in (
    "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex", "BytesStorageMetadata")}
_METADATA_CLASSES["TensorProperties"].__getstate__ = lambda self: self.state
_STORAGE_INFO = _made(f"{_DISTRIBUTED}.filesystem", "_StorageInfo")
Size = _made("torch", "Size", (tuple,), __reduce__=lambda self: (Size, (tuple(self),)))


def _record(record_class, **fields):
    record = record_class()
    vars(record).update(fields)
    return record


class _ElementType:
    """torch.bfloat16 and its like, which pickle by name."""

    def __init__(self, name):
        self.__module__, self.__qualname__ = "torch", name

    def __reduce__(self):
        return self.__qualname__


_ELEMENT_TYPES = {"BF16": _ElementType("bfloat16"), "F16": _ElementType("float16"), "F32": _ElementType("float32")}


def _parts_of(model, n_tensor):
    """(name, whole shape, offsets, part) of all parts, as `--ckpt-format torch_dist` cuts them."""
    first, last = model.globals()
    for name, whole in (first | last).items():
        for t in range(1 if "layernorm" in name else n_tensor):
            part = whole if "layernorm" in name else _rows_of_rank(whole, t, n_tensor)
            yield name, whole.shape, (t * part.shape[0],) + (0,) * (len(whole.shape) - 1), part
    n_layers = model.config["num_hidden_layers"]
    for layer in range(n_layers):
        for name, ranks in model.layer(layer, n_tensor).items():
            stored, shape = f"decoder.layers.{name}", ranks[0].shape
            if len(shape) == 1:
                yield stored, (n_layers, *shape), (layer, 0), ranks[0]
                continue
            by_columns = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
            whole = (n_layers, shape[0], n_tensor * shape[1]) if by_columns else (n_layers, n_tensor * shape[0], shape[1])
            for t, part in enumerate(ranks):
                if name == "mlp.linear_fc1.weight":  # all gates before all of up
                    half = shape[0] // 2
                    for i in range(2):
                        yield stored, whole, (layer, (i * n_tensor + t) * half, 0), part.take(range(i * half, (i + 1) * half))
                else:
                    yield stored, whole, (layer, 0, t * shape[1]) if by_columns else (layer, t * shape[0], 0), part


def write_torch_dist(folder, model, n_tensor, iteration=250, **changes):
    """`--ckpt-format torch_dist`, two files of parts. Returns the folder of the iteration."""
    folder = pathlib.Path(folder)
    place = folder / f"iter_{iteration:07d}"
    place.mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    (place / "common.pt").write_bytes(torch_save({"args": arguments_of(model.config, n_tensor, 1, **changes), "checkpoint_version": 3.0}))
    files, tensors, places = [bytearray(), bytearray()], {}, {}
    for i, (name, shape, offsets, part) in enumerate(_parts_of(model, n_tensor)):
        part = Matrix(part.dtype, part.shape, part.data())
        if len(shape) > len(part.shape):
            part.shape = (1, *part.shape)
        data = torch_save(part)
        places[_record(_METADATA_CLASSES["MetadataIndex"], fqn=name, offset=Size(offsets), index=0)] = _record(
            _STORAGE_INFO, relative_path=f"__{i % 2}_0.distcp", offset=len(files[i % 2]), length=len(data))
        files[i % 2] += data
        properties = _METADATA_CLASSES["TensorProperties"]()
        properties.state = (_ELEMENT_TYPES[part.dtype], None, False, None, False)
        record = tensors.setdefault(name, _record(_METADATA_CLASSES["TensorStorageMetadata"], properties=properties, size=Size(shape),
                                                  chunks=[]))
        record.chunks.append(_record(_METADATA_CLASSES["ChunkStorageMetadata"], offsets=Size(offsets), sizes=Size(part.shape)))
    tensors["decoder.layers.mlp.linear_fc1._extra_state/shard_0_2"] = _METADATA_CLASSES["BytesStorageMetadata"]()
    for i, data in enumerate(files):
        (place / f"__{i}_0.distcp").write_bytes(data)
    metadata = _record(_METADATA_CLASSES["Metadata"], state_dict_metadata=tensors, planner_data=None, storage_data=places)
    with _modules(**{"torch": [Size, *_ELEMENT_TYPES.values()], f"{_DISTRIBUTED}.metadata": _METADATA_CLASSES.values(),
                     f"{_DISTRIBUTED}.filesystem": [_STORAGE_INFO]}):
        (place / ".metadata").write_bytes(pickle.dumps(metadata))
    return place
