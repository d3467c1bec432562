// Made-up tools, of which a prompt offers some and asks for one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/random.h"

namespace kvlathe {

struct ToolArgument {
  std::string_view name;
  // What it may be: texts, or without any the integers of [min, max].
  std::span<const std::string_view> values;
  bool is_enum = false;  // the schema lists the texts
  int min = 0, max = 0;
  // A sentence that says its value earlier than the request, where a request may refer to it ($v),
  // and how it then refers. Empty where a request always has the value itself.
  std::string_view fact, mention;
  bool is_optional = false;  // no request says anything about it

  bool is_integer() const { return values.empty(); }
  std::string Draw(Random& rng) const;
};

struct Tool {
  std::string_view name, description;
  // With $0, $1 ... for the arguments, each of which but the optional ones stands there once.
  std::string_view request;
  std::span<const ToolArgument> arguments;
};

std::span<const Tool> AllTools();

// {"name": ..., "description": ..., "parameters": {JSON schema}} on one line.
std::string SchemaOf(const Tool& tool);

}  // namespace kvlathe
