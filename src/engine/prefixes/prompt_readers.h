// Prompt readers read prompts on other machines, whose caches come here as they are sealed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/prefixes/prefix_question.h"

namespace kvlathe {

// A prompt that is being read elsewhere. Whoever destroys it does not want it any more.
class DistantPrompt {
 public:
  enum class State { kUnderWay, kRead, kFailed };

  virtual ~DistantPrompt() = default;
  virtual State state() const = 0;
  // Once it is read: a file of kv/blocks/sequence_file.h, whose contents nobody has checked.
  virtual std::string TakeFile() = 0;
  // Says that the file could not be used.
  virtual void Refuse(const Status& why) = 0;
};

// Calls come from the thread that steps, and none blocks but WaitForChange.
class PromptReaders {
 public:
  struct Question {
    const PrefixKey* key = nullptr;  // with its identity
    std::optional<double> rate;      // Request::rate
    std::span<const int32_t> tokens;
    std::string request_id;  // Request::answer_id, for logs
  };

  virtual ~PromptReaders() = default;
  // Prompts of which fewer tokens are missing are read here.
  virtual int least_tokens() const = 0;
  // Has all tokens but the last read. Null where nobody is there to do it.
  virtual std::unique_ptr<DistantPrompt> Ask(const Question& question) = 0;
  // Until the state of some prompt has changed, or the time is over.
  virtual void WaitForChange(std::chrono::milliseconds at_most) = 0;
};

}  // namespace kvlathe
