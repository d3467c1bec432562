#include "tokenizer/files/rank_merges.h"

#include <string_view>

namespace kvlathe {

void AddRankMerges(const Vocabulary& vocabulary, MergeTable* merges) {
  merges->Reserve(static_cast<size_t>(vocabulary.size()) * 4);
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.TextOf(id);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = vocabulary.Find(text.substr(0, cut));
      if (!left) continue;
      const auto right = vocabulary.Find(text.substr(cut));
      if (right) merges->Add(*left, *right, id, id);
    }
  }
}

}  // namespace kvlathe
