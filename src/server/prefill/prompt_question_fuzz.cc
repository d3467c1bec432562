// Any bytes either are a question, which is then written and read the same again, or give one
// printable line.
#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "server/prefill/prompt_question.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  using kvlathe::server::ParsePromptQuestion;
  const auto question = ParsePromptQuestion({reinterpret_cast<const char*>(data), n_bytes});
  if (!question.ok()) {
    const std::string message = kvlathe::MessageOf(question.status());
    KVL_CHECK(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; }));
    return 0;
  }
  const auto again = ParsePromptQuestion(ToJson(*question));
  KVL_CHECK(again.ok());
  KVL_CHECK(again->kv == question->kv && again->place == question->place &&
            again->rate == question->rate && again->salt == question->salt &&
            again->tokens == question->tokens);
  return 0;
}
