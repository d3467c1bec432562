// Tests have a random model that decides what merges, and the literal decoder beside it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"

namespace kvlathe {

inline constexpr int kTokens = 260, kPrompt = 210;
inline constexpr int kSealedTokens = 480;  // enough to seal behind the prompt as well

inline constexpr testing::ReferenceDmc kCode;  // as the released code decides
inline constexpr testing::ReferenceDmc kPaper = {
    .is_last = false, .offset = 0, .weight_offset = 1.5, .epsilon = 0, .zeroes_after_rope = false};

struct MergedCase {
  const char* spec;
  testing::ReferenceMerging merging;
  int n_sink = 0;
  std::optional<testing::ReferenceDmc> dmc = std::nullopt;
  int n_kv_heads = 2;
  bool has_basis = false;
  std::optional<testing::ReferenceQuantizer> quantizer = std::nullopt;
  bool is_repaired = false;  // by factors of full rank: nothing that the codes lost stays lost

  int n_tokens() const { return quantizer.has_value() ? kSealedTokens : kTokens; }
};

inline void PrintTo(const MergedCase& c, std::ostream* out) { *out << c.spec; }

inline std::string NameOfCase(const ::testing::TestParamInfo<MergedCase>& test) {
  std::string name = test.param.spec;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
}

// Every head seals its closed entries where the prompt ends, and a buffer of them at most wherever
// a buffer of positions has come since. A quantizer called "whole" leaves rows as they are.
class SealClosedLiterally {
 public:
  SealClosedLiterally(const testing::ReferenceQuantizer& quantizer,
                      const testing::ReferenceModel& model)
      : q_(quantizer),
        n_seen_(model.n_layers),
        n_sealed_(model.n_layers, std::vector<int>(model.n_kv_heads)) {}

  void operator()(int layer, testing::ReferenceRows* rows);

  const std::vector<std::vector<int>>& n_sealed() const { return n_sealed_; }

 private:
  testing::ReferenceQuantizer q_;
  std::vector<int> n_seen_;
  std::vector<std::vector<int>> n_sealed_;  // entries, [layer][kv head]
};

double LargestDifference(const testing::Matrix& a, const testing::Matrix& b);

class MergedModel : public ::testing::TestWithParam<MergedCase> {
 protected:
  MergedModel();
  ~MergedModel() override;

  void Write(const MergedCase& c);
  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text);

  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`. After each,
  // what the pool gave out is what entries of these numbers take.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, testing::Matrix* logits);

  static std::vector<int> Lengths(const SequenceCache& cache, const CacheLayout& layout);
  static int64_t BytesByLengths(const SequenceCache& cache, const CacheLayout& layout);
  std::unique_ptr<SequenceCache> NewCache(const Model& model, const MergedCase& c);

  // Logits of the literal decoder, and how many entries its heads have in the end.
  testing::Matrix Literally(const MergedCase& c, const testing::ReferenceMerging* merging,
                            SealClosedLiterally* seal, std::vector<int>* lengths);

  // Neither the way a text is cut nor what else is in the batch changes a bit of a deterministic
  // model; and a batch of any model gives what its sequences give alone.
  void ExpectBatchesMergeTheSame();

  std::string directory_;
  testing::ReferenceModel reference_;
  std::vector<testing::ReferenceBasis> bases_;
  std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

}  // namespace kvlathe
