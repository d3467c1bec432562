"""What a step of a model costs that several machines share: a model on paper of generating one token, and no measurement.

With tp ranks in each of pp stages, and for one sequence,

    step = weights / tp / bandwidth + cache / tp / bandwidth + sums + messages

Weights and cache are bytes that are read once, stage behind stage (stages help only where there are as many sequences on their way). A
layer has two sums over its tp ranks, of `hidden` numbers of 4 bytes. Up to 128 KiB every rank sends all of them to each other one and adds
up itself, which is one round; above, each adds up a piece and sends the sums, two rounds (src/comm/peer_communicator.cc). A round costs the link's
latency, and the bytes that a rank sends over its rate. Messages are the step's order and its answer, the residual stream from stage to stage, and the
logits of all words but rank 0's own, which rank 0 gets as numbers of 4 bytes.

Nothing overlaps, work divides evenly, all ranks come to a sum at the same time, and computing costs nothing beside reading, unless it takes
longer. Times are in microseconds, rates of links in Gbit/s, of memory in GB/s.
"""

from dataclasses import dataclass

WHOLE_SUM_BYTES = 128 << 10
NUMBER_BYTES = 4


@dataclass(frozen=True)
class Shape:
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    n_words: int

    @property
    def n_weights(self):
        """That one token is multiplied with."""
        attention = 2 * (self.n_heads + self.n_kv_heads) * self.head_dim
        return self.hidden * (self.n_layers * (attention + 3 * self.ffn) + self.n_words)

    @property
    def kv_numbers(self):
        """Of one position."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim


@dataclass(frozen=True)
class Machine:
    gb_per_s: float
    tflops: float


@dataclass(frozen=True)
class Link:
    gbit: float
    latency_us: float

    def sending_us(self, n_bytes):
        return n_bytes * 8 / self.gbit / 1e3

    def message_us(self, n_bytes):
        return self.latency_us + self.sending_us(n_bytes)

    def sum_us(self, n_ranks, n_bytes):
        if n_ranks == 1:
            return 0.0
        if n_bytes <= WHOLE_SUM_BYTES:
            return self.message_us((n_ranks - 1) * n_bytes)
        return 2 * self.message_us((n_ranks - 1) / n_ranks * n_bytes)


def messages_us(shape, tp, pp, link, n_sequences=1):
    """All that ranks send each other in a step: (sums, the rest)."""
    if tp * pp == 1:
        return 0.0, 0.0
    n_bytes = NUMBER_BYTES * n_sequences * shape.hidden
    sums = 2 * shape.n_layers * link.sum_us(tp, n_bytes)
    others = tp - 1 if pp == 1 else tp
    logits = link.message_us(NUMBER_BYTES * n_sequences * shape.n_words * others / tp) if others else 0.0
    order_and_answer = 2 * link.latency_us
    return sums, (pp - 1) * link.message_us(n_bytes) + logits + order_and_answer


def reading_us(shape, weight_bits, kv_ratio, context, tp, machine):
    """Of weights and cache, or the products where they take longer; kv_ratio: how many times smaller than 16 bits the cache is."""
    weight_bytes, kv_bytes = shape.n_weights * weight_bits / 8, 2 * shape.kv_numbers * context / kv_ratio
    products = 2 * shape.n_weights / machine.tflops / 1e6
    return (max(weight_bytes / machine.gb_per_s / 1e3, products) + kv_bytes / machine.gb_per_s / 1e3) / tp


def tokens_per_s(shape, weight_bits, kv_ratio, context, tp, pp, machine, link):
    return 1e6 / (reading_us(shape, weight_bits, kv_ratio, context, tp, machine) + sum(messages_us(shape, tp, pp, link)))
