"""kvlathe in LMCache: vLLM's users keep prefixes at rest in a fraction of their bytes.

Importing this module makes `kvlathe` a name of a serde in LMCache 0.5.6: in its own registry of the multiprocess
server (`"serde": {"type": "kvlathe", ...}` of an L2 adapter), and as `remote_serde: "kvlathe"` of the engine inside
vLLM. Both can be had from a configuration alone, without a line of Python: docs/python/lmcache.md has them whole.
"""

# mypy: disallow-subclassing-any=False
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvlathe.chunks import ChunkCodec
from kvlathe.errors import InvalidArgumentError, KvlatheError

try:
    import torch
    from lmcache.v1.distributed.l2_adapters import L2AdapterInterface, create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
    from lmcache.v1.distributed.serde import (
        AsyncSerdeProcessor,
        Deserializer,
        SerdeProcessor,
        Serializer,
        get_registered_serde_types,
        register_serde_factory,
    )
    from lmcache.v1.memory_management import (
        BytesBufferMemoryObj,
        MemoryFormat,
        MemoryObj,
        MemoryObjMetadata,
        TensorMemoryObj,
    )
    from lmcache.v1.storage_backend import naive_serde, remote_backend
    from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext, ConnectorManager
    from lmcache.v1.storage_backend.naive_serde.serde import Deserializer as EngineDeserializer
    from lmcache.v1.storage_backend.naive_serde.serde import Serializer as EngineSerializer
except ImportError as error:
    raise ImportError(
        f"kvlathe.lmcache is a guest of LMCache, which is not there whole ({error}): pip install lmcache==0.5.6"
    ) from error

if TYPE_CHECKING:
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.metadata import LMCacheMetadata

__all__ = ["ChunkDeserializer", "ChunkSerializer", "L2Adapter", "RemoteAdapter", "create_serde", "register"]

_NAME = "kvlathe"
_SETTINGS = ("kv", "model", "basis", "chunk_tokens", "whole", "n_threads")
_log = logging.getLogger(__name__)


def _numbers(tensor: torch.Tensor) -> Any:
    """A tensor on any device and of any float type as an array of float32."""
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()


def _as_chunk(tensor: torch.Tensor) -> torch.Tensor:
    """[2, layers, tokens, channels] of what LMCache has: a chunk of all layers, or of one layer ([2, tokens, channels]
    or [tokens, 2, channels])."""
    if tensor.ndim == 4 and tensor.shape[0] == 2:
        return tensor
    if tensor.ndim == 3 and tensor.shape[0] == 2:
        return tensor.unsqueeze(1)
    if tensor.ndim == 3 and tensor.shape[1] == 2:
        return tensor.transpose(0, 1).unsqueeze(1)
    raise InvalidArgumentError(
        f"LMCache gives a tensor of the shape {list(tensor.shape)}, but kvlathe keeps keys and values: "
        "[2, layers, tokens, channels], or [2, tokens, channels] or [tokens, 2, channels] of one layer "
        "(latent attention such as DeepSeek's has another form and is not taken)"
    )


# The multiprocess server (lmcache.v1.distributed).


