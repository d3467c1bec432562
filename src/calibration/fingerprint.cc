#include "calibration/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvlathe {

void Fingerprint::Add(uint64_t value) {
  high_ = MixBits(high_ ^ value);
  low_ = MixBits(low_ + value * 0xff51afd7ed558ccdull);
}

void Fingerprint::Add(std::string_view bytes) {
  Add(static_cast<uint64_t>(bytes.size()));
  for (size_t begin = 0; begin < bytes.size(); begin += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + begin, std::min<size_t>(8, bytes.size() - begin));
    Add(word);
  }
}

std::string Fingerprint::Hex() const { return fmt::format("{:016x}{:016x}", high_, low_); }

namespace {

// Of one tensor: its name, type and shape, and three samples of its bytes.
void AddTensor(std::string_view name, std::string_view type, const std::vector<int64_t>& shape,
               std::string_view bytes, Fingerprint* fingerprint) {
  constexpr size_t kSampleBytes = 4096;
  fingerprint->Add(name);
  fingerprint->Add(type);
  for (const int64_t extent : shape) fingerprint->Add(static_cast<uint64_t>(extent));
  const size_t n_sampled = std::min(kSampleBytes, bytes.size());
  const size_t last = bytes.size() - n_sampled;
  for (const size_t begin : {size_t{0}, last / 2, last}) {
    fingerprint->Add(bytes.substr(begin, n_sampled));
  }
}

std::string_view TextOf(const std::byte* data, int64_t n_bytes) {
  return {reinterpret_cast<const char*>(data), static_cast<size_t>(n_bytes)};
}

}  // namespace

std::string ModelHash(std::string_view config_text, const SafetensorsReader& weights) {
  Fingerprint fingerprint;
  fingerprint.Add(config_text);
  for (const auto& [name, tensor] : weights.tensors()) {
    AddTensor(name, DTypeName(tensor.dtype), tensor.shape, TextOf(tensor.data, tensor.n_bytes),
              &fingerprint);
  }
  return fingerprint.Hex();
}

std::string ModelHash(std::string_view config_text, const GgufFile& weights) {
  Fingerprint fingerprint;
  fingerprint.Add(config_text);
  for (const auto& [name, tensor] : weights.tensors()) {
    AddTensor(name, LayoutOf(tensor.type).name, tensor.shape, TextOf(tensor.data, tensor.n_bytes),
              &fingerprint);
  }
  return fingerprint.Hex();
}

std::string TokenHash(std::span<const int32_t> token_ids) {
  Fingerprint fingerprint;
  fingerprint.Add(
      std::string_view(reinterpret_cast<const char*>(token_ids.data()), token_ids.size_bytes()));
  return fingerprint.Hex();
}

std::string BasisHash(const ModelBasis& basis) {
  Fingerprint fingerprint;
  for (const int extent : {basis.n_layers, basis.n_kv_heads, basis.head_dim}) {
    fingerprint.Add(static_cast<uint64_t>(extent));
  }
  for (const HeadBasis& head : basis.heads) {
    fingerprint.Add(static_cast<uint64_t>(head.rank_k));
    fingerprint.Add(static_cast<uint64_t>(head.rank_v));
    for (const BitSplit* split : {&head.bits.middle.k, &head.bits.middle.v}) {
      for (const int n : split->channels) fingerprint.Add(static_cast<uint64_t>(n));
    }
    for (const EntryBits* bits : {&head.bits.most, &head.bits.least}) {
      if (*bits == EntryBits()) continue;  // bases without classes keep the names that they had
      for (const BitSplit* split : {&bits->k, &bits->v}) {
        for (const int n : split->channels) fingerprint.Add(static_cast<uint64_t>(n));
      }
    }
    for (const std::vector<float>* map :
         {&head.query_basis, &head.key_basis, &head.value_basis, &head.output_basis,
          &head.key_offset, &head.value_offset}) {
      fingerprint.Add(std::string_view(reinterpret_cast<const char*>(map->data()),
                                       map->size() * sizeof(float)));
    }
    if (!head.turning_mean.empty()) {
      fingerprint.Add(std::string_view(reinterpret_cast<const char*>(head.turning_mean.data()),
                                       head.turning_mean.size() * sizeof(float)));
    }
    if (!head.key_way_back.empty()) {  // other bases keep the names that they had
      fingerprint.Add(std::string_view(reinterpret_cast<const char*>(head.key_way_back.data()),
                                       head.key_way_back.size() * sizeof(float)));
    }
  }
  return fingerprint.Hex();
}

std::string CodebooksHash(const ModelCodebooks& codebooks) {
  Fingerprint fingerprint;
  const auto add = [&](const auto& numbers) {
    fingerprint.Add(std::string_view(reinterpret_cast<const char*>(numbers.data()),
                                     numbers.size() * sizeof(numbers[0])));
  };
  for (const LayerCodebooks& layer : codebooks) {
    for (const Codebook* codebook : {&layer.k, &layer.v}) {
      fingerprint.Add(static_cast<uint64_t>(codebook->n_codes));
      add(codebook->boundaries);
      add(codebook->centroids);
    }
    for (const std::vector<float>& scales : layer.key_scales) add(scales);
  }
  return fingerprint.Hex();
}

}  // namespace kvlathe
