// Runs to seal in tests: rows of several kinds, plain and sealed objects of a layer, formats.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/seal/seal.h"
#include "cpu/kernels/testing/seal_ref.h"

namespace kvlathe {

struct Ranks {
  int k, v;
};

// Codebooks with unlike steps that lie apart from what codes stand for, and ranges that leave some
// elements of K outside.
inline LayerCodebooks DrawCodebooks(const PackedFormat& format, const std::vector<RefHead>& heads) {
  LayerCodebooks layer;
  const int bits = KeySide(format.codec).bits;
  for (Codebook* codebook : {&layer.k, &layer.v}) {
    codebook->n_codes = 1 << std::min(bits, 4);
    const auto n = static_cast<float>(codebook->n_codes);
    for (int i = 0; i < codebook->n_codes; ++i) {
      const float at = (static_cast<float>(2 * i + 1) - n) / n;
      codebook->centroids[i] = 0.95f * at * (0.6f + 0.4f * std::fabs(at)) + 0.01f;
      codebook->boundaries[i] = (at + 1 / n) * 0.9f;
    }
  }
  Random random(17);
  for (const RefHead& head : heads) {
    std::vector<float>& scales = layer.key_scales.emplace_back();
    for (int c = 0; c < 2 * head.rank_k; ++c) {
      const double x = random.Uniform();
      scales.push_back(static_cast<float>(c < head.rank_k ? 0.2 + 2 * x : 2 * x - 1));
    }
  }
  return layer;
}

// The run of a layer, in plain blocks and where it is sealed to.
struct Layer {
  Layer(const PackedFormat& layer_format, DType type, std::vector<RefHead> layer_heads, int blocks,
        bool prompt)
      : format(layer_format),
        row_type(type),
        heads(std::move(layer_heads)),
        n_blocks(blocks),
        is_prompt(prompt),
        codebooks(DrawCodebooks(layer_format, heads)) {
    for (int h = 0; h < n_heads(); ++h) {
      for (int b = 0; b < n_blocks; ++b) plain.push_back(PlainBlock(heads[h], b));
    }
    Clear();
  }

  int n_heads() const { return static_cast<int>(heads.size()); }
  PackedShape ShapeOf(int h) const {
    RunOfLayer run = {.n_kv_heads = n_heads(), .n_blocks = n_blocks, .is_prompt = is_prompt};
    for (const RefHead& head : heads) run.layer_rank_v += head.rank_v;
    return MakePackedShape(format, {heads[h].rank_k, heads[h].rank_v, row_type}, {}, run);
  }

  void Store(float value, int64_t idx, std::vector<std::byte>* to) const {
    ConvertFromFloat(row_type, &value, 1, to->data() + idx * SizeOf(row_type));
  }
  std::vector<std::byte> PlainBlock(const RefHead& head, int block) const {
    const BlockShape shape = {head.rank_k, head.rank_v, row_type};
    std::vector<std::byte> bytes(BlockBytes(shape));
    for (int t = 0; t < kBlockSize; ++t) {
      const int64_t row = block * kBlockSize + t;
      for (int c = 0; c < head.rank_k; ++c) {
        Store(head.k[row * head.rank_k + c], KeyOffset(t, c), &bytes);
      }
      for (int c = 0; c < head.rank_v; ++c) {
        Store(head.v[row * head.rank_v + c],
              int64_t{kBlockSize} * head.rank_k + ValueOffset(shape, t, c), &bytes);
      }
    }
    return bytes;
  }

  // Fills what is sealed to with what no run leaves there.
  void Clear() {
    packed.clear();
    records.clear();
    for (int h = 0; h < n_heads(); ++h) {
      const PackedShape s = ShapeOf(h);
      for (int b = 0; b < n_blocks; ++b) {
        packed.emplace_back(PackedBlockBytes(s), std::byte{0xa5});
      }
      records.emplace_back(RunRecordBytes(s), std::byte{0xa5});
    }
    layer_record.assign(LayerRecordBytes(ShapeOf(0)), std::byte{0xa5});
  }

