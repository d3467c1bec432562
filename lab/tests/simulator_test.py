#!/usr/bin/env python3
"""lab/serving_parts/simulator.py: times and memory of a server in simulated time, and what pacing prompts does to the rate it bears."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from serving_parts import simulation, simulator  # noqa: E402
from serving_parts.simulator import Cache, Load, Policy, Request, Server, StepCost  # noqa: E402

# In milliseconds; a prompt's token costs about what a sequence that decodes does, as on few cores.
COST = StepCost(step=2, prompt_token=1.3, decode=1.2, cached=0.0014, pair=0.0005)
# Where a step costs much whatever it carries, as the weights of a larger model do.
COST_OF_WEIGHTS = StepCost(step=30, prompt_token=1.3, decode=1.2, cached=0.0014, pair=0.0005)
SHARE = 0.85  # of kvlathe serve


def serve(cache, policy, kv_tokens, requests, n_clients=16):
    server = Server(cache, policy, kv_tokens)
    server.run(requests, n_clients)
    return server


class SimulatorTest(unittest.TestCase):
    def test_one_request_takes_its_steps(self):
        request = Request(due=5, n_prompt=700, n_answer=3)
        serve(Cache(StepCost(10, 1, 3, 0.01, 0.001)), Policy(), 10000, [request])
        chunks = 10 + 512 + 0.001 * 512 * 256 + 10 + 188 + 0.001 * 188 * (512 + 94)
        decoding = (10 + 3 + 0.01 * 700) + (10 + 3 + 0.01 * 701)
        self.assertAlmostEqual(request.end, 5 + chunks + decoding)
        self.assertAlmostEqual(request.latency, (chunks + decoding) / 3)

    def test_requests_are_those_of_the_table_and_always_the_same(self):
        requests = simulator.draw_requests("arxiv", 4096, rate=2, n_requests=400, seed=3)
        self.assertEqual(requests, simulator.draw_requests("arxiv", 4096, rate=2, n_requests=400, seed=3))
        self.assertAlmostEqual(requests[-1].due, 200e3)
        self.assertLessEqual(max(r.n_prompt + r.n_answer for r in requests), 4096)
        self.assertAlmostEqual(sum(r.n_prompt for r in requests) / 400, 6300 * 4096 / 14564, delta=100)
        self.assertAlmostEqual(sum(r.n_answer for r in requests) / 400, 243 * 4096 / 14564, delta=5)

    def test_prompts_get_their_share_of_the_time(self):
        for share in (0.25, 0.5, 1):
            server = Server(Cache(StepCost(10, 3, 1, 0, 0)), Policy(max_batch_tokens=101, prompt_share=share), 10**6)
            server.waiting = [Request(0, 10, 10**4), Request(0, 10**4, 1)]
            of_prompts, begin = 0, 0
            for _ in range(2000):
                before, n_cached = server.now, server.running[1].n_cached if len(server.running) > 1 else 0
                server.step()
                if len(server.running) < 2:
                    break
                if n_cached == 0:
                    begin = server.now
                elif server.running[1].n_cached > n_cached:
                    of_prompts += server.now - before - 11
            self.assertAlmostEqual(of_prompts / (server.now - begin), share, delta=0.04)

    def test_who_gives_way_for_memory_comes_back(self):
        requests = [Request(0, 100, 300) for _ in range(6)]
        server = serve(Cache(COST), Policy(), 900, requests)
        self.assertGreater(server.n_preemptions, 0)
        ends = [r.end for r in requests]
        self.assertEqual(ends, sorted(ends))
        self.assertLess(ends[-1], 1e9)

    def test_a_fit_gives_back_what_rows_were_made_of(self):
        rows = []
        for n_parallel in (1, 8):
            for depth in (512, 2048):
                depths = [depth + (2 * t + 1) / 2 for t in range(16)]
                took = sum(COST.milliseconds([], [d] * n_parallel) for d in depths)
                rows.append({"n_prompt": 0, "n_gen": 16, "n_depth": depth, "n_parallel": n_parallel, "avg_ts": 16e3 * n_parallel / took})
        for depth in (0, 2048):
            took = COST.milliseconds([(512, depth)], [])
            rows.append({"n_prompt": 512, "n_gen": 0, "n_depth": depth, "n_parallel": 1, "avg_ts": 512e3 / took})
        fitted = simulator.fit(rows)
        for name in ("step", "prompt_token", "decode", "cached", "pair"):
            self.assertAlmostEqual(getattr(fitted, name), getattr(COST, name), places=6)

    def test_a_cache_is_what_the_program_measures(self):
        def call(*arguments):
            spec = arguments[arguments.index("--kv") + 1]
            if arguments[0] == "inspect":
                n_positions = int(arguments[arguments.index("-c") + 1])
                return {"kv_bytes": {"total": 100 * n_positions if spec == "none" else 100 * (32 + 0.25 * (n_positions - 32))}}
            depths = [int(d) for d in arguments[arguments.index("-d") + 1].split(",")]
            if arguments[arguments.index("-n") + 1] == "0":
                return {"rows": [{"n_prompt": 512, "n_gen": 0, "n_depth": d, "n_parallel": 1,
                                  "avg_ts": 512e3 / COST.milliseconds([(512, d)], [])} for d in depths]}
            return {"rows": [{"n_prompt": 0, "n_gen": 16, "n_depth": d, "n_parallel": n,
                              "avg_ts": 1e3 * n / COST.milliseconds([], [d + 8] * n)} for d in depths for n in (1, 8)]}

        cache = simulation.cache_of(call, "m.gguf", "small", ["-t", "2"])
        self.assertAlmostEqual(cache.fraction, 0.25)
        self.assertEqual(cache.n_open, 32)
        self.assertAlmostEqual(cache.cost.pair, COST.pair)
        self.assertAlmostEqual(simulation.cache_of(call, "m.gguf", "none", []).fraction, 1)
        lines = simulation.table(Load("humaneval", 256, 400, n_requests=20, n_clients=4, seeds=(1,)), {"none": Cache(COST)}, 10)
        self.assertEqual(len(lines), 4 + len(simulation.SHARES) + 1)
        self.assertRegex(lines[4], r"^\| 1 \| [\d.]+ \(1\.00\) \|$")

    def test_paced_prompts_let_a_smaller_cache_bear_what_the_whole_one_does(self):
        load = Load("arxiv", 4096, kv_tokens=7361, n_requests=60, seeds=(1,))
        whole, small = Cache(COST), Cache(COST, fraction=0.125, n_open=100)
        bound = load.bound(whole, Policy())

        def rates(share):
            return [load.rate_at(bound, cache, Policy(prompt_share=share), lowest=0.15, n_rates=6) for cache in (whole, small)]

        before, paced = rates(1), rates(SHARE)
        self.assertLess(before[1], 0.8 * before[0])
        self.assertGreaterEqual(paced[1], 0.99 * paced[0])
        self.assertGreaterEqual(paced[0], 0.97 * before[0])

    def test_paced_more_sequences_never_end_later_than_the_few_that_the_whole_cache_holds(self):
        for workload, context, kv_tokens, rates in (("arxiv", 4096, 7361, (0.2, 4)), ("humaneval", 1024, 1343, (1, 20))):
            for cost in (COST, COST_OF_WEIGHTS):
                for rate in rates:
                    few, many = (self.ends(workload, context, kv_tokens, cost, rate, n) for n in (4, 16))
                    with self.subTest(workload=workload, cost=cost, rate=rate):
                        self.assertLessEqual(many[0], 1.001 * few[0])
                        self.assertLessEqual(many[1], 1.05 * few[1])

    def ends(self, workload, context, kv_tokens, cost, rate, max_sequences):
        """When the last request ends, and the mean latency, of a cache of an eighth of the bytes."""
        requests = simulator.draw_requests(workload, context, rate, 40, seed=1)
        serve(Cache(cost, fraction=0.125, n_open=100), Policy(max_sequences=max_sequences, prompt_share=SHARE), kv_tokens, requests)
        return max(r.end for r in requests), sum(r.latency for r in requests) / len(requests)


if __name__ == "__main__":
    unittest.main()
