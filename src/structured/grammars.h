// Grammars of answers are compiled for one model's vocabulary, and make constraints that hold
// generation to them. By XGrammar, which is an optional part of the build.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/status.h"
#include "engine/token_constraint.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

struct GrammarOptions {
  int n_logits = 0;  // tokens that the model has logits of; at least those of the tokenizer
  // At which a sequence ends, as in Request::stop_ids: allowed where the text may end.
  std::vector<int32_t> end_ids;
  int64_t max_memo_bytes = 64 << 20;     // of compiled grammars that are kept
  int64_t max_grammar_bytes = 32 << 20;  // of one
  // How long to wait for others whose grammars are being compiled: short, as threads that serve
  // connections wait. Grammars that are kept do not wait.
  std::chrono::milliseconds max_wait = std::chrono::milliseconds(500);
  // Processor time that a grammar may take for one token, on the thread that steps. What can be
  // read in many ways takes more with each token: the request then ends with kResourceExhausted.
  std::chrono::milliseconds max_token_time = std::chrono::milliseconds(250);
};

// Any number of threads may use one; one at a time compiles, for seconds at most (SchemaLimits).
class Grammars {
 public:
  // kUnimplemented: this build has no XGrammar, and what to do. The special tokens of a vocabulary
  // are never part of an answer by a grammar.
  static StatusOr<std::unique_ptr<Grammars>> Make(const Tokenizer& tokenizer,
                                                  const GrammarOptions& options);
  virtual ~Grammars() = default;

  // For one answer, from its first token on. `structure` is of answer_structure.h; compiled
  // grammars are kept by it. kInvalidArgument: it cannot be compiled, nothing satisfies it, or it
  // has something that a grammar would not hold; kResourceExhausted: its grammar is too large;
  // kUnavailable: the wait for others was too long.
  virtual StatusOr<std::shared_ptr<TokenConstraint>> Constrain(
      const nlohmann::ordered_json& structure) = 0;
};

}  // namespace kvlathe
