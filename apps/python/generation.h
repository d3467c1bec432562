// Runs the engine of a held model for whoever waits for answers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "python/answer.h"

namespace kvlathe::python {

using Answers = std::vector<std::shared_ptr<Answer>>;

// Called with the interpreter ten times a second, with how many have ended and all their tokens;
// may throw, also what Python raised.
using Tick = std::function<void(int n_ended, int64_t n_tokens)>;

// Hands requests to the engine, all or none: an error takes back those before it. `kv` names the
// cache; null: the first of the model, or the session's.
Answers SubmitAll(HeldModel* model, const std::vector<Ask>& asks, const std::string* kv);
// Steps the engine, in turns with other threads, until all have ended, or any has news. What is
// thrown meanwhile, by a signal too, cancels these requests.
void WaitForAll(HeldModel* model, const Answers& answers, const Tick& tick);
void WaitForNews(HeldModel* model, const Answers& answers);
// Returns once they have ended.
void Cancel(HeldModel* model, const Answers& answers);
// Throws the error of the first that failed.
void CheckEnds(const Answers& answers);

}  // namespace kvlathe::python
