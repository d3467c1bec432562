#include "engine/drafts/draft_room.h"

#include <algorithm>
#include <cstdint>

#include "engine/drafts/drafter.h"

namespace kvlathe {

std::string_view WhyNothingIsDrafted(const CacheLayout& layout) {
  if (layout.MergesEntries()) {
    return "positions merge into entries as they come, and a refused one cannot be taken out again";
  }
  if (!layout.HasPrunePoints() || !layout.retention->prunes_decode) return {};
  const RetentionPlan& plan = *layout.retention;
  if (plan.votes == RetentionPlan::Votes::kAll) {
    return "the attention of every token is added to the votes for entries, and that of a refused "
           "one cannot be taken out again";
  }
  constexpr int kLeastInterval = 3;  // for one more token that is not at its end
  if (plan.slack == 0 && plan.interval < kLeastInterval) {
    return "entries are dropped behind every token, and what was dropped for a refused one would "
           "be gone";
  }
  return {};
}

Status CheckDrafts(const CacheLayout& layout) {
  const std::string_view why = WhyNothingIsDrafted(layout);
  if (why.empty()) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "drafts do not go with this --kv: {}; leave them out, or choose another cache", why);
}

int DraftRoom(const SequenceCache& cache) {
  const CacheLayout& layout = cache.layout();
  // Until its first run is sealed, queries are summed up.
  if (layout.GathersQueries() && cache.head(0, 0).runs().empty()) return 0;
  // One of the step is not drafted, and one more must be left behind it.
  return static_cast<int>(std::clamp<int64_t>(cache.max_step() - 2, 0, kMostDrafted));
}

}  // namespace kvlathe
