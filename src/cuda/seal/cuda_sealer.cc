#include "cuda/seal/cuda_sealer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/units.h"
#include "cuda/kernels/seal/exact.h"
#include "cuda/kernels/seal/lowrank.h"
#include "cuda/kernels/seal/split.h"
#include "cuda/kernels/seal/uniform.h"
#include "cuda/seal/seal_lists.h"

namespace kvlathe {
namespace {

using cuda::RowKind;

// --- What is not finite ---

// A run as the report tells of it.
struct ReportedRun {
  int sequence = 0;
  int first_head = 0;  // of the whole model
  int n_heads = 0;
};

// A place in a batch: run, head, side.
struct BadSide {
  int head = -1;  // of the whole model; -1: there is none
  bool is_key = true;
};

// The first side of the runs of a sequence that is not finite, in the order in which the CPU looks
// for it: where layers have records V of all heads comes first. `flags` are those of the runs.
BadSide FirstBadOf(std::span<const ReportedRun> runs, bool has_layer_records,
                   std::span<const int32_t> flags) {
  const auto find = [&](bool looks_at_keys) -> BadSide {
    size_t head = 0;
    for (const ReportedRun& run : runs) {
      for (int h = 0; h < run.n_heads; ++h, ++head) {
        if (looks_at_keys && flags[2 * head] != 0) return {run.first_head + h, true};
        if (flags[2 * head + 1] != 0) return {run.first_head + h, false};
      }
    }
    return {};
  };
  const BadSide of_values = has_layer_records ? find(false) : BadSide();
  return of_values.head >= 0 ? of_values : find(true);
}

void ReportRuns(std::span<const ReportedRun> runs, int layer_idx, bool has_layer_records,
                std::span<const int32_t> flags, StepReport* report) {
  while (!runs.empty()) {
    const int sequence = runs.front().sequence;
    const auto end = std::ranges::find_if(
        runs, [sequence](const ReportedRun& run) { return run.sequence != sequence; });
    const auto own = runs.first(end - runs.begin());
    const BadSide bad = FirstBadOf(own, has_layer_records, flags);
    if (bad.head >= 0) {
      report->failures.push_back(
          {sequence, layer_idx,
           Error(StatusCode::kDataLoss,
                 "{} of KV head {} holds NaN or infinity; such rows cannot be compressed",
                 bad.is_key ? "K" : "V", bad.head)});
    }
    for (const ReportedRun& run : own) flags = flags.subspan(2 * run.n_heads);
    runs = runs.subspan(own.size());
  }
}

bool HasLayerRecords(const SealBatch& batch) {
  const SealRunPlan& run = batch.runs.front();
  return LayerRecordBytes(ShapeOf(batch, run, run.heads.front())) > 0;
}

// --- Parameters ---

RowKind KindOf(const SealBatch& batch) {
  if (FactsOf(batch.format.codec).codes_open_rows) return RowKind::kCoded;
  return batch.row_type == DType::kBf16 ? RowKind::kBf16 : RowKind::kF32;
}

cuda::CodedSide CodedSideOf(const PackedSide& side) {
  return {.bits = side.bits, .sharing = side.sharing, .is_symmetric = side.is_symmetric};
}

cuda::UnitTables UnitTablesOf(StoredUnit unit) {
  cuda::UnitTables tables = {};
  for (int bits = 1; bits <= cuda::kMostUnitBits; ++bits) {
    std::copy_n(UnitValues(bits, unit), kCodeWindows, tables.values[bits - 1]);
    std::copy_n(SoughtUnitValues(bits, unit), kCodeWindows, tables.sought[bits - 1]);
    std::ranges::copy(UnitCentroids(bits, unit), tables.centroids[bits - 1]);
    std::ranges::copy(UnitBoundaries(bits, unit), tables.boundaries[bits - 1]);
  }
  return tables;
}

void SealSplitRuns(const SplitBitsCodec& codec, const cuda::SealKernelParams& all,
                   CudaStream* stream) {
  cuda::SplitParams params = {.all = all, .unit = codec.unit, .tables = UnitTablesOf(codec.unit)};
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    params.bits[i] = kSplitBits[i];
    params.shares[i] = static_cast<float>(1 / UnitLoss(kSplitBits[i], StoredUnit::kToken));
  }
  std::array<float, 256> inverses;
  for (int i = 0; i < 256; ++i) inverses[i] = 1 / ScaleOfByte(static_cast<uint8_t>(i));
  params.inverses = stream->Send(std::span<const float>(inverses));
  if (params.inverses != nullptr) cuda::SealSplit(stream->get(), params);
}

cuda::UniformParams UniformParamsOf(const cuda::SealKernelParams& all, const Codec& codec) {
  const PackedSide k = KeySide(codec), v = ValueSide(codec);
  cuda::UniformParams params = {.all = all, .k = CodedSideOf(k), .v = CodedSideOf(v)};
  params.has_codebook = k.has_codebook;
  if (k.table != nullptr) {
    params.has_table = true;
    params.steps = k.table->steps;
    params.table_unit = k.table->unit;
  }
  return params;
}

// Among how many blocks of threads the channels of a span are shared out, so that all of a GPU has
// work where spans are few and long.
int SpanPartsOf(const SealLists& lists) {
  constexpr int kBlocksOfThreads = 1024, kMostParts = 16;
  const auto n_spans = static_cast<int>(lists.spans().size());
  return std::clamp(kBlocksOfThreads / std::max(1, n_spans), 1, kMostParts);
}

// A list for kernels; false where there is no memory for it.
bool SendPlaces(CudaStream* stream, const std::vector<cuda::SealedPlace>& places,
                const cuda::SealedPlace** on_device, int* n) {
  *on_device = stream->Send(std::span<const cuda::SealedPlace>(places));
  *n = static_cast<int>(places.size());
  return *on_device != nullptr;
}

void SealUniformRuns(const SealBatch& batch, const SealLists& lists,
                     const cuda::SealKernelParams& all, CudaStream* stream) {
  cuda::UniformParams params = UniformParamsOf(all, batch.format.codec);
  if (params.k.sharing == ScaleSharing::kChannel) {
    if (!SendPlaces(stream, lists.spans(), &params.spans, &params.n_spans)) return;
    params.n_span_parts = SpanPartsOf(lists);
  }
  if (params.v.sharing == ScaleSharing::kTokenLayer &&
      !SendPlaces(stream, lists.layer_places(), &params.layer_places, &params.n_layer_places)) {
    return;
  }
  cuda::SealUniform(stream->get(), params);
}

std::vector<ReportedRun> ReportedRunsOf(const SealBatch& batch) {
  std::vector<ReportedRun> runs;
  for (const SealRunPlan& run : batch.runs) {
    runs.push_back({run.sequence, run.first_head, static_cast<int>(run.heads.size())});
  }
  return runs;
}

// All sequences of a batch for which there was no memory.
void ReportNoMemory(std::span<const ReportedRun> runs, int layer_idx, int64_t n_bytes,
                    StepReport* report) {
  int last = -1;
  for (const ReportedRun& run : runs) {
    if (run.sequence == last) continue;
    last = run.sequence;
    report->failures.push_back(
        {run.sequence, layer_idx,
         Error(StatusCode::kResourceExhausted, "no {} on the GPU for sealing the KV cache",
               FormatBytes(n_bytes))});
  }
}

}  // namespace

