// A Jinja template that was parsed once and is run for each conversation.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "chat/engine/render_budget.h"
#include "chat/marked_text.h"

namespace kvlathe {

struct RenderOptions {
  jinja_budget::Limits limits;
  std::optional<std::time_t> now;  // what strftime_now tells; nothing: the clock
};

// Renders as `transformers` does: trim_blocks and lstrip_blocks, tojson without escapes of HTML,
// raise_exception, strftime_now. Any number of threads may use one.
class JinjaProgram {
 public:
  // kInvalidArgument: it is no Jinja, or has what the engine does not know; kResourceExhausted: it
  // nests too deeply or is too long.
  static StatusOr<JinjaProgram> Parse(std::string_view source);

  // `globals` is an object. Of its entries those named in `trusted` are the caller's own; all other
  // texts are marked as input, but for roles and types that are words. kInvalidArgument: the
  // template refuses (with its own text) or fails; kResourceExhausted: it took more than the
  // limits.
  StatusOr<MarkedText> Render(const nlohmann::ordered_json& globals,
                              const nlohmann::ordered_json& trusted,
                              const RenderOptions& options = {}) const;

  const std::string& source() const { return *source_; }

 private:
  struct Parsed;

  std::shared_ptr<const std::string> source_;
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace kvlathe
