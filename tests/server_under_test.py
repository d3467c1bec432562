"""A `kvlathe serve` of a test's own: started on a free port, spoken to over HTTP, ended with a signal."""

import http.client
import json
import os
import queue
import signal
import subprocess
import threading
import time

START_SECONDS = 120


class Server:
    """Use as a context manager. `log` has the lines that it wrote, those of JSON parsed. `starter`: words before the command."""

    def __init__(self, kvlathe, *arguments, environment=None, patience=60, starter=()):
        command = [*starter, str(kvlathe), "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, **(environment or {})))
        self.patience = patience  # seconds that an answer may take
        self.log, self._listening = [], queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            event = self._listening.get(timeout=max(START_SECONDS, patience))
        except queue.Empty:
            event = None
        if event is None:
            self.process.kill()
            raise AssertionError(f"no server: {self.log}")
        self.port, self.agent_port = event["port"], event.get("agent_port")

    def _read(self):
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "text", "text": line.rstrip("\n")}
            self.log.append(event)
            if event.get("event") == "listening":
                self._listening.put(event)
        self._listening.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()
        self.process.stdout.close()

    def connect(self, timeout=None):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout or self.patience)

    def ask(self, method, path, body=None, headers=None):
        """(status, parsed body, headers)"""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            text = response.read().decode()
            is_json = response.headers.get("Content-Type", "").startswith("application/json")
            return response.status, json.loads(text) if is_json else text, dict(response.headers)
        finally:
            connection.close()

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def stream(self, path, body):
        """The parsed events of a stream, to "[DONE]" or the end."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(dict(body, stream=True)))
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"{response.status}: {response.read()}")
        try:
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line[len(b"data: "):].strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
        finally:
            connection.close()

    def metrics(self):
        """{name or name{labels}: value}"""
        status, text, _ = self.ask("GET", "/metrics")
        if status != 200:
            raise AssertionError(f"/metrics: {status}")
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def metric(self, name):
        """The sum over the labels of one series."""
        return sum(value for key, value in self.metrics().items() if key.split("{")[0] == name)

    def wait_for_metric(self, name, wanted, seconds=20):
        deadline = time.monotonic() + seconds
        while (value := self.metric(name)) != wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is {value}, not {wanted}")
            time.sleep(0.02)

    def whole_log(self, timeout=60):
        """All that it wrote, once it has ended."""
        self.process.wait(timeout)
        self._reader.join()
        return self.log

    def end(self, signal_number=signal.SIGTERM, timeout=60):
        """The exit status."""
        self.process.send_signal(signal_number)
        return self.process.wait(timeout)
