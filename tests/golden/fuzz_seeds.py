"""Writes fuzz/corpus/model_config: of each golden model its config.json, and of its GGUF file the keys and the
vectors, with one row of the embedding.

Usage: fuzz_seeds.py     (needs the Python package gguf and numpy)
"""

import json
import pathlib

import gguf
import numpy

HERE = pathlib.Path(__file__).parent
CORPUS = HERE.parents[1] / "fuzz" / "corpus" / "model_config"


def write_json(folder):
    config = json.loads((folder / "config.json").read_text())
    (CORPUS / f"{folder.name}.json").write_text(json.dumps(config, separators=(",", ":")))


def write_gguf(path):
    file = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(CORPUS / path.name, file.fields["general.architecture"].contents())
    for key, field in file.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.name", "general.size_label"):
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in file.tensors:
        if len(tensor.shape) == 1 and not tensor.name.startswith(("blk.1.", "blk.2.", "blk.3.")):
            writer.add_tensor(tensor.name, numpy.asarray(tensor.data))
        elif tensor.name in ("token_embd.weight", "output.weight"):
            writer.add_tensor(tensor.name, numpy.asarray(tensor.data)[:1], raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    for config in sorted(HERE.glob("*/config.json")):
        write_json(config.parent)
    for path in sorted((HERE / "gguf").glob("*.gguf")):
        write_gguf(path)


if __name__ == "__main__":
    main()
