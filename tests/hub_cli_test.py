"""Models by name: from a hub, which a server on this machine stands for, and those that scripts/fetch_model.sh fetches.

Usage: hub_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import hashlib
import http.server
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import threading
import time

import cli_support
import model_files
import server_under_test
from cli_support import KVLATHE, MODEL

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIRECTORY = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.model", "tokenizer_config.json")


class Hub(http.server.ThreadingHTTPServer):
    """Files of owner/name, by their repository."""

    def __init__(self, repositories):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories, self.requests, self.seconds_a_piece = repositories, [], 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self):
        self.shutdown()
        self.server_close()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        for begin in range(0, len(body), 1 << 16):
            self.wfile.write(body[begin : begin + (1 << 16)])
            time.sleep(self.server.seconds_a_piece)

    def do_GET(self):
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        if listed := re.fullmatch(r"/api/models/(\w+/\w+)/revision/main(\?blobs=true)?", self.path):
            return self.list_files(listed[1])
        found = re.fullmatch(rf"/(\w+/\w+)/resolve/(?:{COMMIT}|main)/(.+)", self.path)
        body = self.server.repositories.get(found[1], {}).get(found[2]) if found else None
        if body is None:
            return self.answer(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        first = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        if first > 0:
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        try:
            self.answer(206 if first > 0 else 200, headers, body[first:])
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET

    def list_files(self, repository):
        files = self.server.repositories.get(repository)
        if files is None:
            return self.answer(401, {"X-Error-Code": "RepoNotFound"})
        siblings = [{"rfilename": name, "size": len(body)} for name, body in files.items()]
        listing = {"id": repository, "sha": COMMIT, "siblings": siblings}
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())


class HubCase(cli_support.CommandLineCase):
    @classmethod
    def setUpClass(cls):
        place = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_hub_"))
        cls.addClassCleanup(shutil.rmtree, place)
        cls.gguf = model_files.gguf_of(MODEL).write(place / "nano.gguf").read_bytes()
        cls.directory = {name: (MODEL / name).read_bytes() for name in DIRECTORY}

    def setUp(self):
        super().setUp()
        self.hub = Hub({"owner/file": {"nano-f16.gguf": self.gguf, "README.md": b"A model."}, "owner/folder": self.directory,
                        "owner/many": {"a-Q2_K.gguf": self.gguf, "a-Q8_0.gguf": self.gguf[:-1]}})
        self.addCleanup(self.hub.close)
        self.cache = self.folder / "hf" / "hub"
        for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
            self.environment.pop(name, None)
        self.environment.update(HF_ENDPOINT=self.hub.endpoint, HF_HOME=str(self.folder / "hf"), no_proxy="*")

    def test_every_verb_takes_a_model_of_a_hub(self):
        ids = self.json_of("tokenize", "-m", "hf:owner/file", stdin=b"Once upon a time")["ids"]
        self.assertEqual(ids, self.json_of("tokenize", "-m", MODEL, stdin=b"Once upon a time")["ids"])
        self.assertTrue((self.cache / "models--owner--file/snapshots" / COMMIT / "nano-f16.gguf").is_symlink())
        self.hub.close()  # from here on the cache is enough
        run = ["-p", "Once", "-n", 4, "--deterministic"]
        own, other = (self.json_of("run", "-m", model, *run)["ids"] for model in ("hf:owner/file:nano-f16.gguf", MODEL))
        self.assertEqual(own, other)
        text = self.folder / "text.txt"
        text.write_text((MODEL / "sample.txt").read_text()[:1500])
        compared = self.json_of("compare", "-m", "hf:owner/file", "-c", 64, "--kv", "none", "--text", text, "--no-latency")
        self.assertEqual(len(compared["rows"]), 1)
        self.assertIn("layers", self.run_verb("inspect", "-m", "hf:owner/file", "--kv", "none").stdout.decode())
        done = self.run_verb("chat", "-m", "hf:owner/file", "--chat-template", "chatml", "-n", 2, stdin=b"Hello\n")
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_a_folder_is_served_under_the_name_of_its_model(self):
        with server_under_test.Server(KVLATHE, "-m", "hf:owner/folder", environment=self.environment) as server:
            _, models, _ = server.ask("GET", "/v1/models")
            self.assertEqual([model["id"] for model in models["data"]], ["folder"])
        names = sorted(path.name for path in (self.cache / "models--owner--folder/snapshots" / COMMIT).iterdir())
        self.assertEqual(names, sorted(DIRECTORY))

    def test_goes_on_behind_a_kill(self):
        self.hub.seconds_a_piece = 0.05
        command = [KVLATHE, "tokenize", "-m", "hf:owner/file"]
        with subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as fetching:
            deadline = time.monotonic() + 60
            while not any(path.stat().st_size > 1 << 17 for path in self.cache.glob("*/blobs/*.incomplete")):
                self.assertLess(time.monotonic(), deadline)
                self.assertIsNone(fetching.poll())
                time.sleep(0.01)
            fetching.kill()
        [part] = self.cache.glob("*/blobs/*.incomplete")
        n_bytes = part.stat().st_size
        self.hub.seconds_a_piece = 0
        self.json_of("tokenize", "-m", "hf:owner/file", stdin=b"x")
        self.assertEqual(self.hub.requests[-1][2], f"bytes={n_bytes}-")
        [blob] = self.cache.glob("*/blobs/*")
        self.assertEqual(blob.read_bytes(), self.gguf)

    def test_says_what_it_fetches_and_shows_how_far_it_is(self):
        self.hub.seconds_a_piece = 30 / (len(self.gguf) / (1 << 16))
        command = [KVLATHE, "tokenize", "-m", "hf:owner/file"]
        with subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as fetching:
            self.assertIn("hf:owner/file: fetching nano-f16.gguf, ", fetching.stderr.readline())
            self.assertRegex(fetching.stderr.readline(), r"kvlathe: fetching nano-f16.gguf \d+%, about \d+ s left")
            fetching.kill()

    def test_one_line_where_nothing_can_be_fetched(self):
        needles = self.assert_refused(2, "a-Q2_K.gguf (", "run", "-m", "hf:owner/many", "-p", "x")
        self.assertIn("a-Q8_0.gguf (", needles)
        self.assert_refused(1, "no GGUF file 'b.gguf'", "run", "-m", "hf:owner/many:b.gguf", "-p", "x")
        self.assert_refused(1, "no such model", "run", "-m", "hf:owner/nothing", "-p", "x")
        self.assert_refused(2, "give hf:OWNER/NAME", "run", "-m", "hf:nothing", "-p", "x")
        self.assert_refused(2, "give hf:OWNER/NAME", "serve", "-m", "hf:owner/file:../x.gguf")
        # What is wrong with a spec is known before.
        n_requests = len(self.hub.requests)
        self.assert_refused(2, "nonsense", "run", "-m", "hf:owner/file", "-p", "x", "--kv", "nonsense")
        self.assertEqual(len(self.hub.requests), n_requests)
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.assert_refused(1, "127.0.0.1:1 cannot be reached", "run", "-m", "hf:owner/file", "-p", "x")
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.assert_refused(1, "HF_HUB_OFFLINE", "chat", "-m", "hf:owner/file")

    def test_a_hub_of_https_is_trusted_by_certificates(self):
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                        "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.hub.socket = context.wrap_socket(self.hub.socket, server_side=True, do_handshake_on_connect=False)
        self.environment["HF_ENDPOINT"] = self.hub.endpoint.replace("http:", "https:")
        command = ["tokenize", "-m", "hf:owner/file"]
        for file in (None, "/etc/hostname", str(self.folder / "missing.pem")):
            if file is not None:
                self.environment["SSL_CERT_FILE"] = file
            self.assert_refused(1, "have SSL_CERT_FILE name a file of certificates", *command)
        self.environment["SSL_CERT_FILE"] = str(certificate)
        self.assertGreater(len(self.json_of(*command, stdin=b"Hello")["ids"]), 0)

    def test_what_is_there_wins_over_a_name(self):
        (self.folder / "hf:owner").mkdir()
        for name in ("smollm2", "hf:owner/file"):
            shutil.copytree(MODEL, self.folder / name)
            ids = self.json_of("tokenize", "-m", name, stdin=b"Hello", cwd=self.folder)["ids"]
            self.assertGreater(len(ids), 0)
        self.assertEqual(self.hub.requests, [])


class FetchedModelCase(cli_support.CommandLineCase):
    def setUp(self):
        super().setUp()
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")

    def test_a_name_is_looked_for_upwards_and_in_the_cache(self):
        inner = self.folder / "tree" / "a" / "b"
        inner.mkdir(parents=True)
        for place in (self.folder / "tree/models/fetched", self.folder / "cache/kvlathe/models"):
            place.mkdir(parents=True)
            file = model_files.gguf_of(MODEL).write(place / "gemma3-270m.gguf")
            ids = self.json_of("tokenize", "-m", "gemma3-270m", stdin=b"Hello", cwd=inner)["ids"]
            self.assertGreater(len(ids), 0)
            file.unlink()

    def test_one_line_says_how_to_have_it(self):
        for verb in (["run", "-p", "x"], ["chat"], ["serve"], ["compare"], ["inspect"], ["tune"], ["tokenize"], ["report"],
                     ["calibrate"], ["eval", "--perplexity", "x.txt"], ["bench", "model"], ["bench", "scheduler"]):
            self.assert_refused(1, "scripts/fetch_model.sh smollm2 fetches it", *verb, "-m", "smollm2", cwd=self.folder)
        self.assert_refused(1, "smollm2, gemma3-270m, qwen2.5-coder-1.5b", "run", "-m", "smolm2", "-p", "x", cwd=self.folder)

    def test_the_names_are_those_of_the_script(self):
        script = (ROOT / "scripts/fetch_model.sh").read_text()
        names = re.findall(r"^  ([\w.-]+)\)$", script, re.MULTILINE)
        self.assertGreater(len(names), 2)
        for name in names:
            self.assert_refused(1, f"scripts/fetch_model.sh {name} fetches it", "run", "-m", name, "-p", "x", cwd=self.folder)
        self.assert_refused(1, f"fetches {', '.join(names)}, and", "run", "-m", "other", "-p", "x", cwd=self.folder)


if __name__ == "__main__":
    cli_support.main()
