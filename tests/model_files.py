"""Models for tests, written with the standard library alone: shorter copies of a model, copies with other
weights, and GGUF files as llama.cpp's converter writes them.
"""

import array
import json
import pathlib
import random
import shutil
import struct

# Types of GGUF values.
UINT32, INT32, FLOAT32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
# Types of tensors.
F32, BF16 = 0, 30


def read_weights(model):
    """Name of each tensor to its shape and BF16 bytes."""
    data = (pathlib.Path(model) / "model.safetensors").read_bytes()
    header_bytes, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["shape"], data[begin:end])
    return tensors


def write_weights(model, tensors):
    header, place = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + len(data)]}
        place += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (pathlib.Path(model) / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def copy_first_layers(model, n_layers, copy):
    """A model of the first layers of another, without its texts."""
    copy.mkdir()
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(model / name, copy)
    config = json.loads((model / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(dict(config, num_hidden_layers=n_layers)))
    write_weights(copy, {name: tensor for name, tensor in read_weights(model).items()
                         if not name.startswith("model.layers.") or int(name.split(".")[2]) < n_layers})
    return copy


def write_random_gpt2(folder, tokenizer_of, seed=1):
    """A GPT-2 model, whose positions turn no key, of random weights: 3 layers of 4 heads of 64. Its tokenizer is another model's.
    Weights fall along what they read, so that rows of keys and values have spectra that fall. Returns the folder."""
    draw = random.Random(seed).gauss
    n_layers, hidden, ffn, n_positions, vocabulary = 3, 256, 512, 1024, 4096
    folder.mkdir(parents=True)
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer_of / name, folder)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": hidden, "n_layer": n_layers, "n_head": 4, "n_inner": ffn,
        "vocab_size": vocabulary, "n_positions": n_positions, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}))

    def matrix(rows, columns, fall=1.0):
        values = array.array("f", (draw(0, 0.2) * fall**row for row in range(rows) for _ in range(columns)))
        return [rows, columns], values.tobytes()

    def vector(size, value):
        return [size], array.array("f", [value] * size).tobytes()

    tensors = {"wte.weight": matrix(vocabulary, hidden), "wpe.weight": matrix(n_positions, hidden),
               "ln_f.weight": vector(hidden, 1.0), "ln_f.bias": vector(hidden, 0.0)}
    for layer in range(n_layers):
        for name, (shape, data) in {
            "ln_1.weight": vector(hidden, 1.0), "ln_1.bias": vector(hidden, 0.0),
            "attn.c_attn.weight": matrix(hidden, 3 * hidden, 0.98), "attn.c_attn.bias": vector(3 * hidden, 0.0),
            "attn.c_proj.weight": matrix(hidden, hidden, 0.98), "attn.c_proj.bias": vector(hidden, 0.0),
            "ln_2.weight": vector(hidden, 1.0), "ln_2.bias": vector(hidden, 0.0),
            "mlp.c_fc.weight": matrix(hidden, ffn, 0.98), "mlp.c_fc.bias": vector(ffn, 0.0),
            "mlp.c_proj.weight": matrix(ffn, hidden, 0.99), "mlp.c_proj.bias": vector(hidden, 0.0),
        }.items():
            tensors[f"h.{layer}.{name}"] = shape, data
    # BF16 is the upper half of F32; what is cut off does not matter here.
    write_weights(folder, {f"transformer.{name}": (shape, bytes(byte for i in range(0, len(data), 4) for byte in data[i + 2 : i + 4]))
                           for name, (shape, data) in tensors.items()})
    return folder


def overflow_on(model, token_id):
    """Changes the weights, all of which stay finite, so that the first layer's values are infinite where
    the token is read: of the embeddings it alone has a first component, and a weight of the values
    multiplies that by nearly the largest number there is. Returns the model."""
    tensors = read_weights(model)

    def put(name, place, value):
        shape, data = tensors[name]
        data = bytearray(data)
        for i, number in zip(place, value):
            data[2 * i : 2 * i + 2] = struct.pack("<f", number)[2:]
        tensors[name] = (shape, bytes(data))

    embedding = "model.embed_tokens.weight"
    n_rows, n_columns = tensors[embedding][0]
    put(embedding, range(0, n_rows * n_columns, n_columns), [0.5 * (i == token_id) for i in range(n_rows)])
    put("model.layers.0.self_attn.v_proj.weight", [0], [3e38])
    write_weights(model, tensors)
    return model


