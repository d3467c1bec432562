// Tests have a random model whose caches drop entries, with the maps that some specs need.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_retention.h"

namespace kvlathe {

inline constexpr int kTokens = 260, kPrompt = 170, kRun = 64;
inline constexpr int kManyTokens = 480;  // sealed entries are dropped several times

// That ask for the prompt again.
inline const std::vector<int32_t> kFirstWords = {5, 17, 3}, kLaterWords = {9, 2}, kEndWords = {11};

struct RetainedCase {
  const char* spec;
  testing::ReferenceRetention literal;
  bool has_latents = false;  // random ones, in place of palu's; shared as the spec says
  int chunk = 0;             // of the prompt, read again (kvzip)
  // Random maps in place of fdc's.
  bool has_maps() const { return std::string_view(spec).starts_with("fdc"); }
};

inline void PrintTo(const RetainedCase& c, std::ostream* out) { *out << c.spec; }

inline bool ReadsWholeKeys(std::string_view spec) {
  return spec.find("score=exact") != std::string_view::npos;
}

class RetainedModelTest : public ::testing::TestWithParam<RetainedCase> {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  // Writes a model of this shape, whose scores are capped; 0: which are not.
  static void SetUpModel(const testing::RandomModelShape& shape, double score_cap);

  // What the case's cache keeps is what the literal method keeps, and so are the logits.
  void KeepsWhatTheLiteralMethodKeeps();

  // `slack`: of budgets behind the prompt, where it is not the spec's.
  std::unique_ptr<Model> Load(Isa isa, DType type, const char* spec_text, double slack = 0);

  std::unique_ptr<SequenceCache> NewCache(const Model& model, int n_tokens = kTokens);

  // Adds logits after every token until n_tokens are there; chunks of at most `chunk`.
  void Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, testing::Matrix* logits);

  // The next n tokens.
  void Step(Model* model, SequenceCache* cache, int n);

  // What the prompt votes while it is read again, in chunks of so many tokens behind the words.
  static testing::RepeatLiterally::Votes VotesOfRepeat(
      const testing::ReferenceRetention& literal, int chunk,
      const std::vector<testing::ReferenceBasis>& bases, bool has_whole_keys);

  static std::vector<int> Positions(const SequenceCache& cache, int layer_idx, int kv_head_idx);

  static double LargestDifference(const testing::Matrix& a, const testing::Matrix& b);

  // The maps in place of those that the spec would calibrate.
  static const std::vector<testing::ReferenceBasis>& BasesOf(std::string_view spec);

  static std::string directory_;
  static testing::ReferenceModel reference_;
  static std::vector<testing::ReferenceBasis> maps_, latents_, shared_latents_;
  static std::vector<int32_t> ids_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

}  // namespace kvlathe
