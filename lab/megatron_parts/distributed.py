"""Checkpoints of torch.distributed.checkpoint, as Megatron's `--ckpt-format torch_dist` writes them."""

import collections
import io
import pathlib
import pickle
import re

from megatron_parts.tensors import Rows, Whole
from megatron_parts.torch_file import ELEMENT_BYTES, CheckpointError, TorchFile, read_pickle

_ELEMENT_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_LAYER = re.compile(r"(decoder\.layers\.)(\d+)\.(.+)")


class _Record:
    """A record of the metadata: its fields are attributes."""

    def __init__(self, *_values):
        self.state = ()

    def __setstate__(self, state):
        if isinstance(state, dict):
            vars(self).update(state)
        else:
            self.state = state


class _MetadataUnpickler(pickle.Unpickler):
    def __init__(self, file, name):
        super().__init__(file)
        self._name = name

    def find_class(self, module, name):
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module.startswith(("torch.distributed.", "megatron.")):
            return type(name, (_Record,), {})
        if module.split(".")[0] in ("torch", "pathlib"):
            return _Name(name)
        if name == "getattr" and module in ("builtins", "__builtin__"):
            return self._value_of_enumeration
        raise CheckpointError(f"{self._name} names {module}.{name}, which no checkpoint of Megatron needs; "
                              "the file may have been made to run code, so it is not read (nothing of it was run)")

    def _value_of_enumeration(self, thing, name):
        """Python 3.11.0 to 3.11.3 pickles it as getattr(class, name)."""
        if isinstance(thing, type) and issubclass(thing, _Record):
            return _Name(name)
        raise CheckpointError(f"{self._name} has getattr called on something else than a record of torch, so it is not read")


class _Name:
    """A name of torch, such as that of an element type, or of a path. Called, it stays what it is."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *_arguments):
        return self


def _field(record, name, path):
    value = getattr(record, name, None)
    if value is None:
        raise CheckpointError(f"{path} is no metadata of a distributed checkpoint: a record of it lacks {name}")
    return value


class DistributedState:
    """Tensors that lie in parts in *.distcp. The metadata says where."""

    def __init__(self, place):
        self._place = pathlib.Path(place)
        path = self._place / ".metadata"
        metadata = read_pickle(_MetadataUnpickler(io.BytesIO(path.read_bytes()), str(path)), str(path))
        self._tensors = {}  # name -> (element type, shape, [(offsets, sizes)])
        for name, record in _field(metadata, "state_dict_metadata", path).items():
            if not hasattr(record, "chunks") or name.startswith("optimizer"):
                continue
            properties = _field(record, "properties", path)
            dtype = properties.state[0] if properties.state else _field(properties, "dtype", path)
            chunks = [(_field(c, "offsets", path), _field(c, "sizes", path)) for c in record.chunks]
            self._tensors[name] = (_ELEMENT_TYPES.get(getattr(dtype, "name", "")), _field(record, "size", path), chunks)
        self._places = {}  # (name, offsets) -> record of where
        for index, place_record in _field(metadata, "storage_data", path).items():
            offsets = getattr(index, "offset", None)
            if offsets is not None:
                self._places[index.fqn, tuple(offsets)] = place_record

    def names(self):
        """Those of a model that is not split: a name for each layer."""
        names = set()
        for name, (_, shape, _) in self._tensors.items():
            match = re.fullmatch(r"(decoder\.layers\.)(?!\d)(.+)", name)
            names |= {f"{match[1]}{layer}.{match[2]}" for layer in range(shape[0])} if match else {name}
        return names

    def whole(self, name, _split):
        match = None if name in self._tensors else _LAYER.fullmatch(name)
        stored, layer = (match[1] + match[3], int(match[2])) if match else (name, None)
        dtype, shape, _ = self._tensors[stored]
        if dtype is None:
            raise CheckpointError(f"{self._place}: {stored} is no tensor of BF16, F16 or F32")
        return Whole(shape[1:] if match else shape, lambda: self._read(stored, layer))

    def _read(self, name, layer):
        dtype, shape, chunks = self._tensors[name]
        n_bytes = ELEMENT_BYTES[dtype]
        n_rows, n_columns = (*shape[0 if layer is None else 1 :], 1)[:2]
        data, n_filled = bytearray(n_rows * n_columns * n_bytes), 0
        for offsets, sizes in chunks:
            if layer is not None:
                if offsets[0] != layer or sizes[0] != 1:
                    continue
            part = self._part(name, offsets, sizes)
            row, column = (*offsets[0 if layer is None else 1 :], 0)[:2]
            height, width = (*sizes[0 if layer is None else 1 :], 1)[:2]
            for r in range(height):
                begin = ((row + r) * n_columns + column) * n_bytes
                data[begin : begin + width * n_bytes] = part[r * width * n_bytes : (r + 1) * width * n_bytes]
            n_filled += height * width
        where = name if layer is None else f"{name} of layer {layer}"
        if len(data) != n_rows * n_columns * n_bytes or n_filled != n_rows * n_columns:
            raise CheckpointError(f"{self._place}: the parts of {where} do not make up its shape {list(shape)}")
        return Rows(dtype, shape[0 if layer is None else 1 :], data)

    def _part(self, name, offsets, sizes):
        record = self._places.get((name, tuple(offsets)))
        if record is None:
            raise CheckpointError(f"{self._place}/.metadata does not say where the part of {name} at {list(offsets)} lies")
        path = self._place / record.relative_path
        if pathlib.PurePath(record.relative_path).name != record.relative_path or not path.is_file():
            raise CheckpointError(f"{path} is missing")
        tensor = TorchFile(path, record.offset, record.length).load()
        if tuple(getattr(tensor, "shape", ())) != tuple(sizes):
            raise CheckpointError(f"{path}: the part of {name} at {list(offsets)} does not have the shape {list(sizes)}")
        return tensor.data()
