// Tests have a random model that decides what leaves, and the literal decoder beside it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "merging/merged_model.h"
#include "model/model.h"
#include "reference_decoder.h"
#include "reference_dms.h"
#include "reference_quantizer.h"

namespace kvlathe {

struct SweptCase {
  const char* spec;
  testing::ReferenceDms dms;  // as the model has it, but for run, interval and sinks
  // What the spec says in place of the model.
  std::optional<int> window = std::nullopt;
  std::optional<double> offset = std::nullopt;
  const char* model_type = "llama";
  bool has_basis = false;
  std::optional<testing::ReferenceQuantizer> quantizer = std::nullopt;

  int n_tokens() const { return quantizer.has_value() ? kSealedTokens : kTokens; }
};

inline void PrintTo(const SweptCase& c, std::ostream* out) { *out << c.spec; }

inline std::string NameOfSweptCase(const ::testing::TestParamInfo<SweptCase>& test) {
  std::string name = std::to_string(test.index) + "_" + test.param.spec;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
}

class SweptModel : public ::testing::TestWithParam<SweptCase> {
 protected:
  SweptModel();
  ~SweptModel() override;

  void Write(const SweptCase& c);
  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text);
  // Of a prompt of kPrompt tokens.
  std::unique_ptr<SequenceCache> NewCache(const Model& model);
  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`. After each,
  // what the pool gave out is what entries of these numbers take.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, testing::Matrix* logits);
  static std::vector<int> Lengths(const SequenceCache& cache);

  struct Literal {
    testing::Matrix logits;
    std::vector<int> lengths;  // entries behind the sinks, [n_layers * n_kv_heads]
    double share = 0;          // of the decisions of the first layer that let a position go
    std::vector<std::vector<int>> n_sealed;
  };
  Literal Literally(const SweptCase& c, const testing::ReferenceQuantizer* quantizer);

  std::string directory_;
  testing::ReferenceModel reference_;
  std::vector<testing::ReferenceBasis> bases_;
  std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

}  // namespace kvlathe
