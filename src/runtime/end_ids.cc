#include "runtime/end_ids.h"

#include <algorithm>
#include <optional>

namespace kvlathe {

std::vector<int32_t> EndIds(const Workspace& workspace) {
  std::vector<int32_t> ids(workspace.config().eos_ids.begin(), workspace.config().eos_ids.end());
  const std::optional<int32_t> eos = workspace.tokenizer().eos_id();
  if (eos.has_value() && std::ranges::find(ids, *eos) == ids.end()) ids.push_back(*eos);
  return ids;
}

}  // namespace kvlathe
