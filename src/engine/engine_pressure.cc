// How caches that run give up bits where memory is short.
#include <optional>

#include "engine/engine.h"

namespace kvlathe {

// Seals a run again in fewer bits. kEnough: others could be, in the next step.
Engine::Pressed Engine::PressNewest() {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    Sequence& s = **it;
    if (s.request.refuses_pressure) continue;
    const std::optional<int> run_idx = s.cache->RunToPress();
    if (!run_idx.has_value()) continue;
    if (n_pressed_ >= kMostPressedPositions) return Pressed::kEnough;
    const int64_t n_before = s.cache->n_pressed();
    // Without memory for it, what is left is to preempt.
    if (!levels_[s.request.level]->PressRun(s.cache.get(), *run_idx).ok()) return Pressed::kNothing;
    const int64_t n_positions = s.cache->n_pressed() - n_before;
    n_pressed_ += n_positions;
    s.outcome.n_pressed_tokens += n_positions;
    if (observer() != nullptr) observer()->OnPressed(s.id, n_positions);
    return Pressed::kRun;
  }
  return Pressed::kNothing;
}

}  // namespace kvlathe
