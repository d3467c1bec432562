#include "structured/grammars.h"

#include <xgrammar/compiler.h>

#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "structured/answer_structure.h"
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
  XGrammars(xgrammar::TokenizerInfo vocabulary, std::shared_ptr<const TokenTexts> tokens,
            const GrammarOptions& options)
      : options_(options),
        compiler_(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false),
        tokens_(std::move(tokens)) {}

  StatusOr<std::shared_ptr<TokenConstraint>> Constrain(
      const nlohmann::ordered_json& structure) override {
    const std::string key = structure.dump();
    std::optional<Compiled> compiled = FindKept(key);
    if (!compiled) {
      const std::unique_lock lock(compiler_mutex_, options_.max_wait);
      if (!lock.owns_lock()) {
        return Error(StatusCode::kUnavailable,
                     "grammars of other requests are being compiled; try again later");
      }
      compiled = FindKept(key);  // compiled meanwhile
      if (!compiled) {
        KVL_ASSIGN_OR_RETURN(compiled, CompileWithRules(structure));
        Keep({key, *compiled, compiled->n_bytes() + std::ssize(key)});
      }
    }
    std::unique_ptr<AnswerFollower> follower;
    if (compiled->followed != nullptr) {
      follower = std::make_unique<AnswerFollower>(compiled->followed, tokens_);
    }
    return std::make_shared<GrammarConstraint>(compiled->grammar, std::move(follower),
                                               options_.n_logits, options_.max_token_time);
  }

 private:
  struct Compiled {
    xgrammar::CompiledGrammar grammar;
    std::shared_ptr<const FollowedAnswer> followed;  // null: the grammar holds everything

    int64_t n_bytes() const {
      return static_cast<int64_t>(grammar.MemorySizeBytes()) +
             (followed == nullptr ? 0 : followed->schema.n_bytes());
    }
  };
  struct Kept {
    std::string key;
    Compiled compiled;
    int64_t n_bytes;
  };

  std::optional<Compiled> FindKept(const std::string& key);
  StatusOr<Compiled> CompileWithRules(nlohmann::ordered_json structure);
  StatusOr<xgrammar::CompiledGrammar> Compile(const std::string& structure);
  void Keep(Kept kept);

  GrammarOptions options_;
  std::timed_mutex compiler_mutex_;
  xgrammar::GrammarCompiler compiler_;  // under compiler_mutex_
  std::shared_ptr<const TokenTexts> tokens_;
  std::mutex kept_mutex_;  // never held while a grammar is compiled
  // Under kept_mutex_.
  std::list<Kept> kept_;  // the last used first
  int64_t n_kept_bytes_ = 0;
};

std::optional<XGrammars::Compiled> XGrammars::FindKept(const std::string& key) {
  const std::lock_guard lock(kept_mutex_);
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->key != key) continue;
    kept_.splice(kept_.begin(), kept_, kept);
    return kept->compiled;
  }
  return std::nullopt;
}

StatusOr<XGrammars::Compiled> XGrammars::CompileWithRules(nlohmann::ordered_json structure) {
  std::shared_ptr<FollowedAnswer> followed;
  if (const auto described = structure.find(kFollowedKey); described != structure.end()) {
    followed = std::make_shared<FollowedAnswer>();
    followed->thoughts_end = (*described)["thoughts_end"].get<std::string>();
    followed->fronts = (*described)["fronts"].get<std::vector<std::string>>();
    KVL_ASSIGN_OR_RETURN(
        followed->schema,
        FollowedSchema::Make((*described)["schemas"].get<std::vector<nlohmann::ordered_json>>()));
    if (!followed->schema.has_text_rules()) followed = nullptr;
    structure.erase(kFollowedKey);
  }
  KVL_ASSIGN_OR_RETURN(xgrammar::CompiledGrammar grammar, Compile(structure.dump()));
  return Compiled{std::move(grammar), std::move(followed)};
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
    std::vector<std::string> vocabulary = VocabularyOf(tokenizer);
    xgrammar::TokenizerInfo info(vocabulary, xgrammar::VocabType::RAW, options.n_logits,
                                 options.end_ids);
    return std::make_unique<XGrammars>(
        std::move(info), std::make_shared<const TokenTexts>(std::move(vocabulary)), options);
  } catch (const std::exception& error) {
    return Error(StatusCode::kInvalidArgument, "the vocabulary cannot be used for grammars: {}",
                 OneLine(error.what()));
  }
}

}  // namespace kvlathe
