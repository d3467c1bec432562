// What a client says to a server with OpenAI's API, and what it reads from the stream of an answer.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "load_generation/workload.h"

namespace kvlathe {

struct RequestStyle {
  bool is_chat = false;  // /v1/chat/completions, which takes texts only; else /v1/completions
  std::string model;
  std::string kv;          // the level of the cache (kvlathe serve); empty: not sent
  bool ignore_eos = true;  // so that answers have the length that was asked for
  std::optional<double> temperature;
  nlohmann::json extra_body =
      nlohmann::json::object();  // members that are added, or replace others
};

// The body of a request that streams its answer and ends with usage.
std::string RequestBody(const LoadRequest& request, const RequestStyle& style);

// Server-sent events from bytes in pieces of any size: the data of each event, its lines joined.
class EventReader {
 public:
  void Feed(std::string_view bytes);
  // The data of the next whole event, or none yet. Comments, names and ids of events are passed
  // over.
  std::optional<std::string> Next();

 private:
  std::string buffer_;
  size_t read_ = 0;  // bytes of buffer_ that are done with
  std::string data_;
  bool has_data_ = false;
};

// What one event of a stream says.
struct StreamEvent {
  bool is_done = false;    // "[DONE]"
  bool is_broken = false;  // not JSON
  bool has_choice = false;
  std::string text;
  std::string error;                     // of an error object
  std::optional<int> n_input, n_output;  // of usage
};
StreamEvent ReadStreamEvent(std::string_view data);

// The message of a body with an error object, or its beginning.
std::string ErrorTextOf(std::string_view body);

}  // namespace kvlathe
