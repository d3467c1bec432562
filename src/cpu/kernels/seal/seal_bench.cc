// Time to seal a token of a layer, against what else the token costs: in a run of a prompt, the
// products of a layer of 218 million weights (Llama 3 8B) at the GEMM peak; in a run of decoding,
// reading those weights once at the measured bandwidth. Other models scale both alike, but for
// their KV heads.
//
//   seal_bench [isa] [repetitions] [threads]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/threads.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "cpu/kernels/seal/seal.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;
constexpr int kPromptBlocks = 8;
constexpr double kLayerWeights = 218e6;

// A run of a layer with normal rows, and where it is sealed to.
class Run {
 public:
  Run(const PackedFormat& format, bool is_prompt)
      : n_blocks_(is_prompt ? kPromptBlocks : 1), is_prompt_(is_prompt) {
    const PackedShape shape = MakePackedShape(format, {.rank_k = kHeadDim, .rank_v = kHeadDim}, {},
                                              {.n_kv_heads = kKvHeads,
                                               .layer_rank_v = kKvHeads * kHeadDim,
                                               .n_blocks = n_blocks_,
                                               .is_prompt = is_prompt});
    const int64_t plain_bytes = BlockBytes({kHeadDim, kHeadDim, DType::kBf16});
    Random random(1);
    for (int h = 0; h < kKvHeads; ++h) {
      for (int b = 0; b < n_blocks_; ++b) {
        std::byte* plain = Take(plain_bytes);
        for (int64_t i = 0; i < plain_bytes / 2; ++i) {
          reinterpret_cast<Bf16*>(plain)[i] = ToBf16(static_cast<float>(random.Normal()));
        }
        blocks_.push_back(plain);
        packed_.push_back(Take(PackedBlockBytes(shape)));
      }
    }
    for (int h = 0; h < kKvHeads; ++h) {
      heads_.push_back({kHeadDim, kHeadDim, &blocks_[h * n_blocks_], &packed_[h * n_blocks_],
                        Take(RunRecordBytes(shape))});
    }
    layer_record_ = Take(LayerRecordBytes(shape));
  }
  Run(const Run&) = delete;

  int n_tokens() const { return n_blocks_ * kBlockSize; }
  SealJob Job() const {
    return {.heads = heads_,
            .layer_record = layer_record_,
            .n_blocks = n_blocks_,
            .is_prompt = is_prompt_,
            .seed = 1};
  }

 private:
  std::byte* Take(int64_t n_bytes) {
    memory_.push_back(Buffer::Allocate(std::max<int64_t>(n_bytes, 64), "benchmark run").value());
    return memory_.back().data();
  }

  int n_blocks_;
  bool is_prompt_;
  std::vector<Buffer> memory_;
  std::vector<const std::byte*> blocks_;
  std::vector<std::byte*> packed_;
  std::vector<SealHead> heads_;
  std::byte* layer_record_;
};

// Best time per token.
double TimeSeal(const PackedFormat& format, bool is_prompt, int n_repetitions, Isa isa,
                ThreadPool* pool) {
  constexpr int kPowerLoops = 3;
  const Run run(format, is_prompt);
  const SealJob job = run.Job();
  Sealer sealer(format, DType::kBf16, kPowerLoops, pool, isa);
  double best = 1e30;
  for (int repetition = 0; repetition < n_repetitions; ++repetition) {
    const Stopwatch watch;
    KVL_CHECK(sealer.Run({&job, 1}).ok());
    best = std::min(best, watch.Seconds() / run.n_tokens());
  }
  return best;
}

constexpr PackedSide Channel(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kChannel, .group = group};
}
constexpr PackedSide Token(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kToken, .group = group};
}
constexpr PackedSide TokenLayer(int bits) {
  return {.bits = bits, .sharing = ScaleSharing::kTokenLayer};
}
constexpr PackedFormat Uniform(const PackedSide& k, const PackedSide& v, int prompt_rank = 0,
                               int decode_rank = 0, double share = 0) {
  return {UniformCodec{k, v}, prompt_rank, decode_rank, share};
}

int Main(int argc, char** argv) {
  Isa isa = AvailableIsas().back();
  for (Isa candidate : AvailableIsas()) {
    if (argc > 1 && IsaName(candidate) == argv[1]) isa = candidate;
  }
  const int n_repetitions = argc > 2 ? std::atoi(argv[2]) : 20;
  ThreadPool pool(argc > 3 ? std::atoi(argv[3]) : AvailableProcessors());
  constexpr PackedSide kInt8 = {
      .bits = 8, .sharing = ScaleSharing::kToken, .group = 0, .is_symmetric = true};
  const struct {
    const char* name;
    PackedFormat format;
  } kinds[] = {
      {"int8 per token", Uniform(kInt8, kInt8)},
      {"4 bits per token, 64", Uniform(Token(4, 64), Token(4, 64))},
      {"4 bits KCVT", Uniform(Channel(4, 0), TokenLayer(4))},
      {"4 bits KIVI 32", Uniform(Channel(4, 32), Token(4, 32))},
      {"2 bits KIVI 32", Uniform(Channel(2, 32), Token(2, 32))},
      {"3 bits KIVI 32", Uniform(Channel(3, 32), Token(3, 32))},
      {"4/2 bits KVarN", {BalancedCodec{}}},
      {"4 bits GEAR-L", Uniform(Channel(4, 0), TokenLayer(4), 4, 2)},
      {"4 bits GEAR", Uniform(Channel(4, 0), TokenLayer(4), 4, 2, 0.02)},
      {"2 bits GEAR", Uniform(Channel(2, 64), Token(2, 64), 4, 2, 0.02)},
  };
  const double prefill = 2 * kLayerWeights / MeasureGemmPeak(pool, isa).value();
  const double decode = 2 * kLayerWeights / (MeasureReadBandwidth(pool, isa).value() * 1e9);
  fmt::print(
      "isa {}, {} threads, {} KV heads of {}; a token of a layer: prefill {:.1f} us, decode "
      "{:.1f} us\n",
      IsaName(isa), pool.n_workers(), kKvHeads, kHeadDim, prefill * 1e6, decode * 1e6);
  fmt::print("{:>22} {:>12} {:>10} {:>12} {:>10}\n", "format", "prompt_us", "share", "decode_us",
             "share");
  for (const auto& kind : kinds) {
    const double of_prompt = TimeSeal(kind.format, true, n_repetitions, isa, &pool);
    const double of_decode = TimeSeal(kind.format, false, n_repetitions, isa, &pool);
    fmt::print("{:>22} {:>12.2f} {:>10.4f} {:>12.2f} {:>10.4f}\n", kind.name, of_prompt * 1e6,
               of_prompt / prefill, of_decode * 1e6, of_decode / decode);
  }
  return 0;
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) { return kvlathe::Main(argc, argv); }
