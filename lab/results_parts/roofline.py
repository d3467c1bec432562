"""What attention of one generated token would take on machines that nobody has measured: a model, and no measurement.

Of a cache it knows the bytes that a layer reads for a token, and how long one core works on it where the data lies in the processor's
caches, at two contexts: what grows with the context is work, the rest a cost of each layer whatever the context. On a machine

    time = max(bytes / bandwidth, work / cores) + rest

so reading and work overlap whole, cores are those of the machine that was measured, work divides evenly, and nothing else takes time.
Times are in microseconds, bandwidths in GB/s of the whole machine, bytes of a layer and token.
"""

from dataclasses import dataclass

BANDWIDTHS, CORES = (40, 60, 200), (2, 8, 16)


@dataclass(frozen=True)
class Cost:
    n_bytes: float
    work_us: float  # of one core, at the context of n_bytes
    rest_us: float

    def time_us(self, cores, gb_per_s):
        return max(self.reading_us(gb_per_s), self.work_us / cores) + self.rest_us

    def reading_us(self, gb_per_s):
        return self.n_bytes / gb_per_s / 1e3

    def bound(self, cores, gb_per_s):
        return "memory" if self.reading_us(gb_per_s) > self.work_us / cores else "work"


def cost(n_bytes, context, times_us):
    """From what one core takes in its caches, {context: us} of two contexts or more: a line through the first and the last."""
    contexts = sorted(times_us)
    if len(contexts) < 2:
        raise ValueError("work is what grows with the context: two contexts are needed")
    first, last = contexts[0], contexts[-1]
    by_position = (times_us[last] - times_us[first]) / (last - first)
    rest = times_us[first] - by_position * first
    return Cost(n_bytes, max(0.0, by_position) * context, max(0.0, rest))


def ratio(cache, none, cores, gb_per_s):
    """How many times as fast as `none` on the same machine."""
    return none.time_us(cores, gb_per_s) / cache.time_us(cores, gb_per_s)
