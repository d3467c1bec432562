#include "structured/grammars.h"

namespace kvlathe {

StatusOr<std::unique_ptr<Grammars>> Grammars::Make(const Tokenizer&, const GrammarOptions&) {
  return Error(StatusCode::kUnimplemented,
               "this build has no grammars: XGrammar was not there when it was made; run "
               "scripts/fetch_xgrammar.sh, configure and build again");
}

}  // namespace kvlathe
