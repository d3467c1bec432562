#include "cpu/kernels/testing/attend_packed_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlathe {
namespace {

int64_t GroupBegin(int64_t side_begin, int bits, int64_t group) {
  return side_begin + group * (bits == 3 ? 96 : bits == 5 ? 80 : 64);
}

// A code of a side as the documentation places it.
int CodeAt(const TestRecord& block, int64_t side_begin, int bits, bool is_symmetric, int64_t group,
           int line, int w) {
  const int64_t begin = GroupBegin(side_begin, bits, group);
  if (bits == 8) {
    const uint8_t code = block.byte(begin + w / 8 * 16 + line * 8 + w % 8);
    return is_symmetric ? static_cast<int8_t>(code) : code;
  }
  const bool has_high_bit = bits == 3 || bits == 5;
  const int low_bits = has_high_bit ? bits - 1 : bits;
  const unsigned word = block.byte(begin + 2 * w) | block.byte(begin + 2 * w + 1) << 8;
  int code = word >> (low_bits * line) & ((1u << low_bits) - 1);
  if (has_high_bit) {
    code |= (block.byte(begin + 64 + 4 * line + w / 8) >> w % 8 & 1) << low_bits;
  }
  return code;
}

int LinesOf(int bits) { return bits <= 3 ? 8 : bits <= 5 ? 4 : 2; }

int GroupCount(int n, int group) { return group == 0 ? 1 : (n + group - 1) / group; }

// Bytes of a row of scales, one per token.
int64_t TokenScales(const PackedSide& side) {
  return side.table != nullptr && !side.has_norms ? 64 : 128;
}

// The middle of the codes there are, as a number of codes.
double Centre(const PackedSide& side) {
  if (side.table != nullptr) return 0;
  return side.is_symmetric && side.bits == 8 ? 0 : std::exp2(side.bits - 1);
}

void SetCode(TestMatrix& m, int64_t at, int code, const TestScale& s, const PackedSide& side,
             bool rounds) {
  const double number = side.table != nullptr ? side.table->numbers[code] : code;
  const double from_centre = s.scale * (number - Centre(side));
  m.values[at] = number * s.scale + s.minimum;
  m.centred[at] = from_centre;
  m.rounded[at] = rounds ? std::abs(from_centre) : 0;
  m.parts[at] = std::abs(from_centre) + std::abs(s.minimum + s.scale * Centre(side));
}

// What a balance does to an element.
void Balance(TestMatrix& m, int64_t at, double balance) {
  for (std::vector<double>* part : {&m.values, &m.centred, &m.rounded, &m.parts}) {
    (*part)[at] *= balance;
  }
}

// What an exact entry adds. Kernels may add it to the code, and then what comes out and what it is
// multiplied with are rounded, or round what either is multiplied with.
void AddExact(TestMatrix& m, int64_t at, Bf16 difference) {
  const double size = std::abs(ToFloat(difference));
  m.values[at] += ToFloat(difference);
  m.rounded[at] =
      std::max(m.rounded[at] + size, 1.5 * std::abs(m.centred[at] + ToFloat(difference)));
  m.parts[at] += size;
}

Bf16 RandomDifference(Random& random) { return ToBf16(static_cast<float>(3 * random.Normal())); }

// `n` distinct numbers below `bound`, ascending. `packs`: the first ones.
std::vector<int> Choose(int n, int bound, bool packs, Random& random) {
  std::vector<int> all(bound);
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < n && !packs; ++i) std::swap(all[i], all[i + random.Below(bound - i)]);
  all.resize(n);
  std::sort(all.begin(), all.end());
  return all;
}

// The exact entries of a side of a block: of each lane places, ascending, with their differences.
using Lanes = std::vector<std::vector<std::pair<int, Bf16>>>;

