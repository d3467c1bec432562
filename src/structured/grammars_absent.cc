#include "structured/grammars.h"

namespace kvlathe {

StatusOr<std::unique_ptr<Grammars>> Grammars::Make(const Tokenizer&, const GrammarOptions&) {
  return Error(
      StatusCode::kUnimplemented,
      "this build has no grammars: it was configured with -DKVLATHE_GRAMMAR=OFF; configure "
      "with -DKVLATHE_GRAMMAR=ON and build again");
}

}  // namespace kvlathe
