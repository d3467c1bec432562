#!/usr/bin/env python3
"""kvlathe in LMCache, as it is on the package index, on a CPU: its name is found through LMCache's own configurations,
chunks go through its adapters to disk and back, the bytes there are those of the codec, the rows that come back are the
codec's, and what cannot be is refused in one line.

usage: lmcache_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""
import argparse
import asyncio
import concurrent.futures
import json
import os
import pathlib
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
try:
    import numpy as np
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
    from lmcache.v1.distributed.l1_manager import L1Manager
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
    from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
    from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor, get_registered_serde_types
    from lmcache.v1.memory_allocators.ad_hoc_memory_allocator import AdHocMemoryAllocator
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.platform import consume_fd
    from lmcache.v1.storage_backend import CreateStorageBackends
except ImportError as error:
    print(f"LMCache is not there ({error})")
    sys.exit(77)

import kvlathe
from kvlathe.chunks import ChunkCodec
from kvlathe.codec import Codec, Shape

KVLATHE, MODEL = (pathlib.Path(argument) for argument in sys.argv[1:3])
KV = "kivi(bits=4,group=64,sink=0)"
N_LAYERS, N_HEADS, HEAD_DIM, N_TOKENS = 6, 2, 64, 256
N_CHANNELS = N_HEADS * HEAD_DIM
# Of the squares of rows, by codes of 4 bits of such noise as rows() gives.
MOST_LOST = 0.02
KEY = ObjectKey(chunk_hash=b"a" * 32, model_name="nano", kv_rank=0)


def rows(seed, n_tokens=N_TOKENS, n_layers=N_LAYERS, n_channels=N_CHANNELS):
    """Keys and values of one chunk, of which some channels are large, as those of models are."""
    random = np.random.default_rng(seed)
    chunk = random.standard_normal((2, n_layers, n_tokens, n_channels), dtype=np.float32)
    return chunk * np.exp(random.standard_normal(n_channels, dtype=np.float32))


def tensor_object(chunk, dtype=torch.bfloat16, form=MemoryFormat.KV_2LTD):
    made = AdHocMemoryAllocator().allocate(torch.Size(chunk.shape), dtype, form)
    made.tensor.copy_(torch.from_numpy(chunk))
    return made


def bytes_object(n_bytes):
    return AdHocMemoryAllocator().allocate(torch.Size([n_bytes]), torch.uint8)


def loses(chunk, again):
    return float(np.square(chunk - again).sum() / np.square(chunk).sum())


class ChunkCodecTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.codec = ChunkCodec(KV, MODEL)

    def test_bytes_and_rows_are_those_of_the_codec(self):
        chunk = rows(1)
        data = self.codec.pack(chunk)
        own = Codec(Shape.from_config(MODEL), KV, dtype="bfloat16", max_positions=N_TOKENS)
        # The first four tokens stand aside in 16 bits, and the fifth in their place.
        coded = chunk.copy()
        coded[:, :, :4] = coded[:, :, 4:5]
        by_heads = coded.reshape(2, N_LAYERS, N_TOKENS, N_HEADS, HEAD_DIM)
        sequence = own.encode(by_heads[0], by_heads[1])
        n_aside = 2 * 2 * N_LAYERS * 4 * N_CHANNELS
        self.assertEqual(data[28 + n_aside:], sequence.to_bytes())
        self.assertEqual(len(data), self.codec.packed_size(N_LAYERS, N_TOKENS))
        # What the allocator counts, and a head for every layer that says what the codes are.
        self.assertGreaterEqual(len(data), sequence.nbytes + n_aside)
        self.assertLess(len(data), sequence.nbytes + n_aside + 1024 * N_LAYERS)
        self.assertLess(len(data), 0.31 * chunk.size * 2)
        again = self.codec.unpack(data)
        keys, values = own.decode(sequence)
        np.testing.assert_array_equal(again[0, :, 4:].reshape(keys[:, 4:].shape), keys[:, 4:])
        np.testing.assert_array_equal(again[1, :, 4:].reshape(values[:, 4:].shape), values[:, 4:])
        np.testing.assert_array_equal(again[:, :, :4], torch.from_numpy(chunk[:, :, :4].copy()).bfloat16().float().numpy())
        bare = ChunkCodec(KV, MODEL, whole=0)
        self.assertEqual(len(bare.pack(chunk)), len(data) - n_aside)
        with self.assertRaisesRegex(ValueError, "whole"):
            ChunkCodec(KV, MODEL, whole=-1)
        self.assertLess(loses(chunk, again), MOST_LOST)
        self.assertGreater(loses(chunk, again), 1e-4)

    def test_methods_lose_what_their_bits_say(self):
        chunk = rows(2)
        lost = [loses(chunk, (codec := ChunkCodec(kv, MODEL)).unpack(codec.pack(chunk)))
                for kv in ("none", "int8(sink=0)", "token(bits=4,group=64,sink=0)", "kivi(bits=2,group=64,sink=0)")]
        self.assertEqual(lost, sorted(lost))
        self.assertLess(lost[0], 1e-5)
        self.assertLess(lost[1], 1e-3)

    def test_chunks_that_are_not_full_and_parts_of_a_model(self):
        for n_tokens in (1, 4, 5, 63, 64, 100, 255):
            chunk = rows(3, n_tokens)
            data = self.codec.pack(chunk)
            self.assertEqual(len(data), self.codec.packed_size(N_LAYERS, n_tokens))
            self.assertLess(loses(chunk, self.codec.unpack(data)), MOST_LOST)
        for n_layers, n_channels in ((1, N_CHANNELS), (3, N_CHANNELS), (N_LAYERS, HEAD_DIM)):
            chunk = rows(4, N_TOKENS, n_layers, n_channels)
            again = self.codec.unpack(self.codec.pack(chunk))
            self.assertEqual(again.shape, chunk.shape)
            self.assertLess(loses(chunk, again), MOST_LOST)

    def test_wrong_arrays_are_refused(self):
        for chunk, needle in ((rows(1)[:1], "shape"), (rows(1, N_TOKENS + 1), "256"), (rows(1, 4)[..., :100], "channels"),
                              (rows(1).astype(np.float64), "float64"), (rows(1, n_layers=7), "layers"),
                              (rows(1)[:, :, :0], "tokens"), (rows(1)[0], "shape")):
            with self.assertRaisesRegex(kvlathe.errors.InvalidArgumentError, needle):
                self.codec.pack(chunk)
        for token in (1, 5):
            spoilt = rows(1)
            spoilt[0, 2, token, 7] = np.nan
            with self.assertRaises(kvlathe.errors.DataLossError):
                self.codec.pack(spoilt)
        self.codec.unpack(self.codec.pack(rows(1)))

    def test_wrong_bytes_are_refused(self):
        data = self.codec.pack(rows(5, 70))
        step = max(1, len(data) // 300)
        for place in [*range(28), *range(28, len(data), step), len(data) - 1]:
            damaged = bytearray(data)
            damaged[place] ^= 0x10
            with self.assertRaises(kvlathe.errors.DataLossError):
                self.codec.unpack(damaged)
        for length in (0, 3, 28, len(data) // 2, len(data) - 1):
            with self.assertRaises(kvlathe.errors.DataLossError):
                self.codec.unpack(data[:length])
        # A buffer may be longer than the chunk.
        np.testing.assert_array_equal(self.codec.unpack(data + b"tail"), self.codec.unpack(data))
        for other in ("kivi(bits=2,group=64,sink=0)", "int8(sink=0)"):
            with self.assertRaises(kvlathe.errors.DataLossError):
                self.codec.unpack(ChunkCodec(other, MODEL).pack(rows(5, 70)))

    def test_methods_that_do_not_fit_chunks_are_refused(self):
        for kv, needle in (("snapkv(keep=0.5)", "chunks at rest"), ("window(size=64)", "chunks at rest"),
                           ("lathe(ratio=4,keys=after)", "give basis"),
                           ("kivi(bits=99)", "bits")):
            with self.subTest(kv=kv), self.assertRaisesRegex(kvlathe.KvlatheError, needle):
                ChunkCodec(kv, MODEL)
        with self.assertRaisesRegex(ValueError, "at least one"):
            ChunkCodec(KV, MODEL, chunk_tokens=0)

    def test_lathe_has_its_ratio_in_a_chunk(self):
        basis = self.basis()
        for ratio in (4, 8):
            codec = ChunkCodec(f"lathe(ratio={ratio},keys=after,newest=0,sink=0)", MODEL, basis=basis)
            chunk = rows(6)
            data = codec.pack(chunk)
            # With the heads of the layers, and four of 256 tokens aside.
            self.assertLess(len(data), 2 * chunk.size * (1.05 / ratio + 4 / 256))
            self.assertEqual(codec.unpack(data).shape, chunk.shape)
            with self.assertRaises(kvlathe.errors.DataLossError):
                self.codec.unpack(data)
        with self.assertRaisesRegex(kvlathe.errors.InvalidArgumentError, "whole model"):
            codec.pack(rows(6, n_layers=3))
        # What has to know where a chunk stands, or what reads it.
        for kv, needle in (("lathe(ratio=4,keys=centred,newest=0,sink=0)", "keys=after"), ("palu(rate=0.5)", "before RoPE"),
                           ("kvquant(bits=4)", "before RoPE"), ("eigen(rate=0.5)", "before RoPE"),
                           ("lathe(ratio=4,keys=after)", "reach only"),
                           ("lathe(ratio=4,keys=after,newest=0,sink=0,classes=3)", "at rest")):
            with self.subTest(kv=kv), self.assertRaisesRegex(kvlathe.KvlatheError, needle):
                ChunkCodec(kv, MODEL, basis=basis)

    def basis(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_lmcache_"))
        self.addCleanup(shutil.rmtree, folder)
        subprocess.run([KVLATHE, "calibrate", "-m", MODEL, "--output", folder / "basis.safetensors"],
                       capture_output=True, check=True)
        return folder / "basis.safetensors"

    def test_the_example(self):
        try:
            import transformers  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python" / "chunks_at_rest.py"
        lathe = "lathe(ratio=8,keys=after,newest=0,sink=0)"
        done = subprocess.run([sys.executable, "-B", example, MODEL, MODEL / "sample.txt", "none", KV,
                               f"{lathe}@{self.basis()}"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [re.fullmatch(r"(\S+) +([\d.]+)% of 16 bits, KL ([\d.]+) nats a token", line).groups()
                 for line in done.stdout.splitlines()]
        self.assertEqual([kv for kv, _, _ in found], ["none", KV, lathe])
        for (_, share, kl), most_share, most_kl in zip(found, (102, 31, 14.5), (1e-5, 0.001, 0.002), strict=True):
            self.assertLess(float(share), most_share)
            self.assertLess(float(kl), most_kl)

    def test_threads_share_a_codec(self):
        chunks = [rows(seed, 128) for seed in range(12)]
        expected = [self.codec.pack(chunk) for chunk in chunks]

        def go(i):
            data = self.codec.pack(chunks[i % 12])
            return i % 12, data, self.codec.unpack(data)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for i, data, again in pool.map(go, range(48)):
                self.assertEqual(data, expected[i])
                self.assertLess(loses(chunks[i], again), MOST_LOST)


class ServerTest(unittest.TestCase):
    """lmcache.v1.distributed: a serde of an L2 adapter."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_lmcache_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def description(self, **serde):
        return {"type": "plugin", "module_path": "kvlathe.lmcache", "class_name": "L2Adapter",
                "adapter_params": {"adapter": {"type": "fs", "base_path": str(self.folder)}},
                "serde": {"type": "kvlathe", "kv": KV, "model": str(MODEL), **serde}}

    def test_serde_packs_and_unpacks_every_type(self):
        import kvlathe.lmcache

        self.assertIn("kvlathe", get_registered_serde_types())
        codec = ChunkCodec(KV, MODEL)
        packs, unpacks = kvlathe.lmcache.ChunkSerializer(codec), kvlathe.lmcache.ChunkDeserializer(codec)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            source = tensor_object(rows(7), dtype)
            size = packs.estimate_serialized_size(MemoryLayoutDesc(source.get_shapes(), source.get_dtypes()))
            at_rest, back = bytes_object(size), tensor_object(np.zeros_like(rows(7)), dtype)
            self.assertEqual(packs.serialize(source, at_rest, KEY), size)
            unpacks.deserialize(at_rest, back, KEY)
            expected = codec.unpack(codec.pack(source.tensor.float().numpy()))
            torch.testing.assert_close(back.tensor, torch.from_numpy(expected).to(dtype), rtol=0, atol=0)
        with self.assertRaisesRegex(ValueError, "its buffer has 100"):
            packs.serialize(tensor_object(rows(7)), bytes_object(100), KEY)
        with self.assertRaisesRegex(ValueError, "expects"):
            unpacks.deserialize(at_rest, tensor_object(rows(7, 100)), KEY)
        with self.assertRaisesRegex(ValueError, "latent"):
            packs.serialize(tensor_object(rows(7)[:1]), bytes_object(100), KEY)

    def test_configuration_alone_finds_it_and_files_hold_the_bytes(self):
        # In a process of its own, which has not imported kvlathe.
        done = subprocess.run([sys.executable, "-B", __file__, KVLATHE, MODEL, "--serve", self.folder,
                               json.dumps(self.description(max_workers=3))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout.splitlines()[-1])
        size = ChunkCodec(KV, MODEL).packed_size(N_LAYERS, N_TOKENS)
        self.assertEqual(said, {"imported_before": False, "sizes": [size] * 4, "stored": 4 * size, "loaded": [True] * 4,
                                "as_the_codec": [True] * 4, "loaded_damaged": [False]})

    def test_wrong_settings_are_refused_in_a_line(self):
        import kvlathe.lmcache

        self.assertTrue(kvlathe.lmcache.register)
        for settings, needle in (({"kv": KV}, "model"), ({"model": str(MODEL)}, '"kv"'),
                                 ({"kv": KV, "model": str(MODEL), "bits": 4}, "does not know bits"),
                                 ({"kv": KV, "model": str(MODEL), "chunk_tokens": "many"}, "chunk_tokens"),
                                 ({"kv": "snapkv(keep=0.5)", "model": str(MODEL)}, "at rest"),
                                 ({"kv": KV, "model": str(self.folder / "nothing")}, "nothing")):
            with self.subTest(settings=settings), self.assertRaisesRegex(kvlathe.KvlatheError, needle):
                create_serde_processor(SerdeConfig("kvlathe", settings))
        description = self.description()
        description["adapter_params"] = {}
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(description)])).adapters[0]
        with self.assertRaisesRegex(ValueError, "base_path"):
            create_l2_adapter(config)


