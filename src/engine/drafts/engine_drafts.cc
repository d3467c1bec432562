// How sequences get several tokens of a step: drafted ones are computed behind the one that is
// known, and count as long as they are what is generated.
#include <algorithm>
#include <vector>

#include "engine/drafts/draft_room.h"
#include "engine/engine.h"

namespace kvlathe {
namespace {

// Rows of a step that decodes, with drafts, at most: until there are so many, a row more costs
// little, because the weights have to be read anyway.
constexpr int64_t kMostDecodeRows = 32;

}  // namespace

void EngineSequence::AddDraft(int64_t n_most) {
  // The last token that is asked for comes from the row in front of it.
  const int64_t n_left = request.max_tokens - std::ssize(outcome.tokens) - 1;
  const int64_t n = std::min({n_most, n_left, int64_t{DraftRoom(*cache)}});
  if (n <= 0) return;
  std::vector<int32_t> draft = request.drafter->Propose(tokens, n_given, static_cast<int>(n));
  if (std::ssize(draft) > n) draft.resize(n);
  n_draft = static_cast<int>(draft.size());
  input.insert(input.end(), draft.begin(), draft.end());
}

void EngineSequence::DropDraft() {
  input.resize(input.size() - n_draft);
  n_draft = 0;
}

bool EngineSequence::AcceptsNext(int32_t token) {
  if (n_unchecked == 0 || input[input.size() - n_unchecked] != token) return false;
  ++outcome.n_accepted_tokens;
  return true;
}

void EngineSequence::EndDraft() {
  if (n_draft == 0) return;
  const auto n_kept = static_cast<int>(n_cached());
  n_draft = n_unchecked = 0;
  cache->TakeBack(n_kept);
}

// Half of what is left of a step at most, so that drafts never starve prompts. Who drafts less than
// an equal share leaves it to those that come behind. Returns how many tokens were drafted.
int64_t Engine::ShareDrafts(int64_t n_left) {
  std::vector<Sequence*> drafting;
  int64_t n_decoding = 0;
  for (const auto& s : running_) {
    if (!s->decodes() || s->input.empty()) continue;
    ++n_decoding;
    if (s->request.drafter != nullptr) drafting.push_back(s.get());
  }
  int64_t n_room = std::min(n_left / 2, kMostDecodeRows - n_decoding), n_drafted = 0;
  for (size_t i = 0; i < drafting.size() && n_room > 0; ++i) {
    const auto n_others = static_cast<int64_t>(drafting.size() - i);
    drafting[i]->AddDraft((n_room + n_others - 1) / n_others);
    n_room -= drafting[i]->n_draft;
    n_drafted += drafting[i]->n_draft;
  }
  return n_drafted;
}

// From the rows of a step that end before end_row: the token of its last row, or, with drafts, of
// each row up to the first whose token is another than was drafted.
void Engine::TakeTokens(Sequence* s, Model* model, int64_t end_row) {
  int64_t row = end_row - 1 - s->n_unchecked;
  if (s->n_unchecked > 0) {
    s->outcome.n_drafted_tokens += s->n_unchecked;
    if (observer() != nullptr) observer()->OnDrafted(s->id, s->n_unchecked, 0);
  }
  for (;;) {
    const Taken taken = TakeToken(s, model, row++);
    if (taken == Taken::kEnded) return;
    if (taken == Taken::kToken) break;
    --s->n_unchecked;
  }
  s->EndDraft();
}

}  // namespace kvlathe
