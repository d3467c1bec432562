// Arguments of calls that are not written as JSON, as JSON.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "chat/reading/answer_format.h"

namespace kvlathe {

// In a literal: any word, as the id of a call, and the name of the call.
inline constexpr char kAnyWord = '\x01', kCalledName = '\x02';
inline constexpr std::string_view kAnyWords = "\x01\x02";

// Whether `text` begins with `literal`, blanks in either left aside.
struct LooseMatch {
  enum class State { kWhole, kOpen, kNone };  // kOpen: as far as the text goes
  State state = State::kNone;
  size_t end = 0;  // kWhole: behind it
};
LooseMatch MatchLoosely(std::string_view text, std::string_view literal);

// The mark that a literal begins with: "<tool_call>" of "<tool_call>\n{...", or its first word.
std::string FirstMark(std::string_view literal);

// The types that a schema lets a value have ("number" for integers too); none: it does not say.
std::set<std::string> TypesOf(const nlohmann::ordered_json& schema);

// Of one call at a time.
class MarkedArguments {
 public:
  explicit MarkedArguments(const CallFormat* format) : format_(*format) {}

  // `schema`, of the tool's parameters, says which of them are texts; null: they are told by their
  // form.
  void Begin(const nlohmann::ordered_json* schema);

  enum class State { kGoing, kDone, kMalformed };
  struct Step {
    State state = State::kGoing;
    size_t n_bytes = 0;  // of the text that were read
    std::string json;    // what that adds to the arguments
  };
  // `text` begins where the last step ended; it grows until the step reads all that it waits for.
  Step Read(std::string_view text);

 private:
  Step ReadTagged(std::string_view text);
  Step ReadQuoted(std::string_view text, size_t key_pos);
  std::string Stops() const;
  Step ReadPython(std::string_view text) const;
  std::string JsonOf(const std::string& key, std::string_view value, bool is_text) const;
  bool IsText(const std::string& key, std::string_view value) const;

  const CallFormat& format_;
  const nlohmann::ordered_json* schema_ = nullptr;
  bool has_arguments_ = false;
};

}  // namespace kvlathe
