// A CallScanner reads one tool call as a model writes it, {"name": NAME, "arguments": {...}}, byte
// by byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvlathe {

// Reads one JSON object. "name" is a string; "arguments", or "parameters", is an object, null or a
// string with the JSON text of an object. Other entries are skipped. Arguments are told as they
// come, in the bytes in which they were written: brackets and strings are matched, what stands
// between them is not looked at.

// The keys of a call's object.
struct CallKeys {
  std::string name = "name";
  std::string arguments = "arguments";  // "parameters" is understood too
  std::string around;  // of an object around both, which is the value of this key; mostly empty
};

class CallScanner {
 public:
  enum class State {
    kGoing,      // within the object
    kDone,       // behind it
    kMalformed,  // it is no such object
  };

  explicit CallScanner(CallKeys keys = {}) : keys_(std::move(keys)) {}
  // Of a call whose name was read already: what is fed is the object of its arguments alone.
  static CallScanner OfArguments(const std::string& name);

  // Takes what of `text` belongs to the object; the rest is for others. Returns how many bytes.
  size_t Feed(std::string_view text);
  State state() const { return state_; }

  // Once it is known.
  const std::optional<std::string>& name() const { return name_; }
  // Whether arguments began, or the object ended.
  bool has_arguments() const { return has_arguments_; }
  // What came of the arguments since the last call.
  std::string TakeArguments();

 private:
  enum class Place {
    kBeforeObject,
    kBeforeKey,
    kKey,
    kBeforeColon,
    kBeforeValue,
    kValue,
    kBehindValue
  };
  enum class Entry { kName, kArguments, kAround, kOther };

  void FeedByte(char c);
  void FeedInString(char c);
  void BeginKey(char c);
  void BeginValue(char c);
  void FeedValue(char c);
  void EndKey();
  void EndValue();
  void EndArguments();
  void BehindValue(char c);
  void Fail() { state_ = State::kMalformed; }

  CallKeys keys_;
  bool has_arguments_alone_ = false;
  bool is_inside_ = false;  // in the object of CallKeys::around
  State state_ = State::kGoing;
  Place place_ = Place::kBeforeObject;
  Entry entry_ = Entry::kOther;
  bool may_close_ = true;  // before a key: the object may be empty
  bool in_string_ = false;
  bool is_escaped_ = false;
  std::string closing_;  // brackets that are open in the value
  std::string text_;     // the key or value that is read, unless it is told as it comes
  std::optional<std::string> name_;
  bool has_arguments_ = false;
  bool is_object_ = false;  // the arguments are told as they come
  std::string arguments_;
};

}  // namespace kvlathe
