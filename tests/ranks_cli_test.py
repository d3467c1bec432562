"""A model that two ranks share, behind a real HAProxy and beside an ordinary replica: a rank is killed, stopped, or out of memory; what
is refused when a group starts; and what `bench model` says of its ranks. Called as ranks_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]; without mpirun (and, where
it is needed, HAProxy) everything is skipped."""

import asyncio
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from serve_client import ask
from server_under_test import Server

KVLATHE, MODEL = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
DEPLOY = pathlib.Path(__file__).resolve().parent.parent / "deploy"
HAPROXY = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
MPIRUN = shutil.which("mpirun")
PRLIMIT = shutil.which("prlimit")
HOST = socket.gethostname()
TIMEOUT = 3  # --rank-timeout, seconds
# Tests may run as root, and on fewer processors than ranks.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
STREAM = {"model": "nano", "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0, "stream": True}
WHOLE = {"model": "nano", "prompt": "In the morning", "max_tokens": 60, "ignore_eos": True, "temperature": 0}


def mpirun(n):
    return (MPIRUN, "--bind-to", "none", "-n", str(n))


def options(n_threads=1):
    return ("-m", MODEL, "--served-model-name", "nano", "-t", n_threads, "--agent-port", "0")


class Group(Server):
    """`kvlathe serve` on two ranks."""

    def __init__(self, *more):
        super().__init__(KVLATHE, *options(), "--tp", 2, "--rank-timeout", TIMEOUT, *more, environment=ENVIRONMENT, starter=mpirun(2))
        self.pids = self.find_ranks()

    def find_ranks(self):
        """The processes of the ranks, in their order."""
        found = {}
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in map(int, children):
            words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks = [int(word.split(b"=")[1]) for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
            found.update((rank, pid) for rank in ranks)
        return [found[rank] for rank in range(2)]

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.terminate()  # mpirun ends what it has started
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        super().__exit__(*error)

    def said(self):
        """What the ranks, and mpirun behind them, wrote that is no event and no note."""
        lines = [event["text"] for event in self.whole_log() if event["event"] == "text"]
        return [line for line in lines if not line.startswith("kvlathe: note: ")]

    def processor_seconds(self):
        ticks = 0
        for pid in self.pids:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def is_running(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")  # not one that its parent has yet to see
    except FileNotFoundError:
        return False


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Balancer:
    """HAProxy with the shipped configuration in front of a group and of an ordinary replica; each answer says whose it is."""

    def __init__(self, group, alone):
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_ranks_"))
        self.port, self.stats_port = free_ports(2)
        shipped = (DEPLOY / "haproxy/haproxy.cfg").read_text()
        config = re.sub(r"^    server .*\n", "", shipped, flags=re.MULTILINE) + "    http-response set-header x-replica %s\n"
        for name, server in (("group", group), ("alone", alone)):
            config += f"    server {name} 127.0.0.1:{server.port} agent-port {server.agent_port}\n"
        (self.state / "haproxy.cfg").write_text(config)
        environment = dict(os.environ, KVLATHE_RUN=str(self.state), KVLATHE_BIND=f"127.0.0.1:{self.port}",
                           KVLATHE_STATS=f"127.0.0.1:{self.stats_port}")
        self.process = subprocess.Popen([HAPROXY, "-db", "-f", self.state / "haproxy.cfg"], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.state)

    async def wait_until_it_answers(self):
        deadline = time.monotonic() + 20
        while (await ask(self.port, "GET", "/health")).status != 200:
            if time.monotonic() > deadline:
                raise AssertionError("the balancer does not answer")
            await asyncio.sleep(0.05)


class Load:
    """Clients that ask one request behind the other until they are stopped."""

    def __init__(self, port, n_wholes=3, n_streams=6):
        self.port, self.n_wholes, self.n_streams = port, n_wholes, n_streams
        self.answers = {"wholes": [], "streams": []}
        self.is_stopped = False

    async def ask_on(self, kind, content):
        while not self.is_stopped:
            begin = time.monotonic()
            answer = await ask(self.port, "POST", "/v1/completions", content)
            answer.begin, answer.end = begin, time.monotonic()
            self.answers[kind].append(answer)

    async def run_while(self, happening):
        clients = [asyncio.create_task(self.ask_on("wholes", WHOLE)) for _ in range(self.n_wholes)]
        clients += [asyncio.create_task(self.ask_on("streams", STREAM)) for _ in range(self.n_streams)]
        try:
            return await happening
        finally:
            self.is_stopped = True
            await asyncio.gather(*clients)


def is_right(answer):
    if answer.status != 200 or not answer.is_whole:
        return False
    if answer.headers["content-type"].startswith("application/json"):
        return answer.json()["usage"]["completion_tokens"] == WHOLE["max_tokens"]
    reasons = [event["choices"][0].get("finish_reason") for event in answer.events() if event["choices"]]
    return answer.is_done() and [reason for reason in reasons if reason] == ["length"]


@unittest.skipUnless(MPIRUN, "mpirun is not installed (scripts/bootstrap.sh)")
@unittest.skipUnless(HAPROXY, "haproxy is not installed (scripts/bootstrap.sh --with-deploy)")
class FailureTest(unittest.TestCase):
    def fail_under_load(self, harm, seconds):
        """Harms a rank of a group that has streams under way. What ran in the group may end with an error, and nothing else."""
        with Group() as group, Server(KVLATHE, *options()) as alone, Balancer(group, alone) as balancer:
            load = Load(balancer.port)

            async def wait_for_end():
                await balancer.wait_until_it_answers()
                await self.wait_for_running(group, load.n_wholes // 2 + 2)
                begin = time.monotonic()
                harm(group.pids)
                while group.process.poll() is None and time.monotonic() < begin + seconds + 20:
                    await asyncio.sleep(0.01)
                end = time.monotonic()
                await self.wait_for_more(load, 10)
                return begin, end

            async def run():
                await balancer.wait_until_it_answers()
                return await load.run_while(wait_for_end())

            begin, end = asyncio.run(run())
            self.assertLessEqual(end - begin, seconds, "the group did not end in time")
            self.assert_only_the_group_failed(load, begin, end)
            self.assert_one_line(group.said())
            self.assertNotEqual(group.process.returncode, 0)
            for pid in group.pids:
                self.assertFalse(is_running(pid))
            self.assertIsNone(alone.process.poll())

    async def wait_for_running(self, group, n_requests):
        deadline = time.monotonic() + 20
        while True:
            answer = await ask(group.port, "GET", "/metrics")
            running = re.search(rb"^vllm:num_requests_running(?:\{.*\})? (\d+)", answer.body, re.MULTILINE)
            if running is not None and int(running.group(1)) >= n_requests:
                return
            self.assertLess(time.monotonic(), deadline, "the group has no requests")
            await asyncio.sleep(0.02)

    async def wait_for_more(self, load, n_answers):
        n_before, deadline = len(load.answers["wholes"]), time.monotonic() + 20
        while len(load.answers["wholes"]) < n_before + n_answers:
            self.assertLess(time.monotonic(), deadline, "the other replica does not go on")
            await asyncio.sleep(0.02)

    def assert_only_the_group_failed(self, load, begin, end):
        for answer in load.answers["wholes"]:
            self.assertTrue(is_right(answer), answer)
        broken = [stream for stream in load.answers["streams"] if not is_right(stream)]
        self.assertGreater(len(broken), 0)
        self.assertLessEqual(len(broken), load.n_streams)
        for stream in broken:
            self.assertEqual(stream.headers.get("x-replica"), "group", stream)
            self.assertLess(stream.begin, end)
            self.assertGreaterEqual(stream.end, begin)
            self.assertNotIn(b"[DONE]", stream.body)
        replicas = {answer.headers["x-replica"] for answer in load.answers["streams"] if is_right(answer)}
        self.assertIn("alone", replicas)

    def assert_one_line(self, said):
        """That names rank and host: kvlathe's own, or mpirun's, who is told first that a process is gone."""
        self.assertLessEqual(len([line for line in said if line.startswith("kvlathe: ")]), 1, said)
        naming = [line for line in said if re.search(rf"\brank 1\b.* on (node )?{re.escape(HOST)}\b", line)]
        self.assertEqual(len(naming), 1, said)

    def test_a_killed_rank_ends_the_group_and_nothing_else(self):
        self.fail_under_load(lambda pids: os.kill(pids[1], signal.SIGKILL), 5)

    def test_a_stopped_rank_ends_the_group_when_its_time_is_up(self):
        self.fail_under_load(lambda pids: os.kill(pids[1], signal.SIGSTOP), TIMEOUT + 2)

    @unittest.skipUnless(PRLIMIT, "prlimit is not installed")
    def test_a_rank_without_memory_ends_the_group(self):
        self.fail_under_load(lambda pids: limit_memory(pids[1]), 5)


def limit_memory(pid):
    """From now on the process gets no more than it has."""
    subprocess.run([PRLIMIT, "--pid", str(pid), f"--as={resource.getpagesize()}"], check=True)


@unittest.skipUnless(MPIRUN, "mpirun is not installed (scripts/bootstrap.sh)")
class IdleTest(unittest.TestCase):
    def test_ranks_that_wait_for_work_sleep(self):
        with Group() as group:
            self.assertEqual(group.post("/v1/completions", WHOLE)[0], 200)
            before, begin = group.processor_seconds(), time.monotonic()
            time.sleep(3)
            share = (group.processor_seconds() - before) / (time.monotonic() - begin)
            self.assertLess(share, 0.05)
            self.assertEqual(group.post("/v1/completions", WHOLE)[0], 200)
            # Rank 0 has the server: it drains, and the others end with it.
            os.kill(group.pids[0], signal.SIGTERM)
            self.assertEqual(group.process.wait(20), 0)
            self.assertEqual(group.said(), [])


    def test_a_stopped_rank_is_found_without_requests(self):
        with Group() as group:
            os.kill(group.pids[1], signal.SIGSTOP)
            self.assertNotEqual(group.process.wait(TIMEOUT + 3), 0)  # it is asked once a second
            self.assertTrue(any(f"rank 1 on {HOST} " in line for line in group.said()))


@unittest.skipUnless(MPIRUN, "mpirun is not installed (scripts/bootstrap.sh)")
class BenchTest(unittest.TestCase):
    def rows(self, *more, starter=()):
        command = [*starter, KVLATHE, "bench", "model", "-m", MODEL, "-p", 32, "-n", 8, "-d", "0,200", "-r", 1, "-t", 1, "--no-bandwidth", *more]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, env=dict(os.environ, **ENVIRONMENT))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_it_says_what_ranks_compute_wait_and_send(self):
        specs = ("--kv", "none", "--kv", "int8")
        rows = json.loads(self.rows("--tp", 2, "--tell-waiting", "--json", *specs, starter=mpirun(2)))["rows"]
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertEqual(row["ranks"], {"tp": 2, "pp": 1})
            shares = row["rank_share"]
            self.assertEqual(list(shares), ["compute", "waiting", "messages"])
            self.assertAlmostEqual(sum(shares.values()), 1)
            for share in shares.values():
                self.assertGreater(share, 0)
        table = self.rows("--pp", 2, starter=mpirun(2)).splitlines()
        self.assertTrue(table[0].endswith("| ranks | compute | waiting | messages |"))
        for line in table[2:]:
            self.assertRegex(line, r"\| 1 x 2 \| [0-9.]+% \|  \| [0-9.]+% \|$")

    def test_one_process_has_no_ranks(self):
        rows = json.loads(self.rows("--json"))["rows"]
        self.assertFalse(any("ranks" in row or "rank_share" in row for row in rows))


@unittest.skipUnless(MPIRUN, "mpirun is not installed (scripts/bootstrap.sh)")
class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvlathe_ranks_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.text = self.folder / "text.txt"
        self.text.write_text((MODEL / "sample.txt").read_text()[:1500])

    def run_of(self, *more, starter=()):
        command = [*starter, KVLATHE, "run", "-m", MODEL, "-t", 1, "-c", 1024, "--dtype", "f32", "--temp", 0, "--ignore-eos", "--json", *more]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, env=dict(os.environ, **ENVIRONMENT),
                              stdin=subprocess.DEVNULL)

    def json_of(self, *more, starter=()):
        done = self.run_of(*more, starter=starter)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_ranks_say_what_one_process_says_and_hold_its_bytes(self):
        for kv in ("none", "kivi(bits=4,group=64)", "lathe(ratio=4,heads=own)"):
            asked = ("--kv", kv, "-f", self.text, "-n", 24)
            alone = self.json_of(*asked)
            self.assertNotIn("kv_bytes_by_rank", alone)
            for ranks in (("--tp", 2), ("--pp", 2)):
                with self.subTest(kv=kv, ranks=ranks):
                    shared = self.json_of(*asked, *ranks, starter=mpirun(2))
                    self.assertEqual(shared["ids"], alone["ids"])
                    self.assertEqual(shared["kv_bytes"], alone["kv_bytes"])
                    self.assertEqual(shared["kv_fraction"], alone["kv_fraction"])
                    self.assertEqual(len(shared["kv_bytes_by_rank"]), 2)
                    self.assertEqual(sum(shared["kv_bytes_by_rank"]), alone["kv_bytes"])

    def test_a_session_holds_the_parts_of_all_ranks(self):
        kv = ("--kv", "kivi(bits=4,group=64)")
        alone = self.json_of(*kv, "-f", self.text, "-n", 40)
        session = self.folder / "saved.kvs"
        first = self.json_of(*kv, "-f", self.text, "-n", 20, "--tp", 2, "--save-session", session, starter=mpirun(2))
        second = self.json_of(*kv, "-n", 20, "--tp", 2, "--load-session", session, starter=mpirun(2))
        self.assertEqual(first["ids"] + second["ids"], alone["ids"])
        self.assertGreater(second["restored_tokens"], len(first["ids"]))
        refused = self.run_of(*kv, "-n", 20, "--load-session", session)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("saved.kvs", refused.stderr)

    def test_kept_prefixes_hold_the_parts_of_all_ranks(self):
        asked = ("--kv", "kivi(bits=4,group=64)", "-f", self.text, "-n", 20, "--tp", 2, "--prefix-dir", self.folder / "prefixes")
        first, second = (self.json_of(*asked, starter=mpirun(2)) for _ in range(2))
        self.assertEqual(first["cached_tokens"], 0)
        self.assertGreater(second["cached_tokens"], first["prompt_tokens"] // 2)
        self.assertEqual(second["ids"], first["ids"])


@unittest.skipUnless(MPIRUN, "mpirun is not installed (scripts/bootstrap.sh)")
class RefusalTest(unittest.TestCase):
    def run_ranks(self, *ranks):
        """Each rank's words behind `kvlathe`; what kvlathe said."""
        command = [MPIRUN, "--bind-to", "none"]
        for words in ranks:
            command += [*([":"] if words is not ranks[0] else []), "-n", "1", KVLATHE, *words]
        return self.run_command(command)

    def run_command(self, command):
        begin = time.monotonic()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, **ENVIRONMENT))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(done.stdout, "")
        return done.returncode, [line for line in done.stderr.split("\n") if line.startswith("kvlathe: ")]

    def assert_refused(self, outcome, *needles):
        status, said = outcome
        self.assertEqual(status, 2, said)
        self.assertEqual(len(said), 1, said)
        for needle in needles:
            self.assertIn(needle, said[0])

    def run_words(self, *more, model=MODEL):
        return ["run", "-m", model, "-p", "The carriage", "-n", "2", "-t", "1", *more]

    def test_another_cache(self):
        ranks = [self.run_words("--tp", "2", "--kv", kv) for kv in ("none", "int8")]
        self.assert_refused(self.run_ranks(*ranks), f"rank 1 on {HOST}", "--kv int8", "--kv none")

    def test_another_model_of_the_same_name(self):
        with tempfile.TemporaryDirectory(prefix="kvlathe_ranks_") as folder:
            # As on two machines with a folder each: the same command, and one weight differs.
            other = pathlib.Path(folder) / "model"
            shutil.copytree(MODEL, other)
            with open(other / "model.safetensors", "r+b") as weights:
                weights.seek(-2, os.SEEK_END)
                last = weights.read(1)
                weights.seek(-2, os.SEEK_END)
                weights.write(bytes([last[0] ^ 1]))
            script = pathlib.Path(folder) / "rank.sh"
            script.write_text(f'#!/bin/sh\ncd "$OMPI_COMM_WORLD_RANK" && exec "{KVLATHE}" "$@"\n')
            script.chmod(0o755)
            for rank, model in enumerate((MODEL, other)):
                (pathlib.Path(folder) / str(rank)).mkdir()
                (pathlib.Path(folder) / str(rank) / "nano").symlink_to(model)
            command = [*mpirun(2), "-wdir", folder, script, *self.run_words("--tp", "2", model="nano")]
            self.assert_refused(self.run_command(command), f"rank 1 on {HOST}", "model")

    def test_another_number_of_ranks(self):
        command = [*mpirun(2), KVLATHE, *self.run_words("--tp", "2", "--pp", "2")]
        self.assert_refused(self.run_command(command), "--tp 2", "--pp 2", "mpirun -n 4")

    def test_processes_that_share_nothing(self):
        self.assert_refused(self.run_command([*mpirun(2), KVLATHE, *self.run_words()]), "--tp 2")

    def test_no_mpirun(self):
        self.assert_refused(self.run_command([KVLATHE, *self.run_words("--tp", "2")]), "mpirun -n 2")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
