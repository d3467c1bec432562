// Makes the requests of a load: prompts, and how long their answers are to be.
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
  std::string prompt;               // a text, where there are no ids
  std::vector<int32_t> prompt_ids;  // token ids; empty where the prompt is a text
  // The tokens of the prompt. Of a text this is an estimate, which the server's count replaces.
  int n_input = 0;
  int n_output = 1;  // how many tokens to generate
};

// Gives requests by their number. The same number gives the same request on every machine, in any
// order. Several threads may ask at the same time.
class Workload {
 public:
  virtual ~Workload() = default;
  virtual LoadRequest RequestAt(int64_t index) const = 0;
};

// What drawn prompts are made of. No two prompts of a run begin with the same tokens, so that
// prefix caches do not answer them, as long as there are fewer prompts than tokens in the text or
// in the vocabulary.
struct RandomIds {
  int vocab_size = 0;  // ids are drawn from all of it, each as likely
};
struct TextTokens {
  std::vector<int32_t> ids;  // prompts are windows of it, which go around its end
};
struct PlainText {
  std::string text;  // prompts are pieces of it, which begin with a word and go around its end
  double bytes_per_token = 4;  // how many bytes of text stand for a token
};
using PromptSource = std::variant<RandomIds, TextTokens, PlainText>;

// Makes a workload whose prompts and lengths are drawn, for every request apart. An empty source is
// kInvalidArgument.
StatusOr<std::unique_ptr<Workload>> MakeDrawnWorkload(PromptSource source, LengthRange input,
                                                      LengthRange output, uint64_t seed);

// Makes a workload of the requests of a file, in its order and then over again. The file is JSON
// Lines, each {"prompt": "text" or [ids], "output_len": 128} (the length may be named output_tokens
// too). Or it is ShareGPT's JSON, a list of {"conversations": [{"value": "..."}, ...]}: the first
// message of each is the prompt, and the length of the second, at bytes_per_token, that of the
// answer.
//
// A record without a length asks for output_len tokens; where that is 0 it is an error. `place`
// names the file in messages.
StatusOr<std::unique_ptr<Workload>> MakeFileWorkload(std::string_view text, std::string_view place,
                                                     int output_len, double bytes_per_token);

}  // namespace kvlathe
