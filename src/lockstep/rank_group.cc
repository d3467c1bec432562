#include "lockstep/rank_group.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "io/byte_reader.h"

namespace kvlathe {
namespace {

std::vector<std::string_view> LinesOf(std::string_view facts) {
  std::vector<std::string_view> lines;
  while (!facts.empty()) {
    const size_t end = facts.find('\n');
    lines.push_back(facts.substr(0, end));
    facts.remove_prefix(end == std::string_view::npos ? facts.size() : end + 1);
  }
  return lines;
}

// The first line of `theirs` that is none of `ours`.
std::string FirstDifference(std::string_view ours, std::string_view theirs) {
  const std::vector<std::string_view> known = LinesOf(ours);
  for (const std::string_view line : LinesOf(theirs)) {
    if (std::ranges::find(known, line) == known.end()) return std::string(line);
  }
  return "something that is missing there";
}

StatusOr<std::vector<std::string>> GatherTexts(Communicator* all, const std::string& own) {
  const auto bytes_of = [](auto& value) { return std::as_writable_bytes(std::span(&value, 1)); };
  auto size = static_cast<uint64_t>(own.size());
  std::vector<uint64_t> sizes(all->size());
  KVL_RETURN_IF_ERROR(all->AllGather(bytes_of(size), std::as_writable_bytes(std::span(sizes))));
  std::vector<std::string> texts;
  for (int r = 0; r < all->size(); ++r) {
    std::string text = r == all->rank() ? own : std::string(sizes[r], '\0');
    KVL_RETURN_IF_ERROR(all->Broadcast(r, std::as_writable_bytes(std::span(text))));
    texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

StatusOr<std::unique_ptr<RankGroup>> MakeRankGroup(std::unique_ptr<Communicator> all,
                                                   const RankGrid& grid,
                                                   const RankPatience& patience) {
  if (all->size() != grid.n_ranks()) {
    return Error(
        StatusCode::kInvalidArgument,
        "--tp {} and --pp {} need {} ranks, and there are {}; start them with mpirun -n {} "
        "kvlathe ...",
        grid.n_tensor_ranks, grid.n_stages, grid.n_ranks(), all->size(), grid.n_ranks());
  }
  auto group = std::make_unique<RankGroup>();
  group->grid = grid;
  std::vector<int> of_stage(grid.n_tensor_ranks);
  std::iota(of_stage.begin(), of_stage.end(),
            all->rank() / grid.n_tensor_ranks * grid.n_tensor_ranks);
  all->set_timeout(patience.start);
  KVL_ASSIGN_OR_RETURN(group->stage, all->Split(of_stage));
  group->stage->set_timeout(patience.step);
  group->all = std::move(all);
  group->patience = patience;
  return group;
}

int RankGroup::CountHere() const {
  int n_here = 0;
  for (int r = 0; r < all->size(); ++r) {
    if (all->host_of(r) == all->host_of(rank())) ++n_here;
  }
  return n_here;
}

void RankGroup::BeginLockStep() {
  if (is_leader()) {
    leader = std::make_unique<LockStep>(all.get(), patience.step, patience.start);
    leader->set_on_lost(on_lost);
  } else {
    all->set_timeout(patience.step);
  }
}

Status Agree(Communicator* all, const RankCard& card) {
  std::string own;
  AppendBytes(static_cast<int32_t>(card.opened.code()), &own);
  own += card.opened.ok() ? card.facts : MessageOf(card.opened);
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string> cards, GatherTexts(all, own));
  for (int r = 0; r < all->size(); ++r) {
    int32_t code = 0;
    ByteReader(std::as_bytes(std::span(cards[r]))).Read(&code);
    if (code == 0) continue;
    // What all ranks say alike is no matter of one of them.
    const bool is_everywhere = std::vector(cards.size(), cards[r]) == cards;
    const std::string message = cards[r].substr(sizeof(code));
    return is_everywhere ? Error(static_cast<StatusCode>(code), "{}", message)
                         : Error(static_cast<StatusCode>(code), "rank {} on {}: {}", r,
                                 all->host_of(r), message);
  }
  for (int r = 1; r < all->size(); ++r) {
    if (cards[r] == cards[0]) continue;
    const std::string_view first = std::string_view(cards[0]).substr(sizeof(int32_t)),
                           other = std::string_view(cards[r]).substr(sizeof(int32_t));
    return Error(
        StatusCode::kInvalidArgument,
        "rank {} on {} has another {} than rank 0 on {} ({}); all ranks must have the same "
        "build, model and options",
        r, all->host_of(r), FirstDifference(first, other), all->host_of(0),
        FirstDifference(other, first));
  }
  return OkStatus();
}

}  // namespace kvlathe
