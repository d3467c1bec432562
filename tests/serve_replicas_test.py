"""Two replicas behind a real HAProxy, as deploy/replicas.sh starts them: one is killed, one is drained, one is
busy. Called as serve_replicas_test.py KVLATHE MODEL_DIRECTORY [TEST...]; without HAProxy everything is skipped."""

import asyncio
import csv
import io
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from serve_client import ask

KVLATHE, MODEL = sys.argv[1], pathlib.Path(sys.argv[2])
DEPLOY = pathlib.Path(__file__).resolve().parent.parent / "deploy"
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
STREAM = {"model": "nano", "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0,
          "stream": True}
# `user` makes it longer than HAProxy's usual buffer: what does not lie in one buffer is not sent again.
WHOLE = {"model": "nano", "prompt": "In the morning", "max_tokens": 60, "ignore_eos": True, "temperature": 0,
         "user": "x" * 100_000}


class Replicas:
    """deploy/replicas.sh, from its start until it has ended cleanly."""

    def __init__(self, n_replicas, *options):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_replicas_"))
        for _ in range(5):  # where somebody else has the port meanwhile
            self.port = random.randrange(20000, 32000)  # below the ports of outgoing connections
            self.script = subprocess.Popen(
                [DEPLOY / "replicas.sh", "--port", str(self.port), "--state", self.state, "--shutdown-timeout", "10",
                 *options, str(n_replicas), "-m", MODEL, "--served-model-name", "nano",
                 "-t", "1", "--agent-full-tokens", "1000"],
                env=dict(os.environ, KVLATHE=KVLATHE), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.lines = []
            while not self.lines or not self.lines[-1].startswith("all "):
                line = self.script.stdout.readline()
                if not line:
                    break
                self.lines.append(line)
            else:
                break
            error = self.script.communicate()[1]
            if "listens on port" not in error:
                raise AssertionError(error + self.logs())
        text = "".join(self.lines)
        found = re.findall(r"replica \d+ +http://127.0.0.1:(\d+) .* process (\d+)", text)
        self.ports, self.pids = [int(port) for port, _ in found], [int(pid) for _, pid in found]
        self.stats_port = int(re.search(r"statistics +http://127.0.0.1:(\d+)", text).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.script.poll() is None:
            self.script.send_signal(signal.SIGTERM)
        self.script.communicate(timeout=60)
        shutil.rmtree(self.state)

    def command(self, line):
        """Gives HAProxy's administrator's socket a command."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.state / "haproxy.sock"))
            client.sendall(line.encode() + b"\n")
            return client.recv(65536)

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.state.glob("*.log")))

    def has_ended(self, i):
        # The pid file goes when the script has seen the end of the replica.
        return not (self.state / f"replica{i + 1}.pid").exists()

    async def statistics(self):
        """HAProxy's line for every replica."""
        answer = await ask(self.stats_port, "GET", "/;csv")
        rows = csv.DictReader(io.StringIO(answer.body.decode().removeprefix("# ")))
        return [row for row in rows if row["pxname"] == "replicas" and row["svname"].startswith("replica")]


async def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise AssertionError("what was waited for did not happen")
        await asyncio.sleep(0.05)


class Load:
    """Clients that ask, one request behind the other, until they are stopped."""

    def __init__(self, port, n_wholes=12, n_streams=4):
        self.port, self.n_wholes, self.n_streams = port, n_wholes, n_streams
        self.wholes, self.streams = [], []
        self.is_stopped = False

    async def ask_wholes(self):
        while not self.is_stopped:
            self.wholes.append(await ask(self.port, "POST", "/v1/completions", WHOLE))

    async def ask_streams(self):
        while not self.is_stopped:
            self.streams.append(await ask(self.port, "POST", "/v1/completions", STREAM))

    async def run_while(self, happening):
        clients = [asyncio.create_task(self.ask_wholes()) for _ in range(self.n_wholes)]
        clients += [asyncio.create_task(self.ask_streams()) for _ in range(self.n_streams)]
        try:
            await happening
        finally:
            self.is_stopped = True
            await asyncio.gather(*clients)


@unittest.skipUnless(HAPROXY, "haproxy is not installed (scripts/bootstrap.sh --with-deploy)")
class ReplicasTest(unittest.TestCase):
    def assert_answered(self, answer):
        self.assertEqual(answer.status, 200, answer.body)
        self.assertTrue(answer.is_whole, answer)
        [choice] = answer.json()["choices"]
        self.assertEqual(choice["finish_reason"], "length")
        self.assertEqual(answer.json()["usage"]["completion_tokens"], WHOLE["max_tokens"])

    def assert_completed(self, stream):
        self.assertEqual(stream.status, 200, stream.body)
        self.assertTrue(stream.is_done(), stream.body[-300:])
        reasons = [event["choices"][0].get("finish_reason") for event in stream.events() if event["choices"]]
        self.assertEqual([reason for reason in reasons if reason], ["length"])

    def test_a_killed_replica_costs_no_answer_and_its_streams_end_with_an_error(self):
        with Replicas(2) as replicas:
            load = Load(replicas.port, n_wholes=4, n_streams=8)

            async def kill_one():
                # More requests than those that are asked for whole: two of them at least are streams.
                await wait_until(lambda: self.has_running(replicas, 0, load.n_wholes + 2))
                os.kill(replicas.pids[0], signal.SIGKILL)
                n_before = len(load.wholes)

                async def traffic_went_on():
                    return len(load.wholes) > n_before + 20

                await wait_until(traffic_went_on)

            asyncio.run(load.run_while(kill_one()))
            for answer in load.wholes:
                self.assert_answered(answer)
            completed = [stream for stream in load.streams if stream.is_whole]
            for stream in completed:
                self.assert_completed(stream)
            broken = [stream for stream in load.streams if not stream.is_whole]
            self.assertGreater(len(broken), 0)
            for stream in broken:
                self.assertNotIn(b"[DONE]", stream.body)
                self.assertNotIn(b'"finish_reason":"', stream.body.replace(b" ", b""))
            # The balancer asks a replica twice before it is down, and twenty answers may be quicker.
            async def is_down():
                [gone, alive] = await replicas.statistics()
                return gone["status"].startswith("DOWN") and alive["status"] == "UP"

            asyncio.run(wait_until(is_down))
            self.assertIsNone(replicas.script.poll())
        self.assertEqual(replicas.script.returncode, 0)

    async def has_running(self, replicas, i, n_requests):
        answer = await ask(replicas.ports[i], "GET", "/metrics")
        running = re.search(rb"^vllm:num_requests_running(?:\{.*\})? (\d+)", answer.body, re.MULTILINE)
        return running is not None and int(running.group(1)) >= n_requests

    def test_a_drained_replica_leaves_without_a_failed_request(self):
        with Replicas(2) as replicas:
            load = Load(replicas.port)

            async def drain_one():
                await asyncio.sleep(1)
                os.kill(replicas.pids[0], signal.SIGTERM)

                async def has_ended():
                    return replicas.has_ended(0)

                await wait_until(has_ended)
                await asyncio.sleep(0.5)

            asyncio.run(load.run_while(drain_one()))
            self.assertGreater(len(load.wholes), 20)
            for answer in load.wholes:
                self.assert_answered(answer)
            for stream in load.streams:
                self.assert_completed(stream)
        self.assertEqual(replicas.script.returncode, 0)

    def test_the_shortest_queue_counts_tokens_not_requests(self):
        with Replicas(2) as replicas:
            async def spread():
                long_one = asyncio.create_task(ask(replicas.port, "POST", "/v1/completions", dict(STREAM, n=8)))

                async def is_lighter():
                    rows = await replicas.statistics()
                    return any(int(row["weight"]) < 100 for row in rows)

                await wait_until(is_lighter)
                rows = await replicas.statistics()
                idle = max(range(2), key=lambda i: int(rows[i]["weight"]))
                n_before = int(rows[idle]["stot"])
                answers = await asyncio.gather(
                    *(ask(replicas.port, "POST", "/v1/completions", WHOLE) for _ in range(3)))
                n_behind = int((await replicas.statistics())[idle]["stot"])
                await long_one
                return answers, n_behind - n_before

            answers, n_idle = asyncio.run(spread())
            for answer in answers:
                self.assert_answered(answer)
            self.assertGreaterEqual(n_idle, 2)

    def test_without_a_replica_the_balancer_answers_in_the_shape_of_an_error(self):
        with Replicas(1) as replicas:
            # The agent's `ready` would end the maintenance.
            replicas.command("disable agent replicas/replica1")
            replicas.command("set server replicas/replica1 state maint")
            for method, path, content, status, wait in (("POST", "/v1/completions", WHOLE, 503, "1"),
                                                        ("GET", "/health", None, 503, "1"),
                                                        ("GET", "/metrics", None, 404, None)):
                answer = asyncio.run(ask(replicas.port, method, path, content))
                self.assertEqual(answer.status, status)
                self.assertEqual(set(answer.json()["error"]), {"message", "type", "param", "code"})
                self.assertEqual(answer.json()["error"]["code"], status)
                self.assertEqual(answer.headers.get("retry-after"), wait)
            replicas.command("set server replicas/replica1 state ready")
            self.assertEqual(asyncio.run(ask(replicas.port, "GET", "/health")).status, 200)
            # Without any replica there is nothing to keep up.
            os.kill(replicas.pids[0], signal.SIGKILL)
            self.assertEqual(replicas.script.wait(timeout=30), 1)


class ConfigurationTest(unittest.TestCase):
    @unittest.skipUnless(HAPROXY, "haproxy is not installed (scripts/bootstrap.sh --with-deploy)")
    def test_every_way_to_balance_is_a_configuration_and_another_is_none(self):
        for balance, status in (("shortest-queue", 0), ("leastconn", 0), ("roundrobin", 0), ("random", 1)):
            environment = dict(os.environ, KVLATHE_BALANCE=balance, KVLATHE_RUN="/tmp")
            done = subprocess.run([HAPROXY, "-c", "-f", DEPLOY / "haproxy/haproxy.cfg"], capture_output=True,
                                  env=environment)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertNotIn(b"WARNING", done.stderr)
        # As it is copied to /etc/haproxy.
        done = subprocess.run([HAPROXY, "-c", "-f", DEPLOY / "haproxy/haproxy.cfg"], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_wrong_words_are_refused_before_anything_starts(self):
        for words, needle in ((["0"], "number of replicas"), (["2", "--port", "1"], "is chosen here"), (["--port"], "value"),
                              (["--balance", "random", "2"], "shortest-queue"), (["--colour", "2"], "unknown option"),
                              (["--state", "/nonexistent", "--stop"], "nothing runs")):
            done = subprocess.run([DEPLOY / "replicas.sh", *words], capture_output=True, text=True)
            self.assertIn(done.returncode, (1, 2), words)
            self.assertIn(needle, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