// Lists of all sides: where they end, the differences of all, the places of all.
void PutLists(TestRecord& to, int64_t offset, const std::vector<Lanes>& lists) {
  std::vector<std::pair<int, Bf16>> entries;
  for (size_t i = 0; i < lists.size(); ++i) {
    for (size_t lane_begin = 0; lane_begin < lists[i].size(); lane_begin += 16) {
      for (size_t first = 0; first < 256; first += 2) {
        for (size_t lane = lane_begin; lane < lane_begin + 16; ++lane) {
          const auto& of_lane = lists[i][lane];
          if (first < of_lane.size()) entries.push_back(of_lane[first]);
          if (first + 1 < of_lane.size()) entries.push_back(of_lane[first + 1]);
        }
      }
    }
    to.PutU32(offset + 4 * static_cast<int64_t>(i), static_cast<uint32_t>(entries.size()));
  }
  const int64_t differences = offset + 4 * static_cast<int64_t>(lists.size());
  const int64_t places = differences + 2 * std::ssize(entries);
  for (int64_t i = 0; i < std::ssize(entries); ++i) {
    to.PutU16(differences + 2 * i, entries[i].second.bits);
    to.PutU8(places + i, static_cast<uint8_t>(entries[i].first));
  }
}

void PutCounts(TestRecord& block, int64_t offset, bool is_wide, const Lanes& lanes) {
  for (const auto& lane : lanes) {
    if (is_wide) {
      block.PutU16(offset, static_cast<uint16_t>(lane.size()));
    } else {
      block.PutU8(offset, static_cast<uint8_t>(lane.size()));
    }
    offset += is_wide ? 2 : 1;
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
    return fmt::format("{} bits sharing {} group {}{}{}", s.bits, static_cast<int>(s.sharing),
                       s.group, s.is_symmetric ? " symmetric" : "",
                       s.table != nullptr ? " table" : "");
  };
  std::string text = fmt::format(
      "k: {}, v: {}, lowrank {}/{} sparse {} ranks {}/{} hidden {} plain {} tokens {} gqa {} "
      "begin {} unseen {} past_end {} window {} packs {} runs",
      side(KeySide(format.codec)), side(ValueSide(format.codec)), format.prompt_rank,
      format.decode_rank, format.sparse_share, rank_k, rank_v, hidden_blocks, n_plain, n_tokens,
      gqa_group, kv_begin, unseen, past_end, window, packs_exact);
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

double PackedProblem::RandomBalance() { return 0.75 + 1.5 * random.Uniform(); }

TestScale PackedProblem::PutScale(TestRecord& to, int64_t offset, int64_t min_step,
                                  const PackedSide& side) {
  if (side.has_norms) {
    return {to.PutF16(offset, 0.2 + random.Uniform()) * side.table->unit, 0};
  }
  if (side.table != nullptr) {
    const int exponent = -2 - static_cast<int>(random.Below(3));
    to.PutU8(offset, static_cast<uint8_t>(127 + exponent));
    return {std::exp2(exponent) * side.table->unit, 0};
  }
  TestScale s = RandomScale(side);
  s.scale = to.PutF16(offset, s.scale);
  if (!side.is_symmetric) s.minimum = to.PutF16(offset + min_step, s.minimum);
  if (side.is_symmetric && side.bits == 4) s.minimum = -8 * s.scale;
  return s;
}

void PackedProblem::AddRun(const RunSpec& spec, int first_block) {
  const PackedSide ks = KeySide(c.format.codec), vs = ValueSide(c.format.codec);
  RunMemory run = {.spec = &spec, .first_entry = int64_t{first_block} * kBlockSize};
  run.n_tokens = spec.n_blocks * 64;
  run.lowrank = spec.is_prompt ? c.format.prompt_rank : c.format.decode_rank;
  if (!spec.is_repaired) run.lowrank = 0;
  const int v_parts = vs.is_symmetric ? 1 : 2, k_parts = ScaleParts(ks);
  const int64_t token_scales = 64 * 2;  // bytes of a row of F16 per token
  run.v_begin = 64 * c.rank_k * ks.bits / 8;
  run.k_scales = run.v_begin + 64 * c.rank_v * vs.bits / 8;
  run.v_scales = run.k_scales;
  if (ks.sharing == ScaleSharing::kToken) {
    run.v_scales += GroupCount(c.rank_k, ks.group) * k_parts * TokenScales(ks);
  }
  run.k_balance = run.v_scales;
  if (ks.balanced_tokens > 0) run.v_scales += token_scales;
  run.k_factor = run.v_scales;
  if (vs.sharing == ScaleSharing::kToken) {
    run.k_factor += GroupCount(c.rank_v, vs.group) * v_parts * TokenScales(vs);
  }
  run.v_factor = run.k_factor + run.lowrank * token_scales;
  run.k_counts = run.v_factor + run.lowrank * token_scales;
  const int key_outliers = static_cast<int>(run.n_tokens * c.format.sparse_share / 2);
  const int value_outliers = static_cast<int>(LayerRank() * c.format.sparse_share / 2);
  run.v_counts = run.k_counts + (key_outliers == 0 ? 0 : c.rank_k == 256 ? 128 : 64);
  const int64_t block_bytes = run.v_counts + (value_outliers == 0 ? 0 : c.rank_v);
  for (int b = 0; b < spec.n_blocks; ++b) {
    run.blocks.push_back(static_cast<int>(memory.size()));
    TestRecord& block = NewBytes(block_bytes);
    for (int64_t i = 0; i < run.k_scales; ++i) {
      // Symmetric codes have no -128.
      block.data()[i] = std::byte(random.Below(255) + 129);
    }
    if (first_block + b >= 0) blocks.push_back(block.data());
  }
  int64_t record_bytes = 0;
  if (ks.sharing == ScaleSharing::kChannel) {
    record_bytes += GroupCount(run.n_tokens, ks.group) * 2 * c.rank_k * 2;
  }
  run.v_balance = record_bytes;
  if (vs.balanced_tokens > 0) {
    record_bytes += GroupCount(run.n_tokens, vs.balanced_tokens) * c.rank_v * 2;
  }
  const int64_t basis = record_bytes;
  record_bytes += run.lowrank * (c.rank_k + c.rank_v) * 2;
  const int64_t key_sparse = record_bytes;
  if (key_outliers > 0) {
    record_bytes += 4 * spec.n_blocks + int64_t{2} * key_outliers * c.rank_k * 3;
  }
  int64_t layer_bytes = vs.sharing == ScaleSharing::kTokenLayer ? 2 * 2 * run.n_tokens : 0;
  const int64_t value_sparse = layer_bytes;
  if (value_outliers > 0) {
    layer_bytes += 4 * 3 * spec.n_blocks + int64_t{2} * value_outliers * run.n_tokens * 3;
  }
  run.record = static_cast<int>(memory.size());
  NewBytes(record_bytes);
  run.layer_record = static_cast<int>(memory.size());
  NewBytes(layer_bytes);
  PutKeyCodes(run);
  if (ks.has_signs) PutResiduals(run);
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
  const PackedSide side = KeySide(c.format.codec);
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
      scales[g].push_back(
          PutScale(memory[run.blocks[t / 64]],
                   run.k_scales + g * parts * TokenScales(side) + t % 64 * TokenScales(side) / 64,
                   128, side));
    }
  }
  for (int t = 0; t < run.n_tokens; ++t) {
    const double balance =
        side.balanced_tokens == 0
            ? 1
            : memory[run.blocks[t / 64]].PutF16(run.k_balance + t % 64 * 2, RandomBalance());
    for (int r = 0; r < c.rank_k; ++r) {
      const int g = side.group == 0 ? 0 : (is_per_channel ? t : r) / side.group;
      const TestScale& s = scales[g][is_per_channel ? r : t];
      if (run.first_entry + t < 0) continue;
      SetCode(k, k.At(run.first_entry + t, r), KeyCode(memory[run.blocks[t / 64]], side, t % 64, r),
              s, side, is_per_channel && !c.has_exact_scales);
      Balance(k, k.At(run.first_entry + t, r), balance);
    }
  }
}

