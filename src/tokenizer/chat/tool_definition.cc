#include "tokenizer/chat/tool_definition.h"

#include <fmt/format.h>

#include "tokenizer/chat/chat_format.h"
#include "tokenizer/chat/python_json.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// The entry of an object, or null: also where `value` is no object.
const Json& EntryOf(const Json& value, const char* key) {
  static const Json kNull;
  if (!value.is_object()) return kNull;
  const auto entry = value.find(key);
  return entry == value.end() ? kNull : *entry;
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// The type of a parameter as the Hermes template spells it. What has no type is "Union[]" there,
// the elements of every list too. For names that JSON schema has and the template does not know
// ("null") it never comes to an end; those are "Any".
std::string PythonTypeOf(const Json& schema) {
  const Json& type = EntryOf(schema, "type");
  if (type.is_array()) {
    std::string names;
    for (const Json& one : type) {
      if (!names.empty()) names += ",";
      names += PythonTypeOf(Json{{"type", one}});
    }
    return "Union[" + names + "]";
  }
  if (!type.is_string()) return "Union[]";
  const std::string name = type.get<std::string>();
  if (name == "string") return "str";
  if (name == "number") return "float";
  if (name == "integer") return "int";
  if (name == "boolean") return "bool";
  if (name == "array") return "list[Union[]]";
  if (name != "object") return "Any";
  if (!schema.contains("additionalProperties")) return "dict";
  return fmt::format("dict[str, {}]", PythonTypeOf(schema["additionalProperties"]));
}

std::string SignatureDefinition(const Json& function) {
  const std::string name = TextOf(EntryOf(function, "name"));
  const Json& parameters = EntryOf(function, "parameters");
  const Json& properties = EntryOf(parameters, "properties");
  const Json& result = EntryOf(function, "return");
  const bool has_properties = properties.is_object() && !properties.empty();
  std::string signature, list;
  if (has_properties) {
    list = "    Args:\n";
    for (const auto& [key, fields] : properties.items()) {
      const std::string type = PythonTypeOf(fields);
      if (!signature.empty()) signature += ", ";
      signature += fmt::format("{}: {}", key, type);
      list += fmt::format("        {}({}): {}", key, type,
                          StripLikePython(TextOf(EntryOf(fields, "description"))));
    }
  }
  if (!result.is_null()) {
    signature += ") -> " + PythonTypeOf(result);
    const Json& text = EntryOf(result, "description");
    if (!text.is_null()) list += "\n    Returns:\n        " + TextOf(text);
  } else {
    signature += ")";
  }
  return fmt::format(
      "{{\"type\": \"function\", \"function\": {{\"name\": \"{}\", \"description\": \"{}({} - "
      "{}\n\n"
      "{}\", \"parameters\": {}}}",
      name, name, signature, TextOf(EntryOf(function, "description")), list,
      has_properties ? PythonJson(parameters) : "{}");
}

const Json& FunctionOf(const Json& tool) {
  const Json& function = EntryOf(tool, "function");
  return function.is_null() ? tool : function;
}

std::string Definition(ToolFormat::Definition style, const Json& tool) {
  switch (style) {
    case ToolFormat::Definition::kJsonIndented:
      return PythonJson(tool, 4);
    case ToolFormat::Definition::kSignature:
      return SignatureDefinition(FunctionOf(tool));
    default:
      return PythonJson(tool);
  }
}

}  // namespace

std::string ToolList(const ToolFormat& format, std::span<const Json> tools) {
  std::string list;
  if (format.definition_style == ToolFormat::Definition::kFunctionList) {
    Json functions = Json::array();
    for (const Json& tool : tools) functions.push_back(FunctionOf(tool));
    list = PythonJson(functions, 2);
  } else {
    for (const Json& tool : tools) {
      if (!list.empty()) list += format.between_definitions;
      list += format.definition.prefix + Definition(format.definition_style, tool) +
              format.definition.suffix;
    }
  }
  return format.list.prefix + list + format.list.suffix;
}

}  // namespace kvlathe