  // The job, whose pointers live in this layer.
  SealJob Job(uint64_t seed) {
    plain_pointers.clear();
    packed_pointers.clear();
    for (const auto& block : plain) plain_pointers.push_back(block.data());
    for (auto& block : packed) packed_pointers.push_back(block.data());
    job_heads.clear();
    for (int h = 0; h < n_heads(); ++h) {
      job_heads.push_back({heads[h].rank_k, heads[h].rank_v, &plain_pointers[h * n_blocks],
                           &packed_pointers[h * n_blocks],
                           records[h].empty() ? nullptr : records[h].data()});
    }
    return {.heads = job_heads,
            .layer_record = layer_record.empty() ? nullptr : layer_record.data(),
            .n_blocks = n_blocks,
            .is_prompt = is_prompt,
            .seed = seed,
            .codebooks = &codebooks,
            .rotation = {}};
  }

  // The factors of a side as they are stored.
  RefFactors FactorsOf(int h, bool is_key) const {
    const PackedShape s = ShapeOf(h);
    const int n = s.lowrank(), rank = is_key ? s.rank_k : s.rank_v;
    const auto load = [](const std::byte* from, int64_t idx) {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * idx, sizeof(bits));
      return F16ValueRef(bits);
    };
    RefFactors factors = {.lowrank = n};
    for (int j = 0; j < n; ++j) {
      for (int t = 0; t < s.n_tokens(); ++t) {
        const std::byte* block = packed[h * n_blocks + t / kBlockSize].data();
        factors.a.push_back(load(block + (is_key ? KeyFactorOffset(s) : ValueFactorOffset(s)),
                                 j * kBlockSize + t % kBlockSize));
      }
      for (int c = 0; c < rank; ++c) {
        factors.b.push_back(load(
            records[h].data() + (is_key ? KeyBasisOffset(s) : ValueBasisOffset(s)), j * rank + c));
      }
    }
    return factors;
  }

  // The balance of a head as it is stored.
  RefBalance BalanceOf(int h) const {
    const PackedShape s = ShapeOf(h);
    RefBalance balance;
    balance.k.resize(s.n_tokens());
    for (int b = 0; b < n_blocks; ++b) {
      std::memcpy(&balance.k[b * kBlockSize], packed[h * n_blocks + b].data() + KeyBalanceOffset(s),
                  KeyBalanceBytes(s));
    }
    balance.v.resize(int64_t{BalancedTiles(s)} * s.rank_v);
    std::memcpy(balance.v.data(), records[h].data() + ValueBalanceOffset(s), ValueBalanceBytes(s));
    return balance;
  }

  // What the definition says of these rows and of the factors and the balance that were sealed.
  RefSealed Ref() const {
    RefSealInput input = {format, heads, is_prompt, codebooks};
    for (int h = 0; h < n_heads() && ShapeOf(h).k.balanced_tokens > 0; ++h) {
      input.balances.push_back(BalanceOf(h));
    }
    for (int h = 0; h < n_heads() && ShapeOf(h).lowrank() > 0; ++h) {
      input.k_factors.push_back(FactorsOf(h, true));
      input.v_factors.push_back(FactorsOf(h, false));
    }
    return SealRef(input);
  }

  RefObjects Objects(int h) const {
    RefObjects objects = {ShapeOf(h), h, {}, records[h].data(), layer_record.data(), &codebooks};
    for (int b = 0; b < n_blocks; ++b) objects.blocks.push_back(packed[h * n_blocks + b].data());
    return objects;
  }

  friend bool operator==(const Layer& a, const Layer& b) {
    return a.packed == b.packed && a.records == b.records && a.layer_record == b.layer_record;
  }

  PackedFormat format;
  DType row_type;
  std::vector<RefHead> heads;
  int n_blocks;
  bool is_prompt;
  LayerCodebooks codebooks;
  std::vector<std::vector<std::byte>> plain, packed;  // [head][block]
  std::vector<std::vector<std::byte>> records;        // [head]
  std::vector<std::byte> layer_record;
  std::vector<const std::byte*> plain_pointers;
  std::vector<std::byte*> packed_pointers;
  std::vector<SealHead> job_heads;
};

