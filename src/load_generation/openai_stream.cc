#include "load_generation/openai_stream.h"

#include <algorithm>

namespace kvlathe {
namespace {

constexpr size_t kMostErrorText = 300;

std::string OneLine(std::string_view text) {
  std::string line(text.substr(0, kMostErrorText));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return line;
}

const nlohmann::json* Member(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto member = object.find(key);
  return member == object.end() ? nullptr : &*member;
}

std::string MessageOfError(const nlohmann::json& error) {
  const nlohmann::json* const message = Member(error, "message");
  if (message != nullptr && message->is_string()) return OneLine(message->get<std::string>());
  return OneLine(error.is_string() ? error.get<std::string>() : error.dump());
}

std::optional<int> CountIn(const nlohmann::json& usage, const char* key) {
  const nlohmann::json* const count = Member(usage, key);
  if (count == nullptr || !count->is_number_integer()) return std::nullopt;
  return count->get<int>();
}

// What is generated: "text" of completions, "content" of chat, "reasoning_content" of models that
// think.
std::string TextOfChoice(const nlohmann::json& choice) {
  std::string text;
  const auto add = [&text](const nlohmann::json* part) {
    if (part != nullptr && part->is_string()) text += part->get_ref<const std::string&>();
  };
  add(Member(choice, "text"));
  if (const nlohmann::json* delta = Member(choice, "delta")) {
    add(Member(*delta, "reasoning_content"));
    add(Member(*delta, "content"));
  }
  return text;
}

}  // namespace

std::string RequestBody(const LoadRequest& request, const RequestStyle& style) {
  nlohmann::json body = {{"model", style.model}, {"stream", true}};
  body["stream_options"] = {{"include_usage", true}};
  if (style.is_chat) {
    nlohmann::json message = {{"role", "user"}, {"content", request.prompt}};
    body["messages"] = nlohmann::json::array({std::move(message)});
    body["max_completion_tokens"] = request.n_output;
  } else {
    if (request.prompt_ids.empty()) {
      body["prompt"] = request.prompt;
    } else {
      body["prompt"] = request.prompt_ids;
    }
    body["max_tokens"] = request.n_output;
  }
  if (style.ignore_eos) body["ignore_eos"] = true;
  if (style.temperature.has_value()) body["temperature"] = *style.temperature;
  if (!style.kv.empty()) body["kv"] = style.kv;
  body.update(style.extra_body);
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void EventReader::Feed(std::string_view bytes) {
  buffer_.erase(0, read_);
  read_ = 0;
  buffer_ += bytes;
}

std::optional<std::string> EventReader::Next() {
  for (;;) {
    const size_t end = buffer_.find('\n', read_);
    if (end == std::string::npos) return std::nullopt;
    std::string_view line(buffer_.data() + read_, end - read_);
    read_ = end + 1;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) {
      if (!has_data_) continue;
      has_data_ = false;
      return std::exchange(data_, {});
    }
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
}

StreamEvent ReadStreamEvent(std::string_view data) {
  StreamEvent event;
  if (data == "[DONE]") {
    event.is_done = true;
    return event;
  }
  const nlohmann::json body = nlohmann::json::parse(data, nullptr, false);
  if (!body.is_object()) {
    event.is_broken = true;
    return event;
  }
  if (const nlohmann::json* error = Member(body, "error"); error != nullptr && !error->is_null()) {
    event.error = MessageOfError(*error);
  }
  const nlohmann::json* const choices = Member(body, "choices");
  if (choices != nullptr && choices->is_array() && !choices->empty()) {
    event.has_choice = true;
    event.text = TextOfChoice(choices->front());
  }
  if (const nlohmann::json* usage = Member(body, "usage")) {
    event.n_input = CountIn(*usage, "prompt_tokens");
    event.n_output = CountIn(*usage, "completion_tokens");
  }
  return event;
}

std::string ErrorTextOf(std::string_view body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  const nlohmann::json* const error = Member(json, "error");
  return error == nullptr ? OneLine(body) : MessageOfError(*error);
}

}  // namespace kvlathe
