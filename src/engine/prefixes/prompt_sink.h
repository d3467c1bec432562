// A prompt sink takes the cache of a prompt while the prompt is read, for another machine to go on
// from.
#pragma once

#include <string>

namespace kvlathe {

// Of one request. Both are called on the thread that steps and must not block.
class PromptSink {
 public:
  virtual ~PromptSink() = default;

  // Whether it can take more now. While it cannot, the request waits with its cache.
  virtual bool HasRoom() = 0;
  // The next bytes of a stream of kv/blocks/sequence_stream.h.
  virtual void Write(std::string bytes) = 0;
};

}  // namespace kvlathe
