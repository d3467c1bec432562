#include "structured/grammars.h"

#include <xgrammar/compiler.h>

#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "structured/grammar_constraint.h"
#include "structured/xgrammar_messages.h"

namespace kvlathe {
namespace {

// What a token adds to a text. Special tokens add nothing, and XGrammar lets none of those pass.
std::vector<std::string> VocabularyOf(const Tokenizer& tokenizer) {
  std::vector<std::string> vocabulary;
  vocabulary.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    vocabulary.push_back(tokenizer.TokenBytes(id));
  }
  return vocabulary;
}

// Without where in its sources XGrammar says so.
std::string OneLine(std::string_view message) {
  message = message.substr(0, 300);
  std::string line(message.substr(0, message.find('\n')));
  return line;
}

class XGrammars : public Grammars {
 public:
  XGrammars(xgrammar::TokenizerInfo vocabulary, const GrammarOptions& options)
      : options_(options), compiler_(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false) {}

  StatusOr<std::shared_ptr<TokenConstraint>> Constrain(
      const nlohmann::ordered_json& structure) override {
    const std::string key = structure.dump();
    std::optional<xgrammar::CompiledGrammar> grammar = FindKept(key);
    if (!grammar) {
      const std::unique_lock lock(compiler_mutex_, options_.max_wait);
      if (!lock.owns_lock()) {
        return Error(StatusCode::kUnavailable,
                     "grammars of other requests are being compiled; try again later");
      }
      grammar = FindKept(key);  // compiled meanwhile
      if (!grammar) {
        KVL_ASSIGN_OR_RETURN(grammar, Compile(key));
        Keep({key, *grammar, static_cast<int64_t>(grammar->MemorySizeBytes() + key.size())});
      }
    }
    return std::make_shared<GrammarConstraint>(*grammar, options_.n_logits,
                                               options_.max_token_time);
  }

 private:
  struct Kept {
    std::string key;
    xgrammar::CompiledGrammar grammar;
    int64_t n_bytes;
  };

  std::optional<xgrammar::CompiledGrammar> FindKept(const std::string& key);
  StatusOr<xgrammar::CompiledGrammar> Compile(const std::string& structure);
  void Keep(Kept kept);

  GrammarOptions options_;
  std::timed_mutex compiler_mutex_;
  xgrammar::GrammarCompiler compiler_;  // under compiler_mutex_
  std::mutex kept_mutex_;               // never held while a grammar is compiled
  // Under kept_mutex_.
  std::list<Kept> kept_;  // the last used first
  int64_t n_kept_bytes_ = 0;
};

std::optional<xgrammar::CompiledGrammar> XGrammars::FindKept(const std::string& key) {
  const std::lock_guard lock(kept_mutex_);
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->key != key) continue;
    kept_.splice(kept_.begin(), kept_, kept);
    return kept->grammar;
  }
  return std::nullopt;
}

StatusOr<xgrammar::CompiledGrammar> XGrammars::Compile(const std::string& structure) {
  TakeXGrammarWarnings();
  try {
    xgrammar::CompiledGrammar grammar = compiler_.CompileStructuralTag(structure);
    const std::string warnings = TakeXGrammarWarnings();
    if (!warnings.empty()) {
      return Error(StatusCode::kInvalidArgument,
                   "the schema has something that the grammar would not hold: {}",
                   OneLine(warnings));
    }
    const auto n_bytes = static_cast<int64_t>(grammar.MemorySizeBytes());
    if (n_bytes > options_.max_grammar_bytes) {
      return Error(StatusCode::kResourceExhausted,
                   "the grammar of the schema takes {} bytes, allowed are {}; make it simpler",
                   n_bytes, options_.max_grammar_bytes);
    }
    return grammar;
  } catch (const std::bad_alloc&) {
    return Error(StatusCode::kResourceExhausted, "no memory for the grammar of the schema");
  } catch (const std::exception& error) {
    return Error(StatusCode::kInvalidArgument, "the schema cannot become a grammar: {}",
                 OneLine(error.what()));
  }
}

void XGrammars::Keep(Kept kept) {
  const std::lock_guard lock(kept_mutex_);
  n_kept_bytes_ += kept.n_bytes;
  kept_.push_front(std::move(kept));
  while (n_kept_bytes_ > options_.max_memo_bytes && kept_.size() > 1) {
    n_kept_bytes_ -= kept_.back().n_bytes;
    kept_.pop_back();
  }
}

}  // namespace

StatusOr<std::unique_ptr<Grammars>> Grammars::Make(const Tokenizer& tokenizer,
                                                   const GrammarOptions& options) {
  if (options.n_logits < tokenizer.vocab_size()) {
    return Error(StatusCode::kInvalidArgument,
                 "the tokenizer has {} tokens, but the model has logits of {} only",
                 tokenizer.vocab_size(), options.n_logits);
  }
  try {
    return std::make_unique<XGrammars>(
        xgrammar::TokenizerInfo(VocabularyOf(tokenizer), xgrammar::VocabType::RAW, options.n_logits,
                                options.end_ids),
        options);
  } catch (const std::exception& error) {
    return Error(StatusCode::kInvalidArgument, "the vocabulary cannot be used for grammars: {}",
                 OneLine(error.what()));
  }
}

}  // namespace kvlathe
