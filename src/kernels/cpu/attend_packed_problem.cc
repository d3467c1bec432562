#include "kernels/cpu/attend_packed_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlathe {
namespace {

int64_t GroupBegin(int64_t side_begin, int bits, int64_t group) {
  return side_begin + group * (bits == 3 ? 96 : 64);
}

// A code of a side as the documentation places it.
int CodeAt(const TestRecord& block, int64_t side_begin, int bits, bool is_symmetric, int64_t group,
           int line, int w) {
  const int64_t begin = GroupBegin(side_begin, bits, group);
  if (bits == 8) {
    const uint8_t code = block.byte(begin + w / 8 * 16 + line * 8 + w % 8);
    return is_symmetric ? static_cast<int8_t>(code) : code;
  }
  const int low_bits = bits == 3 ? 2 : bits;
  const unsigned word = block.byte(begin + 2 * w) | block.byte(begin + 2 * w + 1) << 8;
  int code = word >> (low_bits * line) & ((1u << low_bits) - 1);
  if (bits == 3) code |= (block.byte(begin + 64 + 4 * line + w / 8) >> w % 8 & 1) << 2;
  return code;
}

// Puts there the code that belongs to an exact entry: the middle one.
void PutExactCode(TestRecord& block, int64_t side_begin, const PackedSide& side, int64_t group,
                  int line, int w) {
  const int64_t begin = GroupBegin(side_begin, side.bits, group);
  std::byte* bytes = block.data() + begin;
  if (side.bits == 8) {
    bytes[w / 8 * 16 + line * 8 + w % 8] = std::byte(side.is_symmetric ? 0 : 128);
    return;
  }
  // The highest bit of the code is set, the others are not.
  for (int bit = 0; bit < (side.bits == 3 ? 2 : side.bits); ++bit) {
    const int at = side.bits == 3 ? 2 * line + bit : side.bits * line + bit;
    std::byte& byte = bytes[2 * w + at / 8];
    byte &= ~(std::byte{1} << at % 8);
    if (bit == side.bits - 1) byte |= std::byte{1} << at % 8;
  }
  if (side.bits == 3) bytes[64 + 4 * line + w / 8] |= std::byte{1} << w % 8;
}

int LinesOf(int bits) { return bits == 2 || bits == 3 ? 8 : bits == 4 ? 4 : 2; }

int GroupCount(int n, int group) { return group == 0 ? 1 : (n + group - 1) / group; }

// The middle of the codes there are, as a number of codes.
double Centre(const PackedSide& side) {
  return side.is_symmetric && side.bits == 8 ? 0 : std::exp2(side.bits - 1);
}

void SetCode(TestMatrix& m, int64_t at, int code, const TestScale& s, const PackedSide& side,
             bool rounds) {
  const double from_centre = std::abs(s.scale * (code - Centre(side)));
  m.values[at] = code * s.scale + s.minimum;
  m.rounded[at] = rounds ? from_centre : 0;
  m.parts[at] = from_centre + std::abs(s.minimum + s.scale * Centre(side));
}

// A value that is kept exactly. Kernels may hold it as a code, and then both this and what it is
// multiplied with are rounded.
void SetExact(TestMatrix& m, int64_t at, Bf16 x, double middle) {
  m.values[at] = ToFloat(x);
  m.rounded[at] = std::abs(ToFloat(x) - middle) * 1.5;
  m.parts[at] = std::abs(ToFloat(x) - middle) + std::abs(middle);
}

Bf16 RandomExact(Random& random) { return ToBf16(static_cast<float>(3 * random.Normal())); }

// `n` distinct numbers below `bound`, ascending.
std::vector<int> Choose(int n, int bound, Random& random) {
  std::vector<int> all(bound);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < n; ++i) std::swap(all[i], all[i + random.Below(bound - i)]);
  all.resize(n);
  std::sort(all.begin(), all.end());
  return all;
}

