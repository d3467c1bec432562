// Any config.json or GGUF file either becomes a configuration whose numbers fit together, or gives
// one printable line that names the file.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "io/gguf/gguf.h"
#include "io/gguf/gguf_header.h"
#include "model/config.h"
#include "model/families/gguf/gguf_config.h"

namespace {

using kvlathe::ModelConfig;
using kvlathe::StatusOr;

void CheckExperts(const ModelConfig& c) {
  const kvlathe::ExpertsConfig& experts = *c.experts;
  KVL_CHECK(experts.n_experts > 0 && experts.n_experts < 65536);
  KVL_CHECK(experts.n_used > 0 && experts.n_used <= experts.n_experts);
  KVL_CHECK(experts.ffn_dim > 0 && experts.shared_ffn_dim >= 0);
  KVL_CHECK(experts.n_groups > 0 && experts.n_experts % experts.n_groups == 0);
  KVL_CHECK(experts.n_used_groups > 0 && experts.n_used_groups <= experts.n_groups);
  KVL_CHECK_LE(experts.n_used, experts.n_experts / experts.n_groups * experts.n_used_groups);
  KVL_CHECK_EQ(std::ssize(experts.of_layer), c.n_layers);
  KVL_CHECK(std::isfinite(experts.scale) && experts.scale > 0);
}

void CheckConfig(ModelConfig c) {
  KVL_CHECK(c.n_layers > 0 && c.hidden_dim > 0 && c.vocab_size > 0 && c.max_seq_len > 0);
  KVL_CHECK(c.n_kv_heads > 0 && c.n_heads % c.n_kv_heads == 0);
  KVL_CHECK(c.head_dim > 0 && c.head_dim % 16 == 0 && c.head_dim <= 256);
  KVL_CHECK(c.rope_dim() % 2 == 0 && c.rope_dim() <= c.head_dim);
  for (const float scale : {c.scale_of_scores(), c.embedding_scale, c.logit_scale}) {
    KVL_CHECK(std::isfinite(scale) && scale != 0);
  }
  KVL_CHECK(c.norms.eps >= 0 && std::isfinite(c.norms.eps));
  KVL_CHECK(c.score_cap >= 0 && std::isfinite(c.score_cap));
  KVL_CHECK(c.logit_cap >= 0 && std::isfinite(c.logit_cap));
  for (int l = 0; l < c.n_layers; ++l) {
    KVL_CHECK(c.attention.kind_idx(l) >= 0);
    KVL_CHECK_LT(c.attention.kind_idx(l), std::ssize(c.attention.kinds));
    KVL_CHECK_GE(c.attention.of(l).window, 0);
  }
  for (const kvlathe::AttentionKind& kind : c.attention.kinds) {
    KVL_CHECK(std::isfinite(kind.rope.theta) && kind.rope.theta > 0);
    KVL_CHECK(std::isfinite(kind.rope.factor) && kind.rope.factor > 0);
    KVL_CHECK(std::isfinite(kind.rope.amplitude) && kind.rope.amplitude > 0);
  }
  if (c.experts) CheckExperts(c);
  c.ChooseContext(1);
  KVL_CHECK(!c.DescribePositions().empty());
}

// Of the bytes of a GGUF file, which is read from a file as all are.
StatusOr<ModelConfig> ReadGguf(std::string_view bytes, const std::string& path) {
  std::ofstream(path, std::ios::binary) << bytes;
  const auto file = kvlathe::GgufFile::Open(path);
  if (!file.ok()) return file.status();
  return kvlathe::ReadGgufConfig(*file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  static const std::string path = "/tmp/kvlathe-fuzz-" + std::to_string(::getpid()) + ".gguf";
  const std::string_view bytes(reinterpret_cast<const char*>(data), n_bytes);
  StatusOr<ModelConfig> config = kvlathe::Error(kvlathe::StatusCode::kDataLoss, "{}", path);
  if (bytes.starts_with("GGUF")) {
    // What is no file of tensors is for the fuzzer of such files.
    const auto header = kvlathe::ParseGgufHeader(std::as_bytes(std::span(bytes)), path);
    if (!header.ok()) return 0;
    config = ReadGguf(bytes, path);
    ::unlink(path.c_str());
  } else {
    const auto json = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return 0;
    config = kvlathe::ParseModelConfig(json, path);
  }
  if (config.ok()) {
    CheckConfig(*std::move(config));
    return 0;
  }
  const std::string message = kvlathe::MessageOf(config.status());
  KVL_CHECK(message.starts_with(path));
  KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
  return 0;
}