CudaSealer::~CudaSealer() {
  if (scratch_ == nullptr) return;
  stream_.Wait("the last work");
  cudaFree(scratch_);
}

std::byte* CudaSealer::Scratch(int64_t n_bytes) {
  if (n_bytes <= n_scratch_) return scratch_;
  stream_.Wait("sealing");  // kernels that use the old one
  cudaFree(scratch_);
  scratch_ = stream_.TryAllocate(n_bytes);
  n_scratch_ = scratch_ == nullptr ? 0 : n_bytes;
  return scratch_;
}

bool CudaSealer::Takes(const SealBatch& batch) const {
  const Codec& codec = batch.format.codec;
  if (std::holds_alternative<CodebookCodec>(codec)) {
    return std::ranges::all_of(batch.runs, [&](const SealRunPlan& run) {
      const CudaCodebooks* const books = residents_.At(run.codebooks);
      return books != nullptr && books->books != nullptr;
    });
  }
  if (KeySide(codec).clip < 1 || ValueSide(codec).clip < 1) return false;
  return std::holds_alternative<UniformCodec>(codec) || std::holds_alternative<TableCodec>(codec) ||
         std::holds_alternative<SplitBitsCodec>(codec);
}

void CudaSealer::Seal(const SealBatch& batch) {
  if (batch.runs.empty()) return;
  SealLists lists(batch, memory_, &residents_);
  const std::vector<ReportedRun> runs = ReportedRunsOf(batch);
  const int64_t n_scratch = lists.LayOutRepairs(nullptr);
  if (n_scratch > 0) {
    std::byte* const scratch = Scratch(n_scratch);
    if (scratch == nullptr) {
      flags_.Take(1, [runs, layer_idx = batch.layer_idx, n_scratch](auto, StepReport* report) {
        ReportNoMemory(runs, layer_idx, n_scratch, report);
      });
      return;
    }
    lists.LayOutRepairs(scratch);
  }
  cuda::SealKernelParams params = {.row_kind = KindOf(batch),
                                   .has_one_side = batch.format.has_one_side()};
  params.not_finite =
      flags_.Take(int64_t{2} * lists.n_heads(),
                  [runs, layer_idx = batch.layer_idx, has_layer_records = HasLayerRecords(batch)](
                      auto flags, StepReport* report) {
                    ReportRuns(runs, layer_idx, has_layer_records, flags, report);
                  });
  if (params.not_finite == nullptr || !lists.Send(&stream_, &params)) return;
  SealRuns(batch, lists, params);
}

void CudaSealer::SealRuns(const SealBatch& batch, const SealLists& lists,
                          const cuda::SealKernelParams& params) {
  cuda::CheckRows(stream_.get(), params);
  cuda::ExactParams exact = {.all = params,
                             .n_heads = lists.n_heads(),
                             .has_codebook = KeySide(batch.format.codec).has_codebook};
  if (lists.has_exact()) {
    if (!SendPlaces(&stream_, lists.layer_places(), &exact.layer_places, &exact.n_layer_places)) {
      return;
    }
    cuda::MarkExact(stream_.get(), exact);
  }
  if (const auto* const codec = std::get_if<SplitBitsCodec>(&batch.format.codec)) {
    SealSplitRuns(*codec, params, &stream_);
  } else {
    SealUniformRuns(batch, lists, params, &stream_);
  }
  if (lists.has_lowrank()) {
    cuda::LowRankParams fits = {.all = params, .power_loops = batch.power_loops};
    if (!lists.SendFits(&stream_, &fits)) return;
    cuda::FitLowRank(stream_.get(), fits);
  }
  if (lists.has_exact()) cuda::StoreExact(stream_.get(), exact);
}

}  // namespace kvlathe