// Exact entries of one list: places with their values, in the order of places.
struct PlacedValues {
  std::vector<std::pair<int, Bf16>> values;
  void Sort() {
    std::sort(values.begin(), values.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  }
};

void PutLists(TestRecord& to, int64_t offset, std::vector<PlacedValues>& lists) {
  int64_t at = offset + 4 * static_cast<int64_t>(lists.size());
  uint32_t end = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i].Sort();
    for (const auto& [place, value] : lists[i].values) {
      to.PutU16(at, static_cast<uint16_t>(place));
      to.PutU16(at + 2, value.bits);
      at += 4;
      ++end;
    }
    to.PutU32(offset + 4 * static_cast<int64_t>(i), end);
  }
}

}  // namespace

int KeyCode(const TestRecord& block, const PackedSide& side, int t, int r) {
  const int line = 4 * (r / 2) + t / 16, n = LinesOf(side.bits);
  return CodeAt(block, 0, side.bits, side.is_symmetric, line / n, line % n, t % 16 * 2 + r % 2);
}
int ValueCode(const TestRecord& block, int64_t begin, const PackedSide& side, int rank, int t,
              int r) {
  const int n = LinesOf(side.bits);
  return CodeAt(block, begin, side.bits, side.is_symmetric, t / 2 / n * (rank / 16) + r / 16,
                t / 2 % n, r % 16 * 2 + t % 2);
}

std::string PackedCase::Describe() const {
  const auto side = [](const PackedSide& s) {
    return fmt::format("{} bits sharing {} group {}{}", s.bits, static_cast<int>(s.sharing),
                       s.group, s.is_symmetric ? " symmetric" : "");
  };
  std::string text = fmt::format(
      "k: {}, v: {}, lowrank {}/{} sparse {} ranks {}/{} hidden {} plain {} tokens {} gqa {} "
      "begin {} unseen {} past_end {} window {} runs",
      side(format.k), side(format.v), format.prompt_rank, format.decode_rank, format.sparse_share,
      rank_k, rank_v, hidden_blocks, n_plain, n_tokens, gqa_group, kv_begin, unseen, past_end,
      window);
  for (const RunSpec& run : runs) {
    text += fmt::format(" {}{}{}", run.n_blocks, run.is_prompt, run.is_repaired);
  }
  return text;
}

PackedProblem::PackedProblem(const PackedCase& problem_case, DType row_type, uint64_t seed)
    : c(problem_case),
      shape{c.rank_k, c.rank_v, row_type},
      random(seed),
      n_sealed(-kBlockSize * c.hidden_blocks),
      k(0, 0),
      v(0, 0) {
  for (const RunSpec& run : c.runs) n_sealed += run.n_blocks * kBlockSize;
  n_entries = n_sealed + c.n_plain;
  k = TestMatrix(n_entries, c.rank_k);
  v = TestMatrix(n_entries, c.rank_v);
  int first_block = -c.hidden_blocks;
  for (const RunSpec& run : c.runs) {
    AddRun(run, first_block);
    first_block += run.n_blocks;
  }
  AddPlainBlocks();
  head = {.format = c.format,
          .kv_head_idx = 1,
          .n_kv_heads = 3,
          .layer_rank_v = LayerRank(),
          .runs = runs.data(),
          .n_runs = static_cast<int>(runs.size())};
  for (int b = 0; b < c.kv_begin / kBlockSize; ++b) blocks[b] = nullptr;
  n_rows = c.n_tokens * c.gqa_group;
  for (int i = 0; i < n_rows * c.rank_k; ++i) {
    q_stored.push_back(static_cast<float>(random.Normal()));
    const Bf16 rounded = ToBf16(q_stored.back());
    q_bf16.push_back(rounded);
    if (row_type == DType::kBf16) q_stored.back() = ToFloat(rounded);
  }
}

TestScale PackedProblem::RandomScale(const PackedSide& side) {
  const double levels = std::exp2(side.bits) - 1;
  TestScale s;
  if (c.has_exact_scales) {
    s.scale = std::exp2(std::floor(std::log2(4 / levels)) - static_cast<int>(random.Below(3)));
    s.minimum = -s.scale * static_cast<double>(random.Below(1 << side.bits));
  } else {
    s.scale = (1 + 4 * random.Uniform()) / levels;
    s.minimum = -s.scale * levels * random.Uniform() + 0.2 * random.Normal();
  }
  if (side.is_symmetric) s.minimum = 0;
  if (side.is_symmetric && side.bits == 4 && random.Below(2) == 0) s.scale = -s.scale;
  return s;
}

