#include "chat/conversation_form.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;
using NoContent = TemplateTraits::NoContent;

constexpr int kMaxDepth = 64;

// How deep the brackets outside of strings nest.
int DepthOf(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

Json ContentFor(const TemplateTraits& traits, const Json& content) {
  if (content.is_string() && !traits.takes_text) {
    return Json::array({{{"type", "text"}, {"text", content}}});
  }
  if (content.is_array() && !traits.takes_parts) return JoinedText(content);
  return content;
}

bool IsEmpty(const Json& message) {
  return !message.contains("content") || message["content"].is_null() || message["content"] == "";
}

std::string NameOf(const Json& call) {
  return call.contains("function") ? call["function"].value("name", "") : "";
}

Status CallsFor(const TemplateTraits& traits, Json* message) {
  for (Json& call : (*message)["tool_calls"]) {
    Json& arguments = call["function"]["arguments"];
    Json object = arguments;
    if (arguments.is_string()) {
      KVL_ASSIGN_OR_RETURN(object, ParseShallowJson(arguments.get_ref<const std::string&>(),
                                                    "the arguments of a tool call"));
    }
    if (!object.is_object()) {
      return Error(StatusCode::kInvalidArgument,
                   "the arguments of a tool call of {} are not a JSON object", NameOf(call));
    }
    if (traits.arguments_are_objects) arguments = std::move(object);
  }
  if (!IsEmpty(*message)) return OkStatus();
  switch (traits.no_content) {
    case NoContent::kNull:
      (*message)["content"] = nullptr;
      break;
    case NoContent::kEmpty:
      (*message)["content"] = ContentFor(traits, "");
      break;
    case NoContent::kAbsent:
      message->erase("content");
  }
  return OkStatus();
}

// Ids that hold the names, where the template prints nothing else of a call's name; and the names
// of the calls that tools answer, for templates that print them.
void NameAnswers(const TemplateTraits& traits, Json* messages) {
  std::vector<std::pair<std::string, Json*>> calls;  // by the id that the client knows
  for (Json& message : *messages) {
    if (message.contains("tool_calls")) {
      int call_idx = 0;
      for (Json& call : message["tool_calls"]) {
        calls.push_back({call.value("id", ""), &call});
        if (!traits.ids_hold_names) continue;
        call["id"] = "functions." + NameOf(call) + ":" + std::to_string(call_idx++);
      }
    }
    if (message.value("role", "") != "tool") continue;
    const std::string id = message.value("tool_call_id", "");
    const auto found = std::find_if(calls.rbegin(), calls.rend(), [&](const auto& call) {
      return !id.empty() && call.first == id;
    });
    if (found == calls.rend()) continue;
    if (!message.contains("name")) message["name"] = NameOf(*found->second);
    if (traits.ids_hold_names) message["tool_call_id"] = (*found->second)["id"];
  }
}

// The system message in front of the first message of the user.
Json WithoutSystem(const TemplateTraits& traits, Json messages) {
  if (messages.empty() || messages[0].value("role", "") != "system") return messages;
  const std::string system = JoinedText(messages[0].value("content", Json()));
  messages.erase(messages.begin());
  for (Json& message : messages) {
    if (message.value("role", "") != "user") continue;
    message["content"] =
        ContentFor(traits, system + "\n\n" + JoinedText(message.value("content", Json())));
    return messages;
  }
  messages.insert(messages.begin(),
                  Json{{"role", "user"}, {"content", ContentFor(traits, system)}});
  return messages;
}

}  // namespace

std::string JoinedText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  if (content.is_array()) {
    for (const Json& part : content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string()) {
        text += part["text"].get<std::string>();
      }
    }
  }
  return text;
}

StatusOr<Json> ParseShallowJson(std::string_view text, std::string_view what) {
  if (DepthOf(text) > kMaxDepth) {
    return Error(StatusCode::kInvalidArgument, "{} nests deeper than {}", what, kMaxDepth);
  }
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return Error(StatusCode::kInvalidArgument, "{} is not JSON", what);
  }
  return value;
}

StatusOr<Json> MessagesFor(const TemplateTraits& traits, const Json& messages) {
  Json formed = messages;
  NameAnswers(traits, &formed);
  for (Json& message : formed) {
    if (message.contains("content")) {
      message["content"] = ContentFor(traits, message["content"]);
    }
    if (message.contains("reasoning_content") && !traits.thoughts_field.empty()) {
      message[traits.thoughts_field] = message["reasoning_content"];
    }
    if (message.contains("tool_calls")) KVL_RETURN_IF_ERROR(CallsFor(traits, &message));
  }
  return traits.takes_system ? formed : WithoutSystem(traits, std::move(formed));
}

}  // namespace kvlathe