// What signs add to keys: the sum over channels of sign times length times their row of Q D
// (residual_signs.h), where the ranks are powers of two.
void PackedProblem::PutResiduals(RunMemory& run) {
  const PackedSide side = KeySide(c.format.codec);
  for (int t = 0; t < run.n_tokens; ++t) {
    TestRecord& block = memory[run.blocks[t / 64]];
    const double length = block.PutF16(run.k_scales + 128 + t % 64 * 2, 0.1 + random.Uniform());
    for (int r = 0; r < c.rank_k && run.first_entry + t >= 0; ++r) {
      double sum = 0;
      for (int i = 0; i < c.rank_k; ++i) {
        const bool is_negative = KeyCode(block, side, t % 64, i) >> (side.bits - 1) != 0;
        sum += (__builtin_popcount(i & r) % 2 == 1) != is_negative ? -1 : 1;
      }
      const int64_t at = k.At(run.first_entry + t, r);
      const double added = sum * length / std::sqrt(c.rank_k);
      k.values[at] += SignOfChannel(SphereRotation::kOfResiduals, r) * added;
      k.parts[at] += length * std::sqrt(c.rank_k);
    }
  }
}

void PackedProblem::PutValueCodes(RunMemory& run) {
  const PackedSide side = ValueSide(c.format.codec);
  const bool is_of_layer = side.sharing == ScaleSharing::kTokenLayer;
  const int n_groups = is_of_layer ? 1 : GroupCount(c.rank_v, side.group);
  const int parts = side.is_symmetric ? 1 : 2;
  std::vector<double> balances;  // of the channels of the tile at work
  for (int t = 0; t < run.n_tokens; ++t) {
    if (side.balanced_tokens > 0 && t % side.balanced_tokens == 0) {
      balances.clear();
      const int64_t tile = run.v_balance + int64_t{t} / side.balanced_tokens * c.rank_v * 2;
      for (int r = 0; r < c.rank_v; ++r) {
        balances.push_back(memory[run.record].PutF16(tile + 2 * r, RandomBalance()));
      }
    }
    TestRecord& block = memory[run.blocks[t / 64]];
    std::vector<TestScale> scales;
    for (int g = 0; g < n_groups; ++g) {
      scales.push_back(is_of_layer ? PutScale(memory[run.layer_record],
                                              (t / 64 * 2 * 64 + t % 64) * 2, 128, side)
                                   : PutScale(block,
                                              run.v_scales + g * parts * TokenScales(side) +
                                                  t % 64 * TokenScales(side) / 64,
                                              128, side));
    }
    for (int r = 0; r < c.rank_v; ++r) {
      const TestScale& s = scales[is_of_layer || side.group == 0 ? 0 : r / side.group];
      if (run.first_entry + t < 0) continue;
      SetCode(v, v.At(run.first_entry + t, r),
              ValueCode(block, run.v_begin, side, c.rank_v, t % 64, r), s, side, true);
      if (!balances.empty()) Balance(v, v.At(run.first_entry + t, r), balances[r]);
    }
  }
}

