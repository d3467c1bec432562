// The API tells an observer of its requests, for metrics and logs. The observer is told no text of
// prompts or answers.
#pragma once

#include <string>
#include <vector>

namespace kvlathe::api {

// A request that asks for tokens and was accepted.
struct RequestBegan {
  std::string request_id;  // http::Request::id
  std::string route;       // as in ApiService::Routes
  std::string level;       // name of the level
  bool is_stream = false;
  int n_choices = 0;          // sequences in the engine
  int64_t prompt_tokens = 0;  // of every prompt once
  int64_t max_tokens = 0;     // that every choice may generate
};

// How a request ended: every one that Handle was called with, also those that were refused.
struct RequestEnded {
  std::string request_id;
  std::string route;       // the pattern; "other" for what is no route
  std::string level;       // empty unless it asked for tokens and was accepted
  int http_status = 0;     // what the client saw; 499: it went before
  std::string error_code;  // of the error object, also of one inside a stream; empty: none
  std::string error_message;
  // Fields of the request that the server does not know, cut short.
  std::vector<std::string> unknown_fields;
  bool is_stream = false;
  int n_choices = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, that need not be computed
  int64_t output_tokens = 0;
  int64_t pressed_tokens = 0;      // positions of its caches that were compressed further
  int64_t drafted_tokens = 0;      // that were checked
  int64_t accepted_tokens = 0;     // of these, that were generated
  std::string finish_reason;       // of the first choice: stop, length, tool_calls, abort or error
  double first_token_seconds = 0;  // since Handle was called; 0: there was no token
  double seconds = 0;              // since Handle was called
};

// All are called on a thread of the HTTP server or on the one that steps, by several at the same
// time for different requests, and must not block. OnEnded comes once for each request.
class ApiObserver {
 public:
  virtual ~ApiObserver() = default;
  virtual void OnBegan(const RequestBegan&) {}
  // Of the first choice that has one; after OnBegan.
  virtual void OnFirstToken(const std::string& request_id) { (void)request_id; }
  virtual void OnEnded(const RequestEnded&) {}
};

}  // namespace kvlathe::api
