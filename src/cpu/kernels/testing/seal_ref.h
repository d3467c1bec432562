// Sealing in plain loops, for tests: seal.h and packed_layout.h transcribed, sharing no code with
// the kernels. Objects are written front to back as the layout describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/codebook/codebook.h"
#include "format/packed_layout.h"

namespace kvlathe {

// The rows of one head: values that the row type holds.
struct RefHead {
  int rank_k, rank_v;
  std::vector<float> k, v;  // [token][channel]
};

struct RefObject {
  std::vector<std::byte> bytes;
  // Low-rank factors, which are not computed here: their bytes are not to be compared.
  int64_t factors_begin = 0, factors_end = 0;
};

// The stored low-rank factors of one side of a run, which the reference does not compute but takes
// from what was sealed. Empty where there are none.
struct RefFactors {
  int lowrank = 0;
  std::vector<float> a, b;  // [column][token] and [column][channel]
};

// The stored balance of the tiles of a head, which the reference does not compute either
// (balance_ref.h does), but divides rows by: F16, of K [token], of V [tile][channel].
struct RefBalance {
  std::vector<uint16_t> k, v;
};

struct RefSealedHead {
  std::vector<RefObject> blocks;
  RefObject record;
  // [token][channel]
  std::vector<float> residual_k, residual_v;  // what the factors approximate: 0 for exact entries
  std::vector<float> loss_k, loss_v;          // of the codes, exact entries included
  std::vector<char> is_exact_k, is_exact_v;
};

struct RefSealed {
  std::vector<RefSealedHead> heads;
  RefObject layer_record;
};

struct RefSealInput {
  PackedFormat format;
  std::vector<RefHead> heads;
  bool is_prompt = true;
  LayerCodebooks codebooks;                // of a format that has them
  std::vector<RefFactors> k_factors = {};  // [heads], of a run with a low-rank residual
  std::vector<RefFactors> v_factors = {};
  std::vector<RefBalance> balances = {};  // [heads], of a format whose tiles are balanced
};
RefSealed SealRef(const RefSealInput& input);

// F16 by its definition, the largest one for what is beyond.
uint16_t F16BitsRef(float x);
float F16ValueRef(uint16_t bits);

// The values that sealed objects stand for, read by the documented layout: [token][channel].
struct RefObjects {
  PackedShape shape;
  int head_idx;
  std::vector<const std::byte*> blocks;
  const std::byte* record;
  const std::byte* layer_record;
  const LayerCodebooks* codebooks;
};
std::vector<float> ReadKeysRef(const RefObjects& objects);
std::vector<float> ReadValuesRef(const RefObjects& objects);

}  // namespace kvlathe
