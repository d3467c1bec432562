"""What an audit says: of a server that runs, and of its log.

Usage: audit_cli_test.py KVLATHE MODEL_DIRECTORY [TEST...]
"""

import json
import time

import cli_support
from cli_support import KVLATHE, MODEL
from server_under_test import Server

KIVI = "kivi(bits=2,group=32,run=64)"
LEVELS = ("--kv", KIVI, "--kv", "int8", "--kv", "none")
OTHER_MODEL = MODEL.parent / "lathe-small"
TEXT = "The rain fell in torrents, except at occasional intervals, when it was checked by a violent gust of wind. "


class AuditCase(cli_support.CommandLineCase):
    def serve(self, *arguments):
        return Server(KVLATHE, "-m", MODEL, *LEVELS, *arguments, environment=self.environment)

    def ask(self, server, kv=None, max_tokens=40, **more):
        body = {"prompt": TEXT * 3, "max_tokens": max_tokens, "ignore_eos": True, "seed": 3, **more}
        status, answer, _ = server.post("/v1/completions", body if kv is None else dict(body, kv=kv))
        self.assertEqual(status, 200, answer)

    def rows(self, server):
        status, audit, _ = server.ask("GET", "/audit")
        self.assertEqual(status, 200, audit)
        return {row["kv"]: row for row in audit["rows"]}

    def wait_for_answers(self, server, kv, n_answers, seconds=60):
        deadline = time.monotonic() + seconds
        while self.rows(server).get(kv, {}).get("answers") != n_answers:
            self.assertLess(time.monotonic(), deadline, self.rows(server))
            time.sleep(0.05)

    def log_of(self, lines, name="server.log"):
        path = self.folder / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    def audit(self, log, *arguments, model=MODEL):
        """(lines of answers, the summary)"""
        done = self.run_verb("audit", log, "-m", model, "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return lines[:-1], lines[-1]


class Serving(AuditCase):
    def test_says_what_the_log_says_afterwards(self):
        with self.serve("--audit", "1", "--log-tokens") as server:
            for kv in (KIVI, KIVI, "int8", "none"):
                self.ask(server, kv)
            self.wait_for_answers(server, KIVI, 2)
            self.wait_for_answers(server, "int8", 1)
            live = self.rows(server)
            metrics = server.metrics()
            server.end()
            log = server.whole_log()
        self.assertEqual(set(live), {KIVI, "int8"})  # none is not compared with itself
        self.assertGreater(live[KIVI]["kl"], live["int8"]["kl"])
        self.assertGreater(live["int8"]["kl"], 0)
        self.assertLessEqual(live[KIVI]["kl_median"], live[KIVI]["kl_p999"])
        labels = f'{{kv="{KIVI}",model_name="{MODEL.name}"}}'
        self.assertEqual(metrics["kvlathe_audit_requests_total" + labels], 2)
        self.assertEqual(metrics["kvlathe_audit_positions_total" + labels], 80)
        self.assertAlmostEqual(metrics["kvlathe_audit_kl_sum" + labels] / 80, live[KIVI]["kl"], places=6)
        self.assertEqual(metrics["kvlathe_audit_agreements_total" + labels], round(80 * live[KIVI]["top1_agreement"]))

        answers, summary = self.audit(self.log_of(log))
        self.assertEqual([answer["kv"] for answer in answers], [KIVI, KIVI, "int8", "none"])
        self.assertEqual(len({answer["id"] for answer in answers}), 4)
        rows = {row["kv"]: row for row in summary["rows"]}
        self.assertEqual(rows["none"]["kl"], 0)
        for kv, row in live.items():
            self.assertAlmostEqual(rows[kv]["kl"], row["kl"], delta=0.02 * row["kl"] + 1e-5)
            self.assertEqual((rows[kv]["answers"], rows[kv]["positions"]), (row["answers"], row["positions"]))
        _, other = self.audit(self.log_of(log), "--kv", "int8")
        self.assertEqual([(row["kv"], row["positions"]) for row in other["rows"]], [("int8", 160)])

    def test_requests_with_a_rate_are_told_apart(self):
        kv = "fdc(rate=0.5,resident=full)"
        with Server(KVLATHE, "-m", MODEL, "--kv", kv, "--audit", "1", "--log-tokens", environment=self.environment) as server:
            for rate in ({}, {"rate": 0.25}, {"rate": 0.7512}):
                self.ask(server, **rate)
            server.wait_for_metric("kvlathe_audit_requests_total", 3)
            rows = server.ask("GET", "/audit")[1]["rows"]
            server.end()
            log = self.log_of(server.whole_log())
        self.assertEqual([row["rate"] for row in rows], [None, 0.25, 0.75])  # to hundredths
        self.assertLess(rows[1]["kl"], rows[0]["kl"])
        self.assertLess(rows[0]["kl"], rows[2]["kl"])
        _, summary = self.audit(log)
        self.assertEqual([row["kv"] for row in summary["rows"]], [kv, f"{kv} at 0.25", f"{kv} at 0.7512"])
        for row, of_server in zip(summary["rows"], rows):
            self.assertAlmostEqual(row["kl"], of_server["kl"], delta=0.02 * row["kl"])

    def test_without_it_nothing_is_audited_or_logged(self):
        with self.serve() as server:
            self.ask(server)
            self.assertEqual(server.ask("GET", "/audit")[0], 404)
            self.assertFalse([name for name in server.metrics() if "audit" in name])
            server.end()
            self.assertNotIn("answer", [event["event"] for event in server.whole_log()])

    def test_probes_and_answers_without_tokens_are_none(self):
        with self.serve("--audit", "1", "--log-tokens") as server:
            server.ask("GET", "/health")
            self.ask(server, max_tokens=0, echo=True)
            self.ask(server, max_tokens=3, n=2)
            self.wait_for_answers(server, KIVI, 2)
            server.end()
            ids = [event["id"] for event in server.whole_log() if event["event"] == "answer"]
        self.assertEqual(sorted(id[-2:] for id in ids), ["/0", "/1"])

    def test_what_its_memory_does_not_hold_is_skipped(self):
        with self.serve("--audit", "1", "--audit-memory", "64KiB") as server:
            self.ask(server)
            server.wait_for_metric("kvlathe_audit_skipped_total", 1)
            self.assertEqual(server.ask("GET", "/audit")[1]["skipped"], {"too_long": 1})
            self.assertEqual(self.rows(server), {})

    def test_acts_only_where_it_is_told(self):
        def levels_of(server):
            return [event["kv"] for event in server.log if event["event"] == "request" and event["route"] == "/v1/completions"]

        for acts in ((), ("--audit-acts", "0")):
            with self.serve("--audit", "1", *acts) as server:
                for i in range(1, 8):
                    self.ask(server, max_tokens=80)
                    self.wait_for_answers(server, KIVI, i)
                self.ask(server)
                self.ask(server, kv=KIVI)
                server.end()
                changes = [event for event in server.whole_log() if event["event"] == "audit_level"]
                # Nothing but none is within nothing.
                self.assertEqual([event["kv"] for event in changes], ["none"] if acts else [])
                self.assertEqual(levels_of(server)[-2:], ["none" if acts else KIVI, KIVI])

    def test_options_that_do_not_go_together_are_refused(self):
        for needle, *arguments in (("--audit SHARE", "--audit-acts", "0.1"),
                                   ("--audit SHARE", "--audit-memory", "1GiB"),
                                   ("there is no other", "--audit", "0.1"),
                                   ("there is no other", "--audit", "0.1", "--kv", "none"),
                                   ("there is one", "--audit", "0.1", "--audit-acts", "0.1", "--kv", "int8"),
                                   ("--audit-memory", "--audit", "0.1", "--kv", "int8", "--audit-memory", "much"),
                                   ("--audit", "--audit", "2", "--kv", "int8")):
            self.assert_refused(2, needle, "serve", "-m", MODEL, *arguments)


class Log(AuditCase):
    def answer(self, tokens, n_read, model_hash, kv=KIVI):
        return {"event": "answer", "id": "x", "model_hash": model_hash, "kv": kv, "rate": None, "read": n_read,
                "cache_prompt": n_read, "max_tokens": len(tokens) - n_read, "tokens": tokens}

    def model_hash(self):
        with self.serve("--log-tokens") as server:
            self.ask(server)
            server.end()
            return next(event["model_hash"] for event in server.whole_log() if event["event"] == "answer")

    def test_says_what_compare_says_of_the_same_tokens(self):
        text = self.folder / "text.txt"
        text.write_text((MODEL / "sample.txt").read_text()[:900])
        tokens = self.json_of("tokenize", "-m", MODEL, stdin=text.read_bytes())["ids"]
        self.assertLess(len(tokens), 512)
        log = self.log_of([self.answer(tokens, len(tokens) // 2, self.model_hash())])
        for kv in (KIVI, "int8", "h2o(keep=0.5)"):
            # In other steps the same bits, so that only the sums over the vocabulary are rounded otherwise.
            compared = self.json_of("compare", "-m", MODEL, "--kv", kv, "--text", text, "--no-latency", "-c", 512, "--deterministic")
            _, summary = self.audit(log, "--kv", kv, "--deterministic")
            wanted, row = compared["rows"][0], summary["rows"][0]
            self.assertEqual(row["positions"], compared["tokens"])
            self.assertAlmostEqual(row["kl"], wanted["kl"], delta=1e-3 * wanted["kl"] + 1e-7)
            self.assertAlmostEqual(row["top1_agreement"], wanted["top1_agreement"], places=9)

    def test_what_is_printed_for_people_has_a_line_for_each_answer(self):
        answer = self.answer([1] + list(range(5, 100)), 50, self.model_hash())
        done = self.run_verb("audit", self.log_of(["a note", answer, dict(answer, id="y"), {"event": "drain"}]), "-m", MODEL)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        lines = done.stdout.decode().splitlines()
        self.assertTrue(lines[1].startswith("x ") and lines[2].startswith("y "), lines)
        self.assertTrue(lines[-1].endswith(KIVI) and lines[-1].split()[:2] == ["2", "92"], lines)

    def test_logs_that_cannot_be_audited_are_refused(self):
        model_hash = self.model_hash()
        good = self.answer([1, 5, 6, 7, 8, 9], 3, model_hash)
        whole = json.dumps(good)
        self.assert_refused(1, "no file that can be read", "audit", self.folder / "missing", "-m", MODEL)
        for lines in ([], ["some text"], [{"event": "listening"}]):
            self.assert_refused(2, "--log-tokens", "audit", self.log_of(lines), "-m", MODEL)
        for bad, needle in ((whole[:-20], "server.log:2: this line is cut off"),
                            (dict(good, tokens=[1, 2, -3]), "server.log:2: an answer that cannot be read"),
                            (dict(good, tokens=[1, 5, 1 << 30]), "outside the vocabulary"),
                            (dict(good, read=7), "server.log:2: 7 of 6 tokens were read"),
                            ({k: v for k, v in good.items() if k != "tokens"}, '"tokens" is missing')):
            self.assert_refused(1, needle, "audit", self.log_of([good, bad]), "-m", MODEL)
        self.assert_refused(2, "of another model", "audit", self.log_of([good]), "-m", OTHER_MODEL)
        self.assert_refused(2, "nonsense", "audit", self.log_of([dict(good, kv="nonsense")]), "-m", MODEL)

    def test_answers_that_do_not_fit_are_skipped_and_said(self):
        good = self.answer([1, 5, 6, 7, 8, 9], 3, self.model_hash())
        empty = dict(good, read=6, cache_prompt=6, max_tokens=5)
        long = self.answer([1] + [5 + i % 200 for i in range(3000)], 100, good["model_hash"])
        answers, summary = self.audit(self.log_of([good, empty, long]))
        self.assertEqual(summary["skipped"], 2)
        self.assertEqual(["skipped" in answer for answer in answers], [False, True, True])
        answers, summary = self.audit(self.log_of([good]), "--kv-memory", "4KiB")
        self.assertIn("KV memory", answers[0]["skipped"])
        self.assertEqual(summary["rows"], [])


if __name__ == "__main__":
    cli_support.main()
