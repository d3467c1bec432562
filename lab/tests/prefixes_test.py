#!/usr/bin/env python3
"""lab/prefixes.py with a server of a few lines that answers at once what it was asked before, unless --prefix-memory is 0, and
after a restart where there is a --prefix-dir."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "prefixes.py"
SERVER = '''#!{python}
import http.server, json, pathlib, sys, time
if sys.argv[1] == "prefix":
    print(json.dumps({{"kv": {{"none": {{"files": 1, "bytes": 5}}}}}}))
    sys.exit()
if sys.argv[1] == "inspect":
    print(json.dumps({{"kv_bytes": {{"total": 1001, "kv_fraction": 1.001, "context": 10}}}}))
    sys.exit()
stores, seen = "--prefix-memory 0" not in " ".join(sys.argv), []
disk = pathlib.Path(sys.argv[sys.argv.index("--prefix-dir") + 1], "seen") if "--prefix-dir" in sys.argv else None
if disk and disk.exists():
    seen = json.loads(disk.read_text())

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert "model" not in body, "a server has one model, and refuses others"
        text = "".join(m["content"] for m in body["messages"])
        n_same = max((len(a) for b in seen if (a := b[:200]) == text[:200]), default=0) if stores or disk else 0
        seen.append(text)
        if disk:
            disk.write_text(json.dumps(seen))
        time.sleep(0 if n_same else 0.2)
        self.send_response(200)
        self.end_headers()
        usage = {{"prompt_tokens": len(text), "prompt_tokens_details": {{"cached_tokens": n_same}}}}
        for event in ({{"choices": [{{"delta": {{"content": "Yes."}}}}]}}, {{"choices": [], "usage": usage}}):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


class PrefixesCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.server = self.folder / "kvlathe"
        self.server.write_text(SERVER.format(python=sys.executable))
        self.server.chmod(0o755)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              check=False)

    def run_all(self, *more):
        return self.run_script("run", "m.gguf", "--out", self.folder / "out.json", "--kvlathe", self.server, "--kv", "none", "--commit", "abc",
                               "--questions", 3, "--turns", 6, "--tokens", 500, *more)

    def test_compares_the_store_with_reading_anew(self):
        done = self.run_all()
        self.assertEqual(done.returncode, 0, done.stderr)
        data = json.loads((self.folder / "out.json").read_text())
        cell = data["cells"]["none"]
        self.assertEqual(cell["stored"]["run"]["commit"], "abc")
        for name, least in (("stored", 1), ("anew", 0), ("restarted", 1)):
            self.assertEqual([len(cell[name][part]) for part in ("questions", "turns")], [3, 6])
            cached = [entry["cached_tokens"] for entry in cell[name]["questions"][1:]]
            self.assertTrue(all((n > 0) == bool(least) for n in cached), cached)
        self.assertLess(cell["stored"]["questions"][1]["seconds"], 0.15)
        self.assertGreater(cell["anew"]["questions"][1]["seconds"], 0.15)
        self.assertLess(cell["restarted"]["questions"][1]["seconds"], 0.15)
        self.assertEqual(cell["restarted"]["disk"], {"files": 1, "bytes": 5})
        self.assertIn("| `none` | 0.2", done.stdout)

    def test_draws_documents_by_zipfs_law(self):
        done = self.run_script("zipf", "m.gguf", "--out", self.folder / "out.json", "--kvlathe", self.server, "--kv", "none", "--commit", "abc",
                               "--documents", 5, "--tokens", 400, "--requests", 30, "--held", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        requests = json.loads((self.folder / "out.json").read_text())["cells"]["none"]["requests"]
        self.assertEqual(len(requests), 30)
        # What was drawn before is stored.
        n_anew = sum(r["cached_tokens"] == 0 for r in requests)
        self.assertTrue(3 <= n_anew <= 5, n_anew)
        again = self.run_script("table", self.folder / "out.json")
        self.assertEqual(again.stdout, done.stdout)
        self.assertRegex(done.stdout, r"\| `none` \| \d+% \| 0.0")

    def test_goes_on_where_it_was(self):
        self.run_all()
        self.server.write_text("#!/bin/sh\nexit 1\n")
        done = self.run_all()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| `none` |", done.stdout)

    def test_says_why_a_server_did_not_come_up(self):
        self.server.write_text("#!/bin/sh\necho no such model >&2\nexit 1\n")
        done = self.run_all()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.splitlines()[-1], "prefixes.py: no such model")

    def test_refuses_results_of_other_settings(self):
        self.run_all()
        done = self.run_all("--turns", 7)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has results of other settings", done.stderr)


if __name__ == "__main__":
    unittest.main()
