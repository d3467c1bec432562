#include "base/near_words.h"

#include <algorithm>
#include <utility>

namespace kvlathe {
namespace {

// Edits between two words; neighbours that change places are one (optimal string alignment).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

// How many edits still are a slip, for a word of that length.
size_t MostEdits(std::string_view word) { return std::max<size_t>(1, word.size() / 3); }

}  // namespace

std::optional<std::string> NearestOf(std::string_view word,
                                     const std::vector<std::string>& candidates) {
  std::optional<std::string> nearest;
  size_t fewest = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance > MostEdits(candidate)) continue;
    if (nearest.has_value() && distance >= fewest) continue;
    nearest = candidate;
    fewest = distance;
  }
  return nearest;
}

std::vector<std::string> NearWords(std::string_view word,
                                   const std::vector<std::string>& candidates, size_t most) {
  std::vector<std::pair<size_t, const std::string*>> near;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    const bool begins =
        !word.empty() && (candidate.starts_with(word) || word.starts_with(candidate));
    if (begins || distance <= MostEdits(candidate)) near.emplace_back(distance, &candidate);
  }
  std::ranges::stable_sort(near, {}, &std::pair<size_t, const std::string*>::first);
  std::vector<std::string> words;
  for (const auto& [distance, candidate] : near) {
    if (words.size() < most) words.push_back(*candidate);
  }
  return words;
}

}  // namespace kvlathe