class ChunkSerializer(Serializer):
    """Packs one chunk into the buffer that LMCache gives it."""

    def __init__(self, codec: ChunkCodec) -> None:
        self._codec = codec

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        chunk, buffer = src.tensor, dst.tensor
        if chunk is None or buffer is None:
            raise InvalidArgumentError("kvlathe's serde packs tensors into tensors, and LMCache gave an object without")
        data = self._codec.pack(_numbers(_as_chunk(chunk)))
        flat = buffer.flatten()
        if len(data) > flat.numel():
            raise InvalidArgumentError(f"a chunk takes {len(data)} bytes packed, but its buffer has {flat.numel()}")
        flat[: len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return len(data)

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        """The bytes of a chunk, exactly: LMCache's adapters read back as many as this says."""
        if len(layout_desc.shapes) != 1:
            raise InvalidArgumentError(
                f"a chunk has {len(layout_desc.shapes)} groups of layers, but kvlathe takes chunks of one"
            )
        _, n_layers, n_tokens, n_channels = _as_chunk(torch.empty(layout_desc.shapes[0], device="meta")).shape
        return self._codec.packed_size(n_layers, n_tokens, n_channels)


class ChunkDeserializer(Deserializer):
    """Unpacks a chunk into the tensor that LMCache gives it."""

    def __init__(self, codec: ChunkCodec) -> None:
        self._codec = codec

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        tensor = dst.tensor
        if tensor is None:
            raise InvalidArgumentError("kvlathe's serde unpacks into a tensor, and LMCache gave an object without")
        room = _as_chunk(tensor)
        rows = torch.from_numpy(self._codec.unpack(src.byte_array))
        if rows.shape != room.shape:
            raise InvalidArgumentError(
                f"the bytes are a chunk of the shape {list(rows.shape)}, but LMCache expects {list(room.shape)}"
            )
        room.copy_(rows)


def create_serde(settings: Mapping[str, object]) -> SerdeProcessor:
    """Of what stands in "serde": kv, model, basis, chunk_tokens, n_threads, and LMCache's max_workers."""
    if "model" not in settings:
        raise InvalidArgumentError(
            "the serde kvlathe has no \"model\", which names the model's config.json or its folder"
        )
    settings = dict(settings)
    max_workers = _number(settings, "max_workers", 1)
    settings.pop("max_workers", None)
    codec = _codec_of(settings, settings["model"], chunk_tokens=256)
    return AsyncSerdeProcessor(ChunkSerializer(codec), ChunkDeserializer(codec), max_workers=max_workers)


def _codec_of(settings: Mapping[str, object], model: Any, *, chunk_tokens: int) -> ChunkCodec:
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise InvalidArgumentError(
            f"the serde kvlathe does not know {', '.join(unknown)}; it takes {', '.join(_SETTINGS)}"
        )
    if "kv" not in settings:
        raise InvalidArgumentError('the serde kvlathe has no "kv", which says how a chunk is kept')
    basis = settings.get("basis")
    codec = ChunkCodec(
        str(settings["kv"]),
        model,
        basis=None if basis is None else str(basis),
        chunk_tokens=_number(settings, "chunk_tokens", chunk_tokens),
        whole=_number(settings, "whole", 4, least=0),
        n_threads=None if settings.get("n_threads") is None else _number(settings, "n_threads", 1),
    )
    _log.info("kvlathe keeps chunks of %d tokens by %s", codec.chunk_tokens, codec.spec)
    return codec


def _number(settings: Mapping[str, object], name: str, default: int, least: int = 1) -> int:
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgumentError(f"the setting {name} of kvlathe is {value!r}, but has to be an integer from {least} on")
    return value


class L2Adapter(L2AdapterInterface):
    """The plugin by which the configuration of an L2 adapter names this module, so that LMCache imports it before it
    looks for the serde. What it makes is the adapter that `adapter_params["adapter"]` describes."""

    def __new__(cls, adapter_params: Mapping[str, Any], l1_memory_desc: Any = None) -> Any:
        described = adapter_params.get("adapter")
        if not isinstance(described, dict) or not isinstance(described.get("type"), str):
            raise InvalidArgumentError(
                "adapter_params of kvlathe's L2Adapter have to say what keeps the bytes, such as "
                '{"adapter": {"type": "fs", "base_path": "/cache"}}'
            )
        config = get_l2_adapter_config_class(described["type"]).from_dict(described)
        return create_l2_adapter(config, l1_memory_desc)


# The engine inside vLLM (lmcache.v1.storage_backend).


class _EngineSerializer(EngineSerializer):
    def __init__(self, codec: ChunkCodec) -> None:
        self._codec = codec

    def serialize(self, memory_obj: MemoryObj) -> BytesBufferMemoryObj:
        tensor = memory_obj.tensor
        if tensor is None:
            raise InvalidArgumentError("kvlathe's serde packs tensors, and LMCache gave an object without one")
        return BytesBufferMemoryObj(bytearray(self._codec.pack(_numbers(_as_chunk(tensor)))))


class _EngineDeserializer(EngineDeserializer):
    def __init__(self, codec: ChunkCodec, dtype: torch.dtype, form: MemoryFormat) -> None:
        self._codec = codec
        self._dtype = dtype
        self._form = form

    def deserialize(self, memory_obj: MemoryObj) -> MemoryObj | None:
        """The chunk, or None, which LMCache takes for a chunk that is not there, where the bytes are damaged or of
        another cache."""
        try:
            rows = torch.from_numpy(self._codec.unpack(memory_obj.byte_array))
        except KvlatheError as error:
            _log.warning("a chunk is not read: %s", error)
            return None
        finally:
            memory_obj.ref_count_down()
        if self._form == MemoryFormat.KV_2TD:
            rows = rows[:, 0]
        elif self._form == MemoryFormat.KV_T2D:
            rows = rows[:, 0].transpose(0, 1)
        # Kernels of a GPU read the host's memory by its address, so it is pinned where there is one.
        room = torch.empty(rows.shape, dtype=self._dtype, pin_memory=torch.cuda.is_available())
        room.copy_(rows)
        return TensorMemoryObj(
            raw_data=room.flatten().view(torch.uint8),
            metadata=MemoryObjMetadata(
                shape=room.shape,
                dtype=room.dtype,
                address=0,
                phy_size=room.numel() * room.element_size(),
                ref_count=1,
                fmt=self._form,
                shapes=[room.shape],
                dtypes=[room.dtype],
            ),
            parent_allocator=None,
        )


def _create_engine_serde(
    serde_type: str, metadata: LMCacheMetadata, config: LMCacheEngineConfig
) -> tuple[EngineSerializer, EngineDeserializer]:
    """LMCache's CreateSerde, which knows three names and has no registry, and one name more."""
    if serde_type != _NAME:
        made: tuple[EngineSerializer, EngineDeserializer] = _lmcache_create_serde(serde_type, metadata, config)
        return made
    settings = {
        key.removeprefix("kvlathe."): value
        for key, value in (config.extra_config or {}).items()
        if key.startswith("kvlathe.") and key != "kvlathe.remote_url"
    }
    if metadata.use_mla:
        raise InvalidArgumentError("kvlathe keeps keys and values; latent attention (MLA) has one row for both")
    if not (config.extra_config or {}).get("save_chunk_meta", True):
        raise InvalidArgumentError("save_chunk_meta has to stay on: without it LMCache reads back chunks of one size")
    codec = _codec_of(settings, _engine_shape(settings, metadata), chunk_tokens=metadata.chunk_size)
    if not config.use_layerwise:
        form = MemoryFormat.KV_2LTD
    else:
        form = MemoryFormat.KV_2TD if config.enable_blending else MemoryFormat.KV_T2D
    return _EngineSerializer(codec), _EngineDeserializer(codec, metadata.kv_dtype, form)


def _engine_shape(settings: Mapping[str, object], metadata: LMCacheMetadata) -> Any:
    """The model's configuration where the settings have one, and what LMCache knows of it otherwise, which is enough
    for a method without a basis."""
    if "model" in settings:
        return settings["model"]
    from kvlathe.codec import Shape

    n_layers, _, _, n_kv_heads, head_dim = metadata.kv_shape
    return Shape(
        n_layers=n_layers,
        n_heads=n_kv_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        max_positions=metadata.chunk_size,
    )


class RemoteAdapter(ConnectorAdapter):
    """The plugin by which `remote_storage_plugins` names this module, so that LMCache imports it before it looks for
    the serde. What it connects to is `extra_config["kvlathe.remote_url"]`."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{_NAME}")

    def create_connector(self, context: ConnectorContext) -> Any:
        url = (getattr(context.config, "extra_config", None) or {}).get("kvlathe.remote_url")
        if not isinstance(url, str) or "://" not in url or url.startswith(self.schema):
            raise InvalidArgumentError(
                'extra_config has to say where chunks are kept: "kvlathe.remote_url", such as "fs://host:0/cache"'
            )
        manager = ConnectorManager(url, context.loop, context.local_cpu_backend, context.config, context.metadata)
        return manager.create_connector()


_lmcache_create_serde = naive_serde.CreateSerde


def register() -> None:
    """Makes the name known. Importing the module has done so; a second call changes nothing."""
    if _NAME not in get_registered_serde_types():
        register_serde_factory(_NAME, create_serde)
    # Each module that makes a serde by name has taken the function into its own.
    for module in (naive_serde, remote_backend):
        module.CreateSerde = _create_engine_serde


register()
