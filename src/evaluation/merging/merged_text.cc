#include "evaluation/merging/merged_text.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

constexpr int kShortest = 16;  // length of a text for which a compression ratio says something
constexpr int kMostRanges = 32;

Status CheckTexts(const Model& model, std::span<const std::vector<int32_t>> texts) {
  const CacheLayout& layout = model.layout();
  if (!layout.retention.has_value() || !layout.retention->merge.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "this cache merges nothing; a spec with dmc or pool does");
  }
  if (texts.empty() || texts.front().empty()) {
    return Error(StatusCode::kInvalidArgument, "the text is empty");
  }
  for (const std::vector<int32_t>& text : texts) {
    if (text.size() != texts.front().size()) {
      return Error(StatusCode::kInvalidArgument, "the texts differ in length");
    }
  }
  return OkStatus();
}

// How many entries each head holds by now, those of the sinks included.
void CountEntries(const SequenceCache& cache, std::vector<int>* n_entries) {
  const CacheLayout& layout = cache.layout();
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      (*n_entries)[l * layout.n_kv_heads + g] = layout.n_sink + cache.head(l, g).n_entries();
    }
  }
}

double Ratio(double n_positions, double n_entries) {
  return n_entries > 0 ? n_positions / n_entries : 0;
}

// Entries of each head in the first n tokens of all texts.
std::vector<int64_t> EntriesOfHeads(std::span<const MergedText> texts, int n) {
  std::vector<int64_t> entries(texts.empty() ? 0 : texts.front().n_heads());
  for (const MergedText& text : texts) {
    for (int h = 0; h < text.n_heads(); ++h) entries[h] += text.Entries(h, n);
  }
  return entries;
}

}  // namespace

int64_t MergedText::Entries(int head, int n) const {
  int64_t count = 0;
  for (int t = 0; t < n; ++t) count += Begins(t, head) ? 1 : 0;
  return count;
}

StatusOr<std::vector<MergedText>> ReadMergedTexts(Model* model,
                                                  std::span<const std::vector<int32_t>> texts,
                                                  int64_t kv_budget_bytes,
                                                  const Progress& progress) {
  KVL_RETURN_IF_ERROR(CheckTexts(*model, texts));
  const CacheLayout& layout = model->layout();
  const int n_tokens = static_cast<int>(texts.front().size());
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  std::vector<std::unique_ptr<SequenceCache>> caches;
  for (size_t i = 0; i < texts.size(); ++i) {
    caches.push_back(std::make_unique<SequenceCache>(&layout, &pool));
    caches.back()->set_n_prompt(n_tokens);
  }
  const int n_heads = layout.n_layers * layout.n_kv_heads;
  std::vector<MergedText> merged(texts.size(),
                                 {.n_layers = layout.n_layers,
                                  .n_kv_heads = layout.n_kv_heads,
                                  .n_tokens = n_tokens,
                                  .begins = std::vector<uint8_t>(size_t{1} * n_tokens * n_heads)});
  std::vector<std::vector<int>> before(texts.size(), std::vector<int>(n_heads));
  std::vector<int> after(n_heads);
  for (int t = 0; t < n_tokens; ++t) {
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < texts.size(); ++i) {
      KVL_RETURN_IF_ERROR(caches[i]->Extend(1));
      steps.push_back(
          {caches[i].get(), std::span(texts[i]).subspan(t, 1), SequenceStep::Logits::kNone});
    }
    KVL_RETURN_IF_ERROR(model->Forward(steps));
    for (size_t i = 0; i < texts.size(); ++i) {
      CountEntries(*caches[i], &after);
      for (int h = 0; h < n_heads; ++h) {
        merged[i].begins[static_cast<size_t>(t) * n_heads + h] = after[h] > before[i][h] ? 1 : 0;
      }
      before[i] = after;
    }
    if (progress && t % 16 == 0) progress("merging", static_cast<double>(t) / n_tokens);
  }
  if (progress) progress("merging", 1);
  return merged;
}

std::vector<double> CompressionByHead(std::span<const MergedText> texts) {
  std::vector<double> ratios;
  if (texts.empty()) return ratios;
  const int n = texts.front().n_tokens;
  const auto n_positions = static_cast<double>(texts.size()) * n;
  for (const int64_t entries : EntriesOfHeads(texts, n)) {
    ratios.push_back(Ratio(n_positions, static_cast<double>(entries)));
  }
  return ratios;
}

std::vector<LengthCompression> CompressionByLength(std::span<const MergedText> texts) {
  std::vector<LengthCompression> lengths;
  if (texts.empty()) return lengths;
  const int whole = texts.front().n_tokens;
  std::vector<int> n_tokens;
  for (int n = kShortest; n < whole; n *= 2) n_tokens.push_back(n);
  n_tokens.push_back(whole);
  for (const int n : n_tokens) {
    const std::vector<int64_t> entries = EntriesOfHeads(texts, n);
    const auto [fewest, most] = std::ranges::minmax(entries);
    const int64_t sum = std::accumulate(entries.begin(), entries.end(), int64_t{0});
    const auto n_positions = static_cast<double>(texts.size()) * n;
    lengths.push_back(
        {.n_tokens = n,
         .all = Ratio(n_positions * static_cast<double>(entries.size()), static_cast<double>(sum)),
         .least = Ratio(n_positions, static_cast<double>(most)),
         .most = Ratio(n_positions, static_cast<double>(fewest))});
  }
  return lengths;
}

std::vector<AlphaRange> AlphaByPosition(std::span<const MergedText> texts) {
  std::vector<AlphaRange> ranges;
  if (texts.empty()) return ranges;
  const int n = texts.front().n_tokens;
  const int n_range = (n + kMostRanges - 1) / kMostRanges;
  for (int begin = 0; begin < n; begin += n_range) {
    AlphaRange range{begin, std::min(n, begin + n_range), 0};
    int64_t n_joined = 0, n_all = 0;
    for (const MergedText& text : texts) {
      for (int t = range.begin; t < range.end; ++t) {
        for (int h = 0; h < text.n_heads(); ++h) n_joined += text.Begins(t, h) ? 0 : 1;
        n_all += text.n_heads();
      }
    }
    range.alpha = Ratio(static_cast<double>(n_joined), static_cast<double>(n_all));
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace kvlathe