def _varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _fields(data):
    """Number and value of each field of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            n_bytes = {1: 8, 5: 4}.get(key & 7)
            if n_bytes is None:
                n_bytes, at = _varint(data, at)
            value, at = data[at : at + n_bytes], at + n_bytes
        yield key >> 3, value


def read_pieces(model):
    """(text, score, type) of each piece of a SentencePiece model."""
    pieces = []
    for number, value in _fields((model / "tokenizer.model").read_bytes()):
        if number == 1:  # ModelProto.pieces
            piece = {1: b"", 2: bytes(4), 3: 1} | dict(_fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece[3]))
    return pieces


def _text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind, value):
    if kind == TEXT:
        return _text(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)


class GgufFile:
    """Keys and tensors as they will stand in a file."""

    def __init__(self):
        self.keys = {}  # name to (type, value), or (ARRAY, (type, values))
        self.tensors = {}  # name to (type, shape with the slowest dimension first, bytes)

    def bytes(self):
        out = [b"GGUF", struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))]
        for name, (kind, value) in self.keys.items():
            out.append(_text(name) + struct.pack("<I", kind))
            if kind == ARRAY:
                out.append(struct.pack("<IQ", value[0], len(value[1])))
                out.extend(_value(value[0], element) for element in value[1])
            else:
                out.append(_value(kind, value))
        place = 0
        for name, (kind, shape, data) in self.tensors.items():
            out.append(_text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)))
            out.append(struct.pack("<IQ", kind, place))
            place += len(data) + -len(data) % 32
        head = b"".join(out)
        return head + b"".join(data + bytes(-len(data) % 32)
                               for data in [head, *(t[2] for t in self.tensors.values())])[len(head):]

    def write(self, path):
        path.write_bytes(self.bytes())
        return path


_NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
          "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
          "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
          "mlp.down_proj": "ffn_down"}


def _gguf_name(name):
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _to_pairs(data, n_rows, head_dim):
    """Rows of the two halves of each head in turn: there the rotation takes neighbours."""
    row_bytes = len(data) // n_rows
    rows = [data[i * row_bytes : (i + 1) * row_bytes] for i in range(n_rows)]
    return b"".join(rows[head + pair + half * head_dim // 2] for head in range(0, n_rows, head_dim)
                    for pair in range(head_dim // 2) for half in range(2))


def _widened(data):
    """F32 of BF16."""
    words = array.array("I", (word << 16 for word in array.array("H", data)))
    return words.tobytes()


def gguf_of(model):
    """A Llama with a SentencePiece tokenizer as GGUF file: norms are F32 and matrices BF16."""
    config = json.loads((model / "config.json").read_text())
    file = GgufFile()
    file.keys["general.architecture"] = (TEXT, "llama")
    for key, field in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"),
                       ("context_length", "max_position_embeddings"),
                       ("feed_forward_length", "intermediate_size"),
                       ("attention.head_count", "num_attention_heads"),
                       ("attention.head_count_kv", "num_key_value_heads"),
                       ("rope.dimension_count", "head_dim"), ("vocab_size", "vocab_size")):
        file.keys["llama." + key] = (UINT32, config[field])
    file.keys["llama.attention.layer_norm_rms_epsilon"] = (FLOAT32, config["rms_norm_eps"])
    file.keys["llama.rope.freq_base"] = (FLOAT32, config["rope_theta"])
    texts, scores, types = zip(*read_pieces(model))
    file.keys["tokenizer.ggml.model"] = (TEXT, "llama")
    file.keys["tokenizer.ggml.tokens"] = (ARRAY, (TEXT, texts))
    file.keys["tokenizer.ggml.scores"] = (ARRAY, (FLOAT32, scores))
    file.keys["tokenizer.ggml.token_type"] = (ARRAY, (INT32, types))
    file.keys["tokenizer.ggml.bos_token_id"] = (UINT32, config["bos_token_id"])
    file.keys["tokenizer.ggml.eos_token_id"] = (UINT32, config["eos_token_id"])
    file.keys["tokenizer.ggml.add_bos_token"] = (BOOL, True)
    for name, (shape, data) in read_weights(model).items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            data = _to_pairs(data, shape[0], config["head_dim"])
        is_norm = len(shape) == 1
        file.tensors[_gguf_name(name)] = (F32 if is_norm else BF16, shape, _widened(data) if is_norm else data)
    return file
