// Writes requests to a server with OpenAI's API, and reads the streams of its answers.
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

// Returns the body of a request whose answer is streamed and ends with usage.
std::string RequestBody(const LoadRequest& request, const RequestStyle& style);

// Takes bytes in pieces of any size and finds the server-sent events in them. The lines of an
// event's data are joined.
class EventReader {
 public:
  void Feed(std::string_view bytes);
  // Returns the data of the next whole event, or none if more bytes are needed. Comments, names and
  // ids of events are passed over.
  std::optional<std::string> Next();

 private:
  std::string buffer_;
  size_t read_ = 0;  // bytes of buffer_ that are done with
  std::string data_;
  bool has_data_ = false;
};

// Holds what one event of a stream says.
struct StreamEvent {
  bool is_done = false;    // "[DONE]"
  bool is_broken = false;  // not JSON
  bool has_choice = false;
  std::string text;
  std::string error;                     // of an error object
  std::optional<int> n_input, n_output;  // of usage
};
StreamEvent ReadStreamEvent(std::string_view data);

// Returns the message of a body with an error object, and of another body its beginning.
std::string ErrorTextOf(std::string_view body);

}  // namespace kvlathe
