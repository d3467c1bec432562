// A language model that generates text with a compressed key/value cache.
//
// The library prints nothing and never ends the process for what it is given: errors are
// absl::Status with a one-line message (what, where, what to do). kInvalidArgument: something was
// asked for that cannot be; kNotFound: a file is not there; kDataLoss: a file is damaged;
// kResourceExhausted: memory; kUnimplemented: a form that is not supported.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlathe/generator.h"

namespace kvlathe::runtime {

// One line for the person who uses the program.
struct Message {
  enum class Kind {
    kNote,     // what a person should know
    kWarning,  // what will probably not be what a person wants
    kBegun,    // work that takes long has begun, such as a calibration
    kDone,     // what came of it, and where it lies
  };
  Kind kind = Kind::kNote;
  std::string text;  // without a newline
};

// All may stay as they are.
struct ModelSettings {
  // Caches that the program will make, such as "lathe(ratio=4)". They are checked before weights
  // are read, and one calibration serves all of them. Others can be made too.
  std::vector<std::string> caches;
  std::string statistics;  // file of a calibration; empty: the model's, the kept one, or a new one
  int context_tokens = 0;  // positions of a sequence, at most the model's; 0: the model's
  int n_threads = 0;       // workers; 0: one for each processor
  // Where the model runs: "cpu", "cuda", or "cuda:1" of several GPUs, in a library that was built
  // with CUDA.
  std::string device = "cpu";
  int64_t device_bytes = 0;  // of a GPU's memory, that all of it may take; 0: what is free
  // Memory of the caches of a generator; 0: half of the free memory, or what a GPU has left.
  int64_t kv_budget_bytes = 0;
  bool computes_in_f32 = false;   // in place of BF16: exact, slower
  bool is_deterministic = false;  // the same bits whatever runs beside a sequence; slower prompts
  std::function<void(const Message&)> on_message;  // on the thread that calls the library
  // The share in [0, 1] of work that takes long, now and then.
  std::function<void(const std::string& what, double fraction)> on_progress;
};

// What a cache costs a model.
struct CacheCost {
  std::string resolved;  // the cache with all its options written out
  double fraction = 1;   // bytes at the full context over those of 16-bit rows
  // Nats per token that the model is expected to be away from what it is without compression, on
  // text like that of the calibration; none where that is not predicted.
  std::optional<double> predicted_kl;
};

// A model may be used by one thread at a time, and so may its generators together.
class TextModel {
 public:
  // A Hugging Face directory, a .gguf file, or a name (docs/models.md).
  static absl::StatusOr<std::unique_ptr<TextModel>> Open(const std::string& path,
                                                         const ModelSettings& settings = {});
  ~TextModel();
  TextModel(const TextModel&) = delete;
  TextModel& operator=(const TextModel&) = delete;

  int context_tokens() const;
  int vocab_size() const;
  // Ids of a text, with BOS in front where the model's configuration asks for it.
  std::vector<int32_t> Tokenize(std::string_view text) const;
  std::string Detokenize(const std::vector<int32_t>& ids) const;

  // Calibrates first where the cache needs it.
  absl::StatusOr<CacheCost> CostOf(const std::string& cache);
  // Measures statistics on a text, with gradients, and writes them: the file that
  // ModelSettings::statistics names.
  absl::Status Calibrate(const std::string& text_path, const std::string& output_path);
  // A generator whose requests choose among these caches by their index. It may outlive the model.
  // Calibrates first where a cache needs it. kInvalidArgument without a cache.
  absl::StatusOr<std::unique_ptr<Generator>> MakeGenerator(const std::vector<std::string>& caches,
                                                           const GeneratorSettings& settings = {});

 private:
  friend class Generator;
  struct Parts;
  explicit TextModel(std::shared_ptr<Parts> parts);

  std::shared_ptr<Parts> parts_;  // shared with generators
};

}  // namespace kvlathe::runtime
