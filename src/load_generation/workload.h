// What the requests of a load ask for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "load_generation/lengths.h"

namespace kvlathe {

struct LoadRequest {
  std::string prompt;               // where there are no ids
  std::vector<int32_t> prompt_ids;  // token ids, or empty
  int n_input =
      0;  // tokens of the prompt; of a text an estimate, which the server's count replaces
  int n_output = 1;  // tokens to generate
};

// Requests by their number. The same number gives the same request on every machine, in any order.
// May be used by several threads.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual LoadRequest RequestAt(int64_t index) const = 0;
};

// Where drawn prompts come from. No two prompts of a run begin with the same tokens, so that prefix
// caches do not answer them (as long as there are fewer prompts than tokens in the text, or the
// vocabulary is not tiny).
struct RandomIds {
  int vocab_size = 0;  // ids are drawn evenly from all of it
};
struct TextTokens {
  std::vector<int32_t> ids;  // of a text; prompts are windows of it, around its end
};
struct PlainText {
  std::string text;            // prompts are pieces of it, around its end, from word to word
  double bytes_per_token = 4;  // for how many bytes a length asks
};
using PromptSource = std::variant<RandomIds, TextTokens, PlainText>;

// Prompts and lengths drawn for every request apart. kInvalidArgument where the source is empty.
StatusOr<std::unique_ptr<Workload>> MakeDrawnWorkload(PromptSource source, LengthRange input,
                                                      LengthRange output, uint64_t seed);

// Requests of a file, in its order and over again from its start:
//   JSON Lines   {"prompt": "text" or [ids], "output_len": 128} a line (output_tokens also names
//   the length) ShareGPT     [{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt",
//   "value": "..."}]}, ...]:
//                the first message is the prompt, and the answer's length is estimated at
//                bytes_per_token
// Where a record has no length, output_len counts; 0: that is an error. `place` is for messages.
StatusOr<std::unique_ptr<Workload>> MakeFileWorkload(std::string_view text, std::string_view place,
                                                     int output_len, double bytes_per_token);

}  // namespace kvlathe