TestScale PackedProblem::PutScale(TestRecord& to, int64_t offset, int64_t min_step,
                                  const PackedSide& side) {
  TestScale s = RandomScale(side);
  s.scale = to.PutF16(offset, s.scale);
  if (!side.is_symmetric) s.minimum = to.PutF16(offset + min_step, s.minimum);
  if (side.is_symmetric && side.bits == 4) s.minimum = -8 * s.scale;
  return s;
}

void PackedProblem::AddRun(const RunSpec& spec, int first_block) {
  const PackedSide &ks = c.format.k, &vs = c.format.v;
  RunMemory run = {.spec = &spec, .first_entry = int64_t{first_block} * kBlockSize};
  run.n_tokens = spec.n_blocks * 64;
  run.lowrank = spec.is_prompt ? c.format.prompt_rank : c.format.decode_rank;
  if (!spec.is_repaired) run.lowrank = 0;
  const int v_parts = vs.is_symmetric ? 1 : 2, k_parts = ks.is_symmetric ? 1 : 2;
  const int64_t token_scales = 64 * 2;  // bytes of a row of F16 per token
  run.v_begin = 64 * c.rank_k * ks.bits / 8;
  run.k_scales = run.v_begin + 64 * c.rank_v * vs.bits / 8;
  run.v_scales = run.k_scales;
  if (ks.sharing == ScaleSharing::kToken) {
    run.v_scales += GroupCount(c.rank_k, ks.group) * k_parts * token_scales;
  }
  run.k_factor = run.v_scales;
  if (vs.sharing == ScaleSharing::kToken) {
    run.k_factor += GroupCount(c.rank_v, vs.group) * v_parts * token_scales;
  }
  run.v_factor = run.k_factor + run.lowrank * token_scales;
  for (int b = 0; b < spec.n_blocks; ++b) {
    run.blocks.push_back(static_cast<int>(memory.size()));
    TestRecord& block = NewBytes(run.v_factor + run.lowrank * token_scales);
    for (int64_t i = 0; i < run.k_scales; ++i) {
      // Symmetric codes have no -128.
      block.data()[i] = std::byte(random.Below(255) + 129);
    }
    if (first_block + b >= 0) blocks.push_back(block.data());
  }
  const int key_outliers = static_cast<int>(run.n_tokens * c.format.sparse_share / 2);
  const int value_outliers = static_cast<int>(LayerRank() * c.format.sparse_share / 2);
  int64_t record_bytes = 0;
  if (ks.sharing == ScaleSharing::kChannel) {
    record_bytes += GroupCount(run.n_tokens, ks.group) * 2 * c.rank_k * 2;
  }
  const int64_t basis = record_bytes;
  record_bytes += run.lowrank * (c.rank_k + c.rank_v) * 2;
  const int64_t key_sparse = record_bytes;
  if (key_outliers > 0) {
    record_bytes += 4 * spec.n_blocks + int64_t{2} * key_outliers * c.rank_k * 4;
  }
  int64_t layer_bytes = vs.sharing == ScaleSharing::kTokenLayer ? 2 * 2 * run.n_tokens : 0;
  const int64_t value_sparse = layer_bytes;
  if (value_outliers > 0) {
    layer_bytes += 4 * 3 * spec.n_blocks + int64_t{2} * value_outliers * run.n_tokens * 4;
  }
  run.record = static_cast<int>(memory.size());
  NewBytes(record_bytes);
  run.layer_record = static_cast<int>(memory.size());
  NewBytes(layer_bytes);
  k_middles_.assign(run.n_tokens, std::vector<double>(c.rank_k));
  v_middles_.assign(run.n_tokens, std::vector<double>(c.rank_v));
  PutKeyCodes(run);
  PutValueCodes(run);
  if (key_outliers > 0) PutKeyOutliers(run, key_sparse);
  if (value_outliers > 0) PutValueOutliers(run, value_sparse);
  PutFactors(run, basis);
  runs.push_back({.first_block = first_block,
                  .n_blocks = spec.n_blocks,
                  .is_prompt = spec.is_prompt,
                  .is_repaired = spec.is_repaired,
                  .record = memory[run.record].data(),
                  .layer_record = memory[run.layer_record].data()});
}

