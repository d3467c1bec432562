#include "base/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvlathe {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t ReadBigEndian(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap32(value);
}

}  // namespace

void Sha256::Add(std::span<const std::byte> bytes) {
  n_bytes_ += bytes.size();
  if (n_pending_ > 0) {
    const size_t n = std::min(bytes.size(), kBlockBytes - n_pending_);
    std::copy_n(bytes.begin(), n, pending_.begin() + n_pending_);
    n_pending_ += n;
    bytes = bytes.subspan(n);
    if (n_pending_ < kBlockBytes) return;
    AddBlocks(pending_.data(), 1);
    n_pending_ = 0;
  }
  const size_t n_blocks = bytes.size() / kBlockBytes;
  AddBlocks(bytes.data(), n_blocks);
  bytes = bytes.subspan(n_blocks * kBlockBytes);
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
  n_pending_ = bytes.size();
}

void Sha256::AddBlocks(const std::byte* bytes, size_t n_blocks) {
  if (with_instructions_) {
    return AddSha256Blocks(kRoundConstants.data(), bytes, n_blocks, state_.data());
  }
  for (; n_blocks > 0; --n_blocks, bytes += kBlockBytes) {
    std::array<uint32_t, 64> w;
    for (size_t t = 0; t < 16; ++t) w[t] = ReadBigEndian(bytes + 4 * t);
    for (size_t t = 16; t < 64; ++t) {
      const uint32_t a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + w[t - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                          ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
      const uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const std::array<uint32_t, 8> added = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < state_.size(); ++i) state_[i] += added[i];
  }
}

std::string Sha256::HexDigest() const {
  Sha256 rest = *this;
  // A bit of 1, zeros up to the last 8 bytes of a block, and there the length in bits.
  const size_t n_padding = kBlockBytes - (n_pending_ + 8) % kBlockBytes;
  std::array<std::byte, 2 * kBlockBytes> end = {std::byte{0x80}};
  const uint64_t n_bits = __builtin_bswap64(8 * n_bytes_);
  std::memcpy(end.data() + n_padding, &n_bits, sizeof(n_bits));
  rest.Add(std::span(end).first(n_padding + sizeof(n_bits)));
  std::string digest;
  for (const uint32_t word : rest.state_) digest += fmt::format("{:08x}", word);
  return digest;
}

std::string DigestOf(std::initializer_list<std::string_view> texts) {
  Sha256 hash;
  for (const std::string_view text : texts) {
    const uint64_t n_bytes = text.size();
    hash.Add(std::as_bytes(std::span(&n_bytes, 1)));
    hash.Add(std::as_bytes(std::span(text)));
  }
  return hash.HexDigest();
}

}  // namespace kvlathe
