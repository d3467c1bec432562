// Runs many requests for text together on one model: continuous batching under one budget of cache
// memory. TextModel::MakeGenerator makes generators.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvlathe::runtime {

struct GeneratorSettings {
  int max_sequences = 64;      // that run at the same time, at least 1
  int max_batch_tokens = 512;  // prompt and new tokens of one step together, at least 1
  int max_waiting = 0;         // requests that wait before more are refused; 0: no bound
};

struct TextRequest {
  std::string prompt;
  std::vector<int32_t> prompt_ids;  // in place of `prompt`, where there are any; BOS included
  int max_tokens = 128;             // at least 1
  int cache_idx = 0;                // of the generator's caches
  float temperature = 0;            // 0: the likeliest token always
  int top_k = 0;                    // draws from the likeliest so many; 0: from all
  float top_p = 1;                  // from the smallest set with at least this probability
  float min_p = 0;                  // from tokens at least this likely in relation to the likeliest
  float repetition_penalty = 1;     // divides the logits of recent tokens; 1: off
  uint64_t seed = 0;                // of the draws
  std::vector<std::string> stops;   // the text ends before the first of these
  bool ignores_end = false;         // goes on behind the model's end of sequence
};

enum class TextEnd {
  kStop,       // the model's end of sequence, or a stop string
  kLength,     // max_tokens
  kCancelled,  // by Cancel, or by what took the text
  kFailed,     // TextResult::status says why
};

struct TextResult {
  std::string text;          // what was generated, in UTF-8
  std::vector<int32_t> ids;  // its tokens, without the end of sequence
  int n_prompt_tokens = 0;
  TextEnd end = TextEnd::kFailed;
  absl::Status status;
  double first_token_seconds = 0;  // from Submit to the first token
  double decode_seconds = 0;       // from the first token to the last
  int64_t kv_bytes = 0;            // of the cache at the end
  double kv_fraction = 0;          // of what 16-bit rows would take
};

// Submit and Cancel may be called by any thread; one at a time steps. What a request generates does
// not depend on the others beyond the rounding of its logits, and with
// ModelSettings::is_deterministic not even there.
class Generator {
 public:
  // Called with every new piece of the text, whole characters, on the thread that steps. False ends
  // the request as cancelled. May submit and cancel requests, and may not step.
  using TextSink = std::function<bool(const std::string& piece)>;
  using EndSink = std::function<void(const TextResult& result)>;

  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // The id of a request that will run. Either sink may be empty. kInvalidArgument for one that can
  // never run, kResourceExhausted where the budget could not hold it alone, kUnavailable when
  // max_waiting others wait.
  absl::StatusOr<uint64_t> Submit(const TextRequest& request, TextSink on_text, EndSink on_end);
  // False where there is no such request, or it has ended.
  bool Cancel(uint64_t id);
  // One step of all requests; false when nothing is left to do.
  bool Step();
  // Submits one request and steps until nothing is left; a request that fails is an error.
  absl::StatusOr<TextResult> Generate(const TextRequest& request, TextSink on_text = nullptr);

 private:
  friend class TextModel;
  struct Parts;
  explicit Generator(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

}  // namespace kvlathe::runtime