void PackedProblem::PutKeyCodes(RunMemory& run) {
  const PackedSide& side = c.format.k;
  const bool is_per_channel = side.sharing == ScaleSharing::kChannel;
  const int n_groups = GroupCount(is_per_channel ? run.n_tokens : c.rank_k, side.group);
  TestRecord& record = memory[run.record];
  std::vector<std::vector<TestScale>> scales(n_groups);  // [group][channel or token of the run]
  for (int g = 0; g < n_groups; ++g) {
    if (is_per_channel) {
      for (int r = 0; r < c.rank_k; ++r) {
        scales[g].push_back(PutScale(record, (g * 2 * c.rank_k + r) * 2, c.rank_k * 2, side));
      }
      continue;
    }
    for (int t = 0; t < run.n_tokens; ++t) {
      const int parts = side.is_symmetric ? 1 : 2;
      scales[g].push_back(PutScale(memory[run.blocks[t / 64]],
                                   run.k_scales + (g * parts * 64 + t % 64) * 2, 128, side));
    }
  }
  for (int t = 0; t < run.n_tokens; ++t) {
    for (int r = 0; r < c.rank_k; ++r) {
      const int g = side.group == 0 ? 0 : (is_per_channel ? t : r) / side.group;
      const TestScale& s = scales[g][is_per_channel ? r : t];
      k_middles_[t][r] = s.minimum + Centre(side) * s.scale;
      if (run.first_entry + t < 0) continue;
      SetCode(k, k.At(run.first_entry + t, r), KeyCode(memory[run.blocks[t / 64]], side, t % 64, r),
              s, side, is_per_channel && !c.has_exact_scales);
    }
  }
}

void PackedProblem::PutValueCodes(RunMemory& run) {
  const PackedSide& side = c.format.v;
  const bool is_of_layer = side.sharing == ScaleSharing::kTokenLayer;
  const int n_groups = is_of_layer ? 1 : GroupCount(c.rank_v, side.group);
  const int parts = side.is_symmetric ? 1 : 2;
  for (int t = 0; t < run.n_tokens; ++t) {
    TestRecord& block = memory[run.blocks[t / 64]];
    std::vector<TestScale> scales;
    for (int g = 0; g < n_groups; ++g) {
      scales.push_back(
          is_of_layer
              ? PutScale(memory[run.layer_record], (t / 64 * 2 * 64 + t % 64) * 2, 128, side)
              : PutScale(block, run.v_scales + (g * parts * 64 + t % 64) * 2, 128, side));
    }
    for (int r = 0; r < c.rank_v; ++r) {
      const TestScale& s = scales[is_of_layer || side.group == 0 ? 0 : r / side.group];
      v_middles_[t][r] = s.minimum + Centre(side) * s.scale;
      if (run.first_entry + t < 0) continue;
      SetCode(v, v.At(run.first_entry + t, r),
              ValueCode(block, run.v_begin, side, c.rank_v, t % 64, r), s, side, true);
    }
  }
}

void PackedProblem::PutKeyOutliers(RunMemory& run, int64_t offset) {
  const int n = 2 * static_cast<int>(run.n_tokens * c.format.sparse_share / 2);
  std::vector<PlacedValues> lists(run.spec->n_blocks);
  for (int r = 0; r < c.rank_k; ++r) {
    for (int t : Choose(n, run.n_tokens, random)) {
      const Bf16 x = RandomExact(random);
      lists[t / 64].values.push_back({t % 64 + 64 * r, x});
      const int line = 4 * (r / 2) + t % 64 / 16, n_lines = LinesOf(c.format.k.bits);
      PutExactCode(memory[run.blocks[t / 64]], 0, c.format.k, line / n_lines, line % n_lines,
                   t % 16 * 2 + r % 2);
      if (run.first_entry + t < 0) continue;
      SetExact(k, k.At(run.first_entry + t, r), x, k_middles_[t][r]);
    }
  }
  PutLists(memory[run.record], offset, lists);
}