def wait(poller_of, what):
    poller = select.poll()
    poller.register(poller_of, select.POLLIN)
    if not poller.poll(60000):
        raise TimeoutError(what)
    consume_fd(poller_of)


def serve(folder, description):
    """What the multiprocess server does with an adapter's configuration."""
    before = "kvlathe.lmcache" in sys.modules
    config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[description])).adapters[0]
    memory = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(64 << 20, False, shm_name="")))
    inner = create_l2_adapter(config, memory.get_l1_memory_desc())
    adapter = SerdeL2AdapterWrapper(inner=inner, serde=create_serde_processor(config.serde_config), l1_manager=memory)
    layout = MemoryLayoutDesc([torch.Size([2, N_LAYERS, N_TOKENS, N_CHANNELS])], [torch.bfloat16])

    def reserve(first):
        keys = [ObjectKey(chunk_hash=bytes([first + i]) * 32, model_name="nano", kv_rank=0) for i in range(4)]
        reserved = memory.reserve_write(keys=keys, is_temporary=[False] * 4, layout_desc=layout, tag="test")
        return keys, [reserved[key][1] for key in keys]

    def load(keys, objects):
        task = adapter.submit_load_task(keys, objects)
        wait(adapter.get_load_event_fd(), "nothing was loaded")
        loaded = adapter.query_load_result(task)
        return [bool(loaded.test(i)) for i in range(len(keys))]

    keys, objects = reserve(0)
    for i, held in enumerate(objects):
        held.tensor.copy_(torch.from_numpy(rows(i)))
    adapter.submit_store_task(keys, objects)
    wait(adapter.get_store_event_fd(), "nothing was stored")
    stored, = adapter.pop_completed_store_tasks().values()
    files = sorted(pathlib.Path(folder).iterdir())
    others, into = reserve(10)
    loaded = load(keys, into)
    codec = ChunkCodec(KV, MODEL)
    same = [bool((back.tensor == torch.from_numpy(codec.unpack(codec.pack(held.tensor.float().numpy()))).bfloat16()).all())
            for held, back in zip(objects, into)]
    damaged = bytearray(files[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    files[0].write_bytes(damaged)
    at = [key for key in keys if key.chunk_hash.hex() in files[0].name]
    said = {"imported_before": before, "sizes": [file.stat().st_size for file in files],
            "stored": stored.bytes_transferred(), "loaded": loaded, "as_the_codec": same,
            "loaded_damaged": load(at, into[:1])}
    adapter.close()
    print(json.dumps(said), flush=True)
    os._exit(0)  # LMCache's objects complain when they are taken down with the interpreter


class EngineTest(unittest.TestCase):
    """lmcache.v1.storage_backend: remote_serde of the engine inside vLLM."""

    @classmethod
    def setUpClass(cls):
        cls.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=cls.loop.run_forever, daemon=True)
        thread.start()
        cls.addClassCleanup(cls.loop.call_soon_threadsafe, cls.loop.stop)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_lmcache_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def metadata(self, **changes):
        return LMCacheMetadata(**{"model_name": "nano", "world_size": 1, "local_world_size": 1, "worker_id": 0,
                                  "local_worker_id": 0, "kv_dtype": torch.bfloat16,
                                  "kv_shape": (N_LAYERS, 2, N_TOKENS, N_HEADS, HEAD_DIM), "role": "worker", **changes})

    def config(self, settings=None, **changes):
        settings = {"kvlathe.kv": KV} if settings is None else settings
        return LMCacheEngineConfig.from_defaults(
            chunk_size=N_TOKENS, max_local_cpu_size=0.05, remote_serde="kvlathe", remote_storage_plugins=["kvlathe"],
            extra_config={"remote_storage_plugin.kvlathe.module_path": "kvlathe.lmcache",
                          "remote_storage_plugin.kvlathe.class_name": "RemoteAdapter",
                          "kvlathe.remote_url": f"fs://host:0{self.folder}", **settings}, **changes)

    def backends(self, config):
        made = CreateStorageBackends(config, self.metadata(), self.loop, dst_device="cpu")
        return made["LocalCPUBackend"], made.get("RemoteBackend-kvlathe")

    def test_chunks_go_to_files_and_come_back(self):
        memory, remote = self.backends(self.config({"kvlathe.kv": KV, "kvlathe.model": str(MODEL)}))
        self.addCleanup(remote.close)
        codec = ChunkCodec(KV, MODEL)
        for number, n_tokens in ((1, N_TOKENS), (2, 112)):
            held = memory.allocate(torch.Size([2, N_LAYERS, n_tokens, N_CHANNELS]), torch.bfloat16)
            held.tensor.copy_(torch.from_numpy(rows(number, n_tokens)))
            key = CacheEngineKey("nano", 1, 0, number, torch.bfloat16)
            remote.submit_put_task(key, held).result(60)
            packed = codec.pack(held.tensor.float().numpy())
            file, = [path for path in self.folder.iterdir() if f"@{number}@" in path.name]
            self.assertEqual(file.read_bytes()[-len(packed):], packed)
            self.assertLess(file.stat().st_size, len(packed) + 64)
            back = remote.get_blocking(key)
            self.assertEqual((back.get_memory_format(), back.get_shapes(), back.get_dtypes(), back.get_num_tokens()),
                             (MemoryFormat.KV_2LTD, [held.tensor.shape], [torch.bfloat16], n_tokens))
            expected = torch.from_numpy(codec.unpack(packed)).bfloat16()
            torch.testing.assert_close(back.tensor, expected, rtol=0, atol=0)
            # It may live on in LMCache's memory, and goes with its last user.
            memory.submit_put_task(key, back)
            self.assertEqual(back.get_ref_count(), 2)
            back.ref_count_down()
            torch.testing.assert_close(memory.get_blocking(key).tensor, expected, rtol=0, atol=0)
            memory.remove(key)
            held.ref_count_down()
        # Damaged bytes are a chunk that is not there.
        data = bytearray(file.read_bytes())
        data[-100] ^= 4
        file.write_bytes(data)
        with self.assertLogs("kvlathe.lmcache", "WARNING") as said:
            self.assertIsNone(remote.get_blocking(key))
        self.assertIn("damaged", said.output[0])

    def test_forms_of_one_layer(self):
        from lmcache.v1.storage_backend import naive_serde

        import kvlathe.lmcache

        self.assertTrue(kvlathe.lmcache.register)
        chunk = rows(9, n_layers=1)
        for blending, form in ((False, MemoryFormat.KV_T2D), (True, MemoryFormat.KV_2TD)):
            config = self.config(use_layerwise=True, enable_blending=blending)
            packs, unpacks = naive_serde.CreateSerde("kvlathe", self.metadata(), config)
            laid = chunk[:, 0] if blending else np.ascontiguousarray(chunk[:, 0].swapaxes(0, 1))
            back = unpacks.deserialize(packs.serialize(tensor_object(laid, form=form)))
            self.assertEqual(back.get_memory_format(), form)
            self.assertEqual(back.tensor.shape, torch.Size(laid.shape))
            self.assertLess(loses(laid, back.tensor.float().numpy()), MOST_LOST)
        # Other names are LMCache's.
        naive, _ = naive_serde.CreateSerde("naive", self.metadata(), self.config())
        self.assertEqual(type(naive).__name__, "NaiveSerializer")
        with self.assertRaisesRegex(ValueError, "Invalid type"):
            naive_serde.CreateSerde("nothing", self.metadata(), self.config())

    def test_what_cannot_be_is_refused(self):
        from lmcache.v1.storage_backend import naive_serde

        for settings, changes, needle in (
                ({}, {}, '"kv"'), ({"kvlathe.kv": KV, "kvlathe.bits": 4}, {}, "does not know bits"),
                ({"kvlathe.kv": KV, "save_chunk_meta": False}, {}, "save_chunk_meta"),
                ({"kvlathe.kv": "h2o(keep=0.5)"}, {}, "at rest"), ({"kvlathe.kv": KV}, {"use_mla": True}, "latent")):
            with self.subTest(settings=settings, **changes), self.assertRaisesRegex(kvlathe.KvlatheError, needle):
                naive_serde.CreateSerde("kvlathe", self.metadata(**changes), self.config(settings))
        _, remote = self.backends(self.config({"kvlathe.kv": KV, "kvlathe.remote_url": "nowhere"}))
        self.assertTrue(remote is None or remote.connection is None)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(*sys.argv[-2:])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
