"""The curl commands of README.md and of the pages about serving, word for word as they are printed there, against
`kvlathe serve`: curl_test.py KVLATHE MODEL_DIRECTORY [TEST...]."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from server_under_test import Server  # noqa: E402

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", "docs/server.md", "docs/server_api.md", "docs/deploy.md"]


def commands_of(page):
    """The commands of indented blocks that begin with curl, with the lines that they go on in."""
    commands = []
    for line in (ROOT / page).read_text().splitlines():
        if commands and commands[-1].endswith("\\"):
            commands[-1] += "\n" + line
        elif re.match(r"    curl ", line):
            commands.append(line)
    return [command.strip() for command in commands]


@unittest.skipUnless(shutil.which("curl"), "curl is not installed (scripts/bootstrap.sh --with-deploy)")
class CurlTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_curl_"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_every_command_is_answered(self):
        commands = [(page, command) for page in PAGES for command in commands_of(page)]
        self.assertGreater(len([page for page, _ in commands if page == "README.md"]), 0)
        text = "\n".join(command for _, command in commands)
        names = sorted(set(re.findall(r'"model": *"([^"]+)"', text)))
        keys = sorted(set(re.findall(r"Bearer ([\w-]+)", text)))
        levels = ["none", *sorted(set(re.findall(r'"kv": *"([^"]+)"', text)) - {"none"})]
        words = [word for name in names for word in ("-a", name)] + [word for kv in levels for word in ("--kv", kv)]
        # A short context, for which a basis is calibrated sooner.
        with Server(KVLATHE, "-m", MODEL, "--chat-template", "chatml", "-c", 256, *words,
                    environment={"XDG_CACHE_HOME": str(self.folder)}) as server:
            # The printed address leads to the server of the test; every answer but 2xx is a failure.
            (self.folder / ".curlrc").write_text(
                f'connect-to = "127.0.0.1:8080:127.0.0.1:{server.port}"\nconnect-to = "localhost:8080:127.0.0.1:{server.port}"\n'
                "fail-with-body\nsilent\nshow-error\n")
            environment = dict(os.environ, CURL_HOME=str(self.folder), HOME=str(self.folder),
                               **({"KVLATHE_API_KEY": keys[0]} if keys else {}))
            for page, command in commands:
                with self.subTest(page=page, command=command):
                    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True,
                                          timeout=120)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assert_sensible(done.stdout)

    def assert_sensible(self, answer):
        if answer.startswith("data: ") or answer.startswith("event: "):
            self.assertIn("finish_reason" if "chat" in answer or "completion" in answer else "response", answer)
        elif answer.startswith("#"):
            self.assertIn("vllm:num_requests_waiting", answer)
        else:
            self.assertNotIn("error", json.loads(answer))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
