"""What a converted model needs of its tokenizer: how many tokens there are, and which begin and end a text."""

import json
import pathlib
import shutil

from megatron_parts.torch_file import CheckpointError

_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


class Vocabulary:
    def __init__(self, ids, begin="<s>", end="</s>"):
        self.size = max(ids.values()) + 1
        self.bos, self.eos = ids.get(begin), ids.get(end)


def read_vocabulary(place):
    """Of a directory, or of a file tokenizer.model (SentencePiece) or tokenizer.json (Hugging Face)."""
    place = pathlib.Path(place)
    files = [place] if place.is_file() else [place / name for name in ("tokenizer.model", "tokenizer.json")]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise CheckpointError(f"{place} is no tokenizer: neither a file nor a directory with tokenizer.model or tokenizer.json")
    try:
        ids = _ids_of_json(file) if file.suffix == ".json" else _ids_of_pieces(file)
        names = _names(place / "tokenizer_config.json") if place.is_dir() else {}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{file} is no tokenizer that is understood: {error}") from None
    if not ids:
        raise CheckpointError(f"{file} has no tokens")
    return Vocabulary(ids, **names)


def copy_tokenizer(place, out):
    place = pathlib.Path(place)
    if place.is_file():
        shutil.copyfile(place, out / ("tokenizer.json" if place.suffix == ".json" else "tokenizer.model"))
        return
    for name in _FILES:
        if (place / name).is_file():
            shutil.copyfile(place / name, out / name)


def _names(path):
    config = json.loads(path.read_text()) if path.is_file() else {}
    names = {}
    for key, name in (("begin", "bos_token"), ("end", "eos_token")):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token:
            names[key] = token
    return names


def _ids_of_json(file):
    tokenizer = json.loads(file.read_text())
    ids = dict(tokenizer["model"]["vocab"])
    return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])}


def _ids_of_pieces(file):
    """Field 1 of the protocol buffer is a piece, of which field 1 is the text."""
    pieces = [value for number, value in _fields(file.read_bytes()) if number == 1]
    return {dict(_fields(piece)).get(1, b"").decode(): i for i, piece in enumerate(pieces)}


def _fields(data):
    """Number and value of each field of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError("not a protocol buffer")
        size = varint() if kind == 2 else {1: 8, 5: 4}[kind]
        if at + size > len(data):
            raise ValueError("a field reaches past the end")
        yield key >> 3, data[at : at + size]
        at += size
