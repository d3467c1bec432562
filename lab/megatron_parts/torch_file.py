"""Files of torch.save, read with the standard library and without running anything that they name.

A file is a zip archive without compression: `data.pkl`, a pickle of the objects, and the bytes of each storage in a member of its own.
A pickle can name any function and have it called. Here it gets containers, tensors and names of types from a list; what belongs to
Megatron, torch and NumPy and is not needed becomes an object that holds nothing; anything else that a pickle names is an error.
"""

import argparse
import collections
import io
import mmap
import pickle
import zipfile
import zlib


class CheckpointError(Exception):
    """What is wrong with a checkpoint, in one sentence for the user."""


# What safetensors calls the element types, and their bytes.
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "BOOL": 1}
STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64", "ByteStorage": "U8",
            "CharStorage": "I8", "ShortStorage": "I16", "IntStorage": "I32", "LongStorage": "I64", "BoolStorage": "BOOL"}

# Packages whose objects a checkpoint holds beside the weights. They are not imported: their objects become Unread.
UNREAD_PACKAGES = {"megatron", "torch", "numpy", "transformer_engine", "apex", "modelopt"}
UNREAD_NAMES = {("_io", "BytesIO"), ("_codecs", "encode"), ("signal", "Signals"), ("enum", "Enum"), ("pathlib", "PosixPath"),
                ("pathlib", "PurePosixPath")}


class Unread:
    """In place of an object of a class that the converter does not need. It takes what the pickle gives it and keeps nothing."""

    def __new__(cls, *_arguments, **_named):
        return object.__new__(cls)

    def __init__(self, *_arguments, **_named):
        pass

    def __setstate__(self, _state):
        pass

    def __setitem__(self, _key, _value):
        pass

    def append(self, _value):
        pass

    def extend(self, _values):
        pass


class Tensor:
    """A tensor of a file, whose bytes are read when they are asked for."""

    def __init__(self, archive, storage, offset, shape, stride):
        self._archive, self._storage, self._offset = archive, storage, offset
        self.dtype, self.shape = storage[0], tuple(shape)
        self._stride = tuple(stride)

    def element_bytes(self):
        return ELEMENT_BYTES[self.dtype]

    def data(self):
        """The bytes, row after row."""
        n_elements = 1
        for n, stride in zip(reversed(self.shape), reversed(self._stride)):
            if n > 1 and stride != n_elements:
                raise CheckpointError(f"{self._archive.name}: a tensor of shape {list(self.shape)} does not lie row after row")
            n_elements *= n
        begin, size = self._offset * self.element_bytes(), n_elements * self.element_bytes()
        data = self._archive.storage(self._storage[1])[begin : begin + size]
        if len(data) != size:
            raise CheckpointError(f"{self._archive.name}: a tensor of shape {list(self.shape)} is longer than its storage")
        return data


class _Window(io.RawIOBase):
    """Bytes in memory as a file, which zipfile reads from without copying the whole."""

    def __init__(self, view):
        super().__init__()
        self._view, self._at = view, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._view)}[whence])
        return self._at

    def tell(self):
        return self._at

    def readinto(self, buffer):
        data = self._view[self._at : self._at + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive, file):
        super().__init__(file)
        self._archive = archive

    def find_class(self, module, name):
        if name == "getattr" and module in ("builtins", "__builtin__"):
            return self._attribute_of_unread
        known = {("collections", "OrderedDict"): collections.OrderedDict, ("argparse", "Namespace"): argparse.Namespace,
                 ("builtins", "set"): set, ("__builtin__", "set"): set, ("torch", "Size"): tuple,
                 ("torch._utils", "_rebuild_tensor_v2"): self._rebuild_tensor,
                 ("torch._utils", "_rebuild_parameter"): lambda data, *_: data}
        if (module, name) in known:
            return known[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if module.split(".")[0] in UNREAD_PACKAGES or (module, name) in UNREAD_NAMES:
            return type(name, (Unread,), {})
        raise CheckpointError(f"{self._archive.name} names {module}.{name}, which no checkpoint of Megatron needs; "
                              "the file may have been made to run code, so it is not read (nothing of it was run)")

    def persistent_load(self, pid):
        kind, element_type, key, *_ = pid
        if kind != "storage" or not isinstance(element_type, str):
            raise CheckpointError(f"{self._archive.name}: storages of a kind that is not known")
        return element_type, key

    def _attribute_of_unread(self, thing, _name):
        """Python 3.11.0 to 3.11.3 pickles a value of an enumeration as getattr(class, name)."""
        if isinstance(thing, type) and issubclass(thing, Unread):
            return thing()
        raise CheckpointError(f"{self._archive.name} has getattr called on something else than a class of Megatron, so it is not read")

    def _rebuild_tensor(self, storage, offset, shape, stride, *_):
        return Tensor(self._archive, storage, offset, shape, stride)


class TorchFile:
    """One archive of torch.save: a file, or the part of a file that `offset` and `size` give."""

    def __init__(self, path, offset=0, size=None):
        self.name = str(path)
        with open(path, "rb") as file:
            file.seek(0, io.SEEK_END)
            if file.tell() == 0:
                raise CheckpointError(f"{self.name} is empty")
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._view = whole[offset:] if size is None else whole[offset : offset + size]
        try:
            self._members = {m.filename.split("/", 1)[-1]: m for m in zipfile.ZipFile(_Window(self._view)).infolist()}
        except zipfile.BadZipFile as error:
            raise CheckpointError(f"{self.name} is not a whole file of torch.save (from torch 1.6 on): {error}") from None
        if "data.pkl" not in self._members:
            raise CheckpointError(f"{self.name} is an archive, but not one of torch.save: it has no data.pkl")
        if "byteorder" in self._members and bytes(self._member("byteorder")) != b"little":
            raise CheckpointError(f"{self.name} was written by a big-endian machine")

    def _member(self, name):
        member = self._members.get(name)
        if member is None:
            raise CheckpointError(f"{self.name} is damaged: it lacks {name}")
        header = bytes(self._view[member.header_offset : member.header_offset + 30])
        begin = member.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        data = self._view[begin : begin + member.file_size]
        if member.compress_type != zipfile.ZIP_STORED or len(data) != member.file_size or zlib.crc32(data) != member.CRC:
            raise CheckpointError(f"{self.name} is damaged: the checksum of {name} does not fit")
        return data

    def storage(self, key):
        return self._member(f"data/{key}")

    def load(self):
        """The objects of the file; tensors are Tensor."""
        return read_pickle(_Unpickler(self, io.BytesIO(self._member("data.pkl"))), self.name)


def read_pickle(unpickler, name):
    try:
        return unpickler.load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise CheckpointError(f"{name} is damaged: its pickle cannot be read ({error})") from None