enum class Data {
  kTypical,  // channels of K with means and widths of their own, V of unit variance
  kConstant,
  kZero,  // of either sign
  kOutlier,
  kDenormal,
  kBeyondF16,
  kTies,
  kAscending,
  kHuge,
  kLast,
  kOneLane  // all channels of a token of K, a channel of V are far out
};

inline float Draw(Data data, bool is_key, int token, int channel, Random& random) {
  const auto normal = [&] { return static_cast<float>(random.Normal()); };
  switch (data) {
    case Data::kTypical:
      if (!is_key) return normal();
      // One channel in 16 is an outlier, as rotary keys have them.
      return (channel % 16 == 5 ? 6.0f : 1.0f) *
             (std::cos(0.7f * static_cast<float>(channel)) + 0.6f * normal());
    case Data::kConstant:
      return 1.7f * static_cast<float>(channel % 3 - 1);
    case Data::kZero:
      return random.Below(2) == 0 ? 0.0f : -0.0f;
    case Data::kOutlier:
      return token == 3 && channel % 7 == 2 ? 1e30f : normal();
    case Data::kDenormal:
      return 1e-39f * normal();
    case Data::kBeyondF16:
      return 1e6f * (normal() + (channel % 5 == 0 ? 3.0f : 0.0f));
    case Data::kTies:
      return static_cast<float>(random.Below(4)) - 1.5f;
    case Data::kAscending:
      return static_cast<float>(token) - 0.01f * static_cast<float>(channel);
    case Data::kOneLane:
      if ((is_key ? token : channel) != 5) return normal();
      return ((is_key ? channel : token) % 3 == 0 ? -300.0f : 300.0f) + normal();
    case Data::kHuge:
    case Data::kLast:
      break;
  }
  return (random.Below(2) == 0 ? 3.38e38f : -3.38e38f) * static_cast<float>(random.Uniform());
}

inline std::vector<RefHead> DrawHeads(Data data, const std::vector<Ranks>& ranks, int n_blocks,
                                      DType row_type, uint64_t seed) {
  Random random(seed);
  std::vector<RefHead> heads;
  for (const Ranks& rank : ranks) {
    RefHead head = {rank.k, rank.v, {}, {}};
    for (bool is_key : {true, false}) {
      const int channels = is_key ? rank.k : rank.v;
      for (int i = 0; i < n_blocks * kBlockSize * channels; ++i) {
        float x = Draw(data, is_key, i / channels, i % channels, random);
        if (row_type == DType::kBf16) x = ToFloat(ToBf16(x));
        (is_key ? head.k : head.v).push_back(x);
      }
    }
    heads.push_back(head);
  }
  return heads;
}

struct Named {
  std::string name;
  PackedFormat format;
};

inline PackedSide Token(int bits, int group, bool is_symmetric = false) {
  return {bits, ScaleSharing::kToken, group, is_symmetric};
}
inline PackedSide Channel(int bits, int group) {
  return {bits, ScaleSharing::kChannel, group, false};
}
inline PackedSide LayerToken(int bits) { return {bits, ScaleSharing::kTokenLayer, 0, false}; }

inline PackedFormat Codebooks(int bits, double share, int lowrank = 0) {
  return {.codec = CodebookCodec{.bits = bits},
          .prompt_rank = lowrank,
          .decode_rank = lowrank,
          .sparse_share = share};
}

inline PackedFormat Uniform(const PackedSide& k, const PackedSide& v, int prompt_rank = 0,
                            int decode_rank = 0, double share = 0) {
  return {UniformCodec{k, v}, prompt_rank, decode_rank, share};
}

// Numbers of several signs and steps, of which one stands twice.
inline constexpr NamedTable kUneven({0, 1, 3, 6, 12, 22, 37, 58, 0, -2, -4, -8, -15, -27, -41, -52},
                                    0.25f);

