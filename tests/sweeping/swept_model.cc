#include "sweeping/swept_model.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "loaded_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {

using testing::Matrix;

SweptModel::SweptModel() : directory_(testing::FreshDirectory("swept_model")) {
  std::mt19937_64 random(8);
  for (int i = 0; i < kSealedTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 97));
}

SweptModel::~SweptModel() { std::filesystem::remove_all(directory_); }

void SweptModel::Write(const SweptCase& c) {
  reference_ = testing::WriteRandomModel(
      {.model_type = c.model_type, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .dms = c.dms},
      directory_, 31);
  if (c.has_basis) bases_ = testing::RandomBases(reference_, 5);
}

std::unique_ptr<Model> SweptModel::Load(Isa isa, DType type, const char* spec_text) {
  return testing::LoadWithBases({directory_, reference_, bases_}, type, spec_text,
                                MakeMachine(&threads_, isa));
}

std::unique_ptr<SequenceCache> SweptModel::NewCache(const Model& model) {
  auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
  cache->set_n_prompt(kPrompt);
  return cache;
}

void SweptModel::Read(Model* model, SequenceCache* cache, int n_tokens, int chunk, Matrix* logits) {
  while (cache->n_tokens() < n_tokens) {
    const int begin = cache->n_tokens();
    const int n = static_cast<int>(std::min<int64_t>({chunk, n_tokens - begin, cache->max_step()}));
    const Status extended = cache->Extend(n);
    ASSERT_TRUE(extended.ok()) << extended;
    const SequenceStep step{cache, std::span(ids_).subspan(begin, n), SequenceStep::Logits::kAll};
    const Status status = model->Forward({&step, 1});
    ASSERT_TRUE(status.ok()) << status;
    for (int t = 0; t < n; ++t) {
      logits->emplace_back(model->logits(t).begin(), model->logits(t).end());
    }
    std::vector<MergedLength> lengths;
    const CacheLayout& layout = model->layout();
    for (int i = 0; i < std::ssize(layout.shapes); ++i) {
      lengths.push_back(cache->head(i / layout.n_kv_heads, i % layout.n_kv_heads).merged_length());
    }
    ASSERT_EQ(cache->bytes().total(), MergedParts(layout, lengths).total());
    ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
  }
}

std::vector<int> SweptModel::Lengths(const SequenceCache& cache) {
  std::vector<int> lengths;
  for (int l = 0; l < cache.layout().n_layers; ++l) {
    for (int g = 0; g < cache.layout().n_kv_heads; ++g) {
      lengths.push_back(std::max(0, cache.head(l, g).n_entries()));
    }
  }
  return lengths;
}

SweptModel::Literal SweptModel::Literally(const SweptCase& c,
                                          const testing::ReferenceQuantizer* quantizer) {
  testing::ReferenceDms method = c.dms;
  method.n_prompt = kPrompt;
  method.window = c.window.value_or(method.window);
  method.offset = c.offset.value_or(method.offset);
  testing::SweepLiterally sweep(method, reference_);
  std::optional<SealClosedLiterally> seal;
  if (quantizer != nullptr) seal.emplace(*quantizer, reference_);
  Literal literal;
  literal.lengths.assign(reference_.n_layers * reference_.n_kv_heads, 0);
  const std::vector<int> ids(ids_.begin(), ids_.begin() + c.n_tokens());
  literal.logits = testing::ReferenceLogits(
      reference_, ids, bases_, method.n_sink, [&](int layer, testing::ReferenceRows* rows) {
        sweep(layer, rows);
        for (int g = 0; g < reference_.n_kv_heads; ++g) {
          literal.lengths[layer * reference_.n_kv_heads + g] =
              static_cast<int>(rows->keys[g].size()) - method.n_sink;
        }
        if (seal.has_value()) (*seal)(layer, rows);
      });
  literal.share = sweep.ShareOf(0);
  if (seal.has_value()) literal.n_sealed = seal->n_sealed();
  return literal;
}

}  // namespace kvlathe
