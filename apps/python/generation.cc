#include "python/generation.h"

#include <algorithm>
#include <chrono>

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

bool HaveAllEnded(const Answers& answers) {
  return std::ranges::all_of(answers, [](const auto& answer) { return answer->has_ended(); });
}

// Lets go of the turn however the block ends.
class Step {
 public:
  explicit Step(Turns* turns) : turns_(turns) { turns_->Lock(); }
  ~Step() { turns_->Unlock(); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  Turns* turns_;
};

// Without the interpreter.
void StepUntil(HeldModel* model, const std::function<bool()>& is_done,
               const std::function<void()>& between) {
  for (;;) {
    {
      const Step step(model->turns());
      model->FreeDropped();
      if (is_done()) return;
      model->engine()->Step();
      if (is_done()) return;
    }
    between();
    model->turns()->LetOthers();
  }
}

// With the turn.
void CancelInEngine(HeldModel* model, const Answers& answers) {
  for (const auto& answer : answers) {
    if (!answer->has_ended()) model->engine()->Cancel(answer->id());
  }
}

void Wait(HeldModel* model, const Answers& answers, const std::function<bool()>& is_done,
          const Tick& tick) {
  model->turns()->CheckProcess();
  const nb::gil_scoped_release released;
  Signals signals;
  auto next = std::chrono::steady_clock::now();
  const auto between = [&] {
    signals.Check();
    if (!tick || std::chrono::steady_clock::now() < next) return;
    next = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    int n_ended = 0;
    int64_t n_tokens = 0;
    {
      const Step step(model->turns());
      for (const auto& answer : answers) {
        n_ended += answer->has_ended();
        n_tokens += std::ssize(answer->ids());
      }
    }
    const nb::gil_scoped_acquire acquired;
    tick(n_ended, n_tokens);
  };
  try {
    StepUntil(model, is_done, between);
  } catch (...) {
    if (!model->is_closed()) {
      const Step step(model->turns());
      CancelInEngine(model, answers);
      while (!HaveAllEnded(answers)) model->engine()->Step();
    }
    throw;
  }
}

int LevelFor(HeldModel* model, const Ask& ask, const std::string* kv) {
  if (kv != nullptr) return model->LevelOf(*kv);
  const bool goes_on = ask.session != nullptr && !ask.session->session.tokens.empty();
  return goes_on ? model->LevelOf(ask.session->kv) : 0;
}

}  // namespace

Answers SubmitAll(HeldModel* model, const std::vector<Ask>& asks, const std::string* kv) {
  Answers answers;
  try {
    for (const Ask& ask : asks) {
      try {
        answers.push_back(Answer::Submit(model, ask, LevelFor(model, ask, kv)));
      } catch (const StatusError& error) {
        if (ask.name.empty()) throw;
        throw StatusError(
            Error(error.status().code(), "{}: {}", ask.name, MessageOf(error.status())));
      }
    }
  } catch (...) {
    if (!model->is_closed()) {
      CancelInEngine(model, answers);
      while (!HaveAllEnded(answers)) model->engine()->Step();
    }
    throw;
  }
  return answers;
}

void WaitForAll(HeldModel* model, const Answers& answers, const Tick& tick) {
  Wait(
      model, answers, [&] { return HaveAllEnded(answers); }, tick);
}

void WaitForNews(HeldModel* model, const Answers& answers) {
  Wait(
      model, answers,
      [&] {
        return HaveAllEnded(answers) ||
               std::ranges::any_of(answers, [](const auto& answer) { return answer->has_news(); });
      },
      nullptr);
}

void Cancel(HeldModel* model, const Answers& answers) {
  model->turns()->CheckProcess();
  if (model->is_closed()) return;
  const Turn turn(model->turns());
  CancelInEngine(model, answers);
  while (!HaveAllEnded(answers)) model->engine()->Step();
}

void CheckEnds(const Answers& answers) {
  for (const auto& answer : answers) {
    const RequestOutcome& outcome = answer->outcome();
    if (outcome.finish_reason != FinishReason::kFailed) continue;
    if (answer->ask().name.empty()) throw StatusError(outcome.status);
    throw StatusError(
        Error(outcome.status.code(), "{}: {}", answer->ask().name, MessageOf(outcome.status)));
  }
}

}  // namespace kvlathe::python
