// Hostile bytes as a sealed run: whatever passes for sound must be attended to without reading or
// writing outside the objects.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kernels/cpu/attend.h"

namespace {

using namespace kvlathe;

// Takes numbers and bytes from the input; zeros when it has ended.
class Input {
 public:
  Input(const uint8_t* data, size_t n_bytes) : data_(data), n_left_(n_bytes) {}
  int Below(int n) {
    if (n_left_ == 0) return 0;
    --n_left_;
    return *data_++ % n;
  }
  std::vector<std::byte> Bytes(int64_t n_bytes) {
    std::vector<std::byte> bytes(static_cast<size_t>(n_bytes));
    const size_t n = std::min(n_left_, bytes.size());
    std::copy_n(reinterpret_cast<const std::byte*>(data_), n, bytes.begin());
    data_ += n;
    n_left_ -= n;
    return bytes;
  }

 private:
  const uint8_t* data_;
  size_t n_left_;
};

PackedShape DrawShape(Input& input) {
  constexpr int kBits[] = {2, 3, 4, 8};
  constexpr int kGroups[] = {0, 16, 32, 64, 128};
  constexpr double kShares[] = {0, 0.02, 0.1, 0.5};
  PackedShape shape;
  for (PackedSide* side : {&shape.format.k, &shape.format.v}) {
    const bool is_key = side == &shape.format.k;
    side->bits = kBits[input.Below(4)];
    side->sharing = input.Below(2) == 0 ? ScaleSharing::kToken
                    : is_key            ? ScaleSharing::kChannel
                                        : ScaleSharing::kTokenLayer;
    const bool is_token = side->sharing == ScaleSharing::kToken;
    side->is_symmetric = is_token && (side->bits == 8 || side->bits == 4) && input.Below(2) == 0;
    side->group = side->sharing == ScaleSharing::kTokenLayer ? 0 : kGroups[input.Below(5)];
  }
  shape.format.prompt_rank = input.Below(5);
  shape.format.sparse_share = kShares[input.Below(4)];
  shape.rank_k = 16 * (1 + input.Below(5));
  shape.rank_v = 16 * (1 + input.Below(5));
  shape.n_blocks = 1 + input.Below(2);
  shape.layer_rank_v = shape.rank_v;
  return shape;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  Input input(data, n_bytes);
  const PackedShape shape = DrawShape(input);
  const int group = 1 + input.Below(5);
  // Records first: they are what a reader follows. Objects of exact size, for the sanitizer.
  const std::vector<std::byte> record = input.Bytes(RunRecordBytes(shape));
  const std::vector<std::byte> layer_record = input.Bytes(LayerRecordBytes(shape));
  const int ranks_v[] = {shape.rank_v};
  if (!IsSoundRunRecord(shape, record.data()) ||
      !IsSoundLayerRecord(shape, ranks_v, layer_record.data())) {
    return 0;
  }
  std::vector<std::vector<std::byte>> blocks;
  std::vector<const std::byte*> pointers;
  for (int b = 0; b < shape.n_blocks; ++b) {
    blocks.push_back(input.Bytes(PackedBlockBytes(shape)));
    pointers.push_back(blocks.back().data());
  }
  const PackedRun run{
      .n_blocks = shape.n_blocks, .record = record.data(), .layer_record = layer_record.data()};
  const PackedHead head{
      .format = shape.format, .layer_rank_v = shape.layer_rank_v, .runs = &run, .n_runs = 1};
  const std::vector<std::byte> q(static_cast<size_t>(4) * group * shape.rank_k, std::byte{0x3f});
  std::vector<float> o(static_cast<size_t>(group) * shape.rank_v), row_max(group), row_sum(group);
  static std::byte* const scratch =
      static_cast<std::byte*>(std::aligned_alloc(64, kAttendScratchBytes));
  for (const Isa isa : AvailableIsas()) {
    for (const DType row_type : {DType::kBf16, DType::kF32}) {
      AttendParams params{.shape = {shape.rank_k, shape.rank_v, row_type},
                          .gqa_group = group,
                          .n_rows = group,
                          .q = q.data(),
                          .q_stride = shape.rank_k,
                          .blocks = pointers.data(),
                          .packed = &head,
                          .kv_end = shape.n_tokens(),
                          .first_visible = shape.n_tokens(),
                          .o = o.data(),
                          .o_stride = shape.rank_v,
                          .row_max = row_max.data(),
                          .row_sum = row_sum.data()};
      GetAttendKernels(isa, row_type).attend(params, scratch);
    }
  }
  return 0;
}
