#include "merged_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>

#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "loaded_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {

using testing::Matrix;
using testing::ReferenceMerging;

void SealClosedLiterally::operator()(int layer, testing::ReferenceRows* rows) {
  const int n_behind = ++n_seen_[layer] - kPrompt;
  if (n_behind < 0 || n_behind % q_.buffer != 0) return;
  for (size_t g = 0; g < rows->keys.size(); ++g) {
    const int n_closed =
        std::max(0, static_cast<int>(rows->keys[g].size()) - q_.n_sink - 1 - q_.newest);
    const int begin = n_sealed_[layer][g];
    int end = begin;
    if (n_behind == 0) end = n_closed - n_closed % 64;
    if (n_behind > 0 && n_closed - begin >= q_.buffer) end = begin + q_.buffer;
    if (q_.name != "whole") {
      testing::SealHeadLiterally(q_, layer * rows->keys.size() + g, begin, end, &rows->keys[g],
                                 &rows->values[g]);
    }
    n_sealed_[layer][g] = end;
  }
}

double LargestDifference(const Matrix& a, const Matrix& b) {
  double largest = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      largest = std::max(largest, std::abs(a[t][i] - b[t][i]));
    }
  }
  return largest;
}

MergedModel::MergedModel() : directory_(testing::FreshDirectory("merged_model")) {
  std::mt19937_64 random(8);
  for (int i = 0; i < kSealedTokens; ++i) ids_.push_back(static_cast<int32_t>(random() % 97));
}

MergedModel::~MergedModel() { std::filesystem::remove_all(directory_); }

void MergedModel::Write(const MergedCase& c) {
  reference_ = testing::WriteRandomModel({.n_heads = 4,
                                          .n_kv_heads = c.n_kv_heads,
                                          .head_dim = 32,
                                          .attention_bias = true,
                                          .dmc = c.dmc},
                                         directory_, 31);
  if (c.has_basis) bases_ = testing::RandomBases(reference_, 5);
}

std::unique_ptr<Model> MergedModel::Load(Isa isa, DType type, const char* spec_text) {
  return testing::LoadWithBases({directory_, reference_, bases_}, type, spec_text,
                                MakeMachine(&threads_, isa));
}

void MergedModel::Read(Model* model, SequenceCache* cache, int n_tokens, int chunk,
                       Matrix* logits) {
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
    ASSERT_EQ(cache->bytes().total(), BytesByLengths(*cache, model->layout()));
    ASSERT_EQ(cache->bytes().total(), pool_.usage().used_bytes);
  }
}

std::vector<int> MergedModel::Lengths(const SequenceCache& cache, const CacheLayout& layout) {
  std::vector<int> lengths;
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      lengths.push_back(std::max(0, cache.head(l, g).n_entries()));
    }
  }
  return lengths;
}

int64_t MergedModel::BytesByLengths(const SequenceCache& cache, const CacheLayout& layout) {
  std::vector<MergedLength> lengths;
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) lengths.push_back(cache.head(l, g).merged_length());
  }
  return MergedParts(layout, lengths).total();
}

std::unique_ptr<SequenceCache> MergedModel::NewCache(const Model& model, const MergedCase& c) {
  auto cache = std::make_unique<SequenceCache>(&model.layout(), &pool_);
  if (c.quantizer.has_value()) cache->set_n_prompt(kPrompt);
  return cache;
}

Matrix MergedModel::Literally(const MergedCase& c, const ReferenceMerging* merging,
                              SealClosedLiterally* seal, std::vector<int>* lengths) {
  const std::vector<int> ids(ids_.begin(), ids_.begin() + c.n_tokens());
  lengths->assign(reference_.n_layers * reference_.n_kv_heads, 0);
  return testing::ReferenceLogits(
      reference_, ids, bases_, c.n_sink,
      [&](int layer, testing::ReferenceRows* rows) {
        for (int g = 0; g < reference_.n_kv_heads; ++g) {
          (*lengths)[layer * reference_.n_kv_heads + g] =
              static_cast<int>(rows->keys[g].size()) - c.n_sink;
        }
        if (seal != nullptr) (*seal)(layer, rows);
      },
      merging);
}

void MergedModel::ExpectBatchesMergeTheSame() {
  const MergedCase& c = GetParam();
  Write(c);
  for (const bool is_deterministic : {true, false}) {
    std::unique_ptr<Model> model =
        Load(AvailableIsas().back(), is_deterministic ? DType::kBf16 : DType::kF32, c.spec);
    model->set_deterministic(is_deterministic);
    Matrix alone;
    const std::unique_ptr<SequenceCache> single = NewCache(*model, c);
    Read(model.get(), single.get(), c.n_tokens(), 512, &alone);
    if (HasFatalFailure()) return;
    std::vector<std::unique_ptr<SequenceCache>> caches;
    for (int i = 0; i < 3; ++i) {
      caches.push_back(NewCache(*model, c));
    }
    for (int round = 0; caches.back()->n_tokens() < c.n_tokens(); ++round) {
      std::vector<SequenceStep> steps;
      for (int i = 0; i < 3; ++i) {
        const int begin = caches[i]->n_tokens();
        const int n = static_cast<int>(
            std::min<int64_t>({i == 1 ? 1 : 31, c.n_tokens() - begin, caches[i]->max_step()}));
        if (round < 7 * i || n == 0) continue;
        ASSERT_TRUE(caches[i]->Extend(n).ok());
        steps.push_back({caches[i].get(), std::span(ids_).subspan(begin, n)});
      }
      ASSERT_TRUE(model->Forward(steps).ok());
      for (size_t s = 0; s < steps.size(); ++s) {
        const int n_tokens = steps[s].cache->n_tokens();
        const Matrix got = {{model->logits(s).begin(), model->logits(s).end()}};
        const double difference = LargestDifference(got, {alone[n_tokens - 1]});
        // A row may round to the neighbouring code.
        const double most = c.quantizer.has_value() ? 0.05 : 1e-3;
        ASSERT_LE(difference, is_deterministic ? 0 : most) << n_tokens;
      }
    }
    EXPECT_EQ(Lengths(*caches[2], model->layout()), Lengths(*single, model->layout()));
  }
}

}  // namespace kvlathe