inline std::vector<Named> Formats() {
  return {{"kivi2_g64", Uniform(Channel(2, 64), Token(2, 64))},
          {"kivi2_g32", Uniform(Channel(2, 32), Token(2, 32))},
          {"kivi4_g16", Uniform(Channel(4, 16), Token(4, 16))},
          {"kivi3_g128", Uniform(Channel(3, 128), Token(3, 48))},
          {"kivi8_g64", Uniform(Channel(8, 64), Token(8, 64))},
          {"kcvt4", Uniform(Channel(4, 0), LayerToken(4))},
          {"kcvt3", Uniform(Channel(3, 0), LayerToken(3))},
          {"kcvt2", Uniform(Channel(2, 0), LayerToken(2))},
          {"kcvt8", Uniform(Channel(8, 512), LayerToken(8))},
          {"flexgen4", Uniform(Token(4, 64), Token(4, 64))},
          {"token2", Uniform(Token(2, 0), Token(2, 0))},
          {"token3_g48", Uniform(Token(3, 48), Token(3, 16))},
          {"token8", Uniform(Token(8, 0), Token(8, 32))},
          {"int8", Uniform(Token(8, 0, true), Token(8, 0, true))},
          {"int8_g32", Uniform(Token(8, 32, true), Token(8, 64, true))},
          {"mixed", Uniform(Channel(2, 256), Token(8, 0, true))},
          {"signed_4", Uniform(Token(4, 32, true), Token(4, 32, true))},
          {"signed_4_repaired", Uniform(Token(4, 0, true), Token(4, 64, true), 2, 2, 0.05)},
          {"outliers_kivi2", Uniform(Channel(2, 64), Token(2, 64), 0, 0, 0.02)},
          {"outliers_kcvt4", Uniform(Channel(4, 0), LayerToken(4), 0, 0, 0.02)},
          {"outliers_token3", Uniform(Token(3, 32), Token(3, 0), 0, 0, 0.1)},
          {"outliers_int8", Uniform(Token(8, 16, true), Token(8, 16, true), 0, 0, 0.05)},
          {"gear_l_kivi2", Uniform(Channel(2, 64), Token(2, 64), 4, 2)},
          {"gear_kivi2", Uniform(Channel(2, 64), Token(2, 64), 4, 2, 0.02)},
          {"gear_kcvt4", Uniform(Channel(4, 0), LayerToken(4), 4, 2, 0.02)},
          {"gear_token3", Uniform(Token(3, 48), Token(3, 0), 7, 3, 0.1)},
          {"table_g32", {TableCodec{&kUneven, 32}}},
          {"table_g16", {TableCodec{&kUneven, 16}}},
          {"gear_table_g48", {TableCodec{&kUneven, 48}, 4, 2, 0.05}},
          {"kvarn_k4v2", {BalancedCodec{4, 2, 128}}},
          {"kvarn_k5v3", {BalancedCodec{5, 3, 64}}},
          {"kvarn_k2v8", {BalancedCodec{2, 8, 128}}},
          {"kvquant4", Codebooks(4, 0.01)},
          {"kvquant3", Codebooks(3, 0.05)},
          {"kvquant2", Codebooks(2, 0)},
          {"kvquant_gear", Codebooks(2, 0.1, 3)}};
}

// What only the sealer of CPUs makes.
inline std::vector<Named> SphereFormats() {
  return {
      {"sphere4", {SphereCodec{}}},
      {"sphere3_2_plain", {SphereCodec{.key_bits = 3, .value_bits = 2, .corrects_norms = false}}},
      {"sphere2_3", {SphereCodec{.key_bits = 2, .value_bits = 3}}}};
}

inline const std::vector<std::vector<Ranks>>& Heads() {
  static const std::vector<std::vector<Ranks>> heads = {
      {{128, 128}}, {{16, 48}, {80, 16}, {48, 128}}, {{80, 80}, {128, 48}}, {{48, 16}, {16, 16}}};
  return heads;
}

}  // namespace kvlathe
