// Whatever a template says, parsing and running it ends with a text or an error, soon.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "chat/jinja_program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  using namespace kvlathe;
  static const auto& globals = *new nlohmann::ordered_json(
      {{"messages",
        {{{"role", "system"}, {"content", "a"}},
         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "<s>"}}}}},
         {{"role", "assistant"},
          {"content", nullptr},
          {"tool_calls",
           {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", {{"n", 1.5}}}}}}}}}}},
       {"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}});
  const auto program =
      JinjaProgram::Parse(std::string_view(reinterpret_cast<const char*>(data), n_bytes));
  if (!program.ok()) return 0;
  RenderOptions options;
  options.now = 0;
  options.limits = {.max_steps = 20000,
                    .max_bytes = 8 << 20,
                    .max_depth = 200,
                    .max_time = std::chrono::milliseconds(1000)};
  const auto rendered = program->Render(globals, {{"bos_token", "<s>"}}, options);
  if (!rendered.ok()) return 0;
  size_t end = 0;
  for (const TextRange& range : rendered->inputs) {
    KVL_CHECK(range.begin >= end && range.begin < range.end);
    end = range.end;
  }
  KVL_CHECK(end <= rendered->text.size());
  return 0;
}