void PackedProblem::PutKeyOutliers(RunMemory& run, int64_t offset) {
  const int n = 2 * static_cast<int>(run.n_tokens * c.format.sparse_share / 2);
  std::vector<Lanes> lists(run.spec->n_blocks, Lanes(64));
  for (int r = 0; r < c.rank_k; ++r) {
    for (int t : Choose(n, run.n_tokens, c.packs_exact, random)) {
      const Bf16 x = RandomDifference(random);
      lists[t / 64][t % 64].push_back({r, x});
      if (run.first_entry + t >= 0) AddExact(k, k.At(run.first_entry + t, r), x);
    }
  }
  for (int b = 0; b < run.spec->n_blocks; ++b) {
    PutCounts(memory[run.blocks[b]], run.k_counts, c.rank_k == 256, lists[b]);
  }
  PutLists(memory[run.record], offset, lists);
}

void PackedProblem::PutValueOutliers(RunMemory& run, int64_t offset) {
  const int n = 2 * static_cast<int>(LayerRank() * c.format.sparse_share / 2);
  std::vector<Lanes> lists(run.spec->n_blocks * 3);
  for (size_t i = 0; i < lists.size(); ++i) lists[i].resize(i % 3 == 1 ? c.rank_v : c.other_rank_v);
  for (int t = 0; t < run.n_tokens; ++t) {
    // Packed: those of the head at work, where it has so many.
    for (int chosen : Choose(n, LayerRank(), c.packs_exact, random)) {
      const int channel = c.packs_exact ? (chosen + c.other_rank_v) % LayerRank() : chosen;
      int owner = 0, r = channel;
      for (int width : {c.other_rank_v, c.rank_v}) {
        if (r < width) break;
        r -= width;
        ++owner;
      }
      const Bf16 x = RandomDifference(random);
      lists[t / 64 * 3 + owner][r].push_back({t % 64, x});
      if (owner != 1 || run.first_entry + t < 0) continue;
      AddExact(v, v.At(run.first_entry + t, r), x);
    }
  }
  for (int b = 0; b < run.spec->n_blocks; ++b) {
    PutCounts(memory[run.blocks[b]], run.v_counts, false, lists[b * 3 + 1]);
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

void PackedProblem::DrawCap() {
  score_cap = static_cast<float>(1 + 4 * random.Uniform());
  for (int row = 0; row < n_rows; ++row) {
    score_offsets.push_back(static_cast<float>(3 * random.Normal()));
  }
}

}  // namespace kvlathe