void PackedProblem::PutValueOutliers(RunMemory& run, int64_t offset) {
  const int n = 2 * static_cast<int>(LayerRank() * c.format.sparse_share / 2);
  std::vector<PlacedValues> lists(run.spec->n_blocks * 3);
  for (int t = 0; t < run.n_tokens; ++t) {
    for (int channel : Choose(n, LayerRank(), random)) {
      int owner = 0, r = channel;
      for (int width : {c.other_rank_v, c.rank_v}) {
        if (r < width) break;
        r -= width;
        ++owner;
      }
      const Bf16 x = RandomExact(random);
      lists[t / 64 * 3 + owner].values.push_back({t % 64 + 64 * r, x});
      if (owner != 1) continue;
      const int pair = t % 64 / 2, n_lines = LinesOf(c.format.v.bits);
      PutExactCode(memory[run.blocks[t / 64]], run.v_begin, c.format.v,
                   pair / n_lines * (c.rank_v / 16) + r / 16, pair % n_lines, r % 16 * 2 + t % 2);
      if (run.first_entry + t < 0) continue;
      SetExact(v, v.At(run.first_entry + t, r), x, v_middles_[t][r]);
    }
  }
  PutLists(memory[run.layer_record], offset, lists);
}

void PackedProblem::PutFactor(RunMemory& run, TestMatrix& m, int64_t factor, int64_t basis) {
  TestRecord& record = memory[run.record];
  for (int i = 0; i < run.lowrank; ++i) {
    std::vector<double> b;
    for (int r = 0; r < m.width; ++r) {
      b.push_back(record.PutF16(basis + (i * m.width + r) * 2, random.Normal()));
    }
    for (int t = 0; t < run.n_tokens; ++t) {
      const double a =
          memory[run.blocks[t / 64]].PutF16(factor + (i * 64 + t % 64) * 2, 0.2 * random.Normal());
      for (int r = 0; r < m.width && run.first_entry + t >= 0; ++r) {
        const int64_t at = m.At(run.first_entry + t, r);
        m.values[at] += a * b[r];
        m.parts[at] += std::abs(a * b[r]);
      }
    }
  }
}

void PackedProblem::PutFactors(RunMemory& run, int64_t record_offset) {
  PutFactor(run, k, run.k_factor, record_offset);
  PutFactor(run, v, run.v_factor, record_offset + run.lowrank * c.rank_k * 2);
}

void PackedProblem::AddPlainBlocks() {
  for (int begin = n_sealed; begin < n_entries; begin += kBlockSize) {
    TestRecord& block = NewBytes(BlockBytes(shape));
    blocks.push_back(block.data());
    const int64_t width = SizeOf(shape.row_type);
    for (int t = begin; t < std::min(n_entries, begin + kBlockSize); ++t) {
      const auto set = [&](TestMatrix& m, int r, int64_t offset) {
        const float x = static_cast<float>(random.Normal());
        std::byte* to = block.data() + offset * width;
        ConvertFromFloat(shape.row_type, &x, 1, to);
        float stored;
        ConvertToFloat(shape.row_type, to, 1, &stored);
        m.values[m.At(t, r)] = stored;
        m.parts[m.At(t, r)] = std::abs(stored);
        return std::abs(stored);
      };
      for (int r = 0; r < c.rank_k; ++r) set(k, r, KeyOffset(t - begin, r));
      for (int r = 0; r < c.rank_v; ++r) {
        v.rounded[v.At(t, r)] = set(v, r, kBlockSize * c.rank_k + ValueOffset(shape, t - begin, r));
      }
    }
  }
}

}  // namespace kvlathe
