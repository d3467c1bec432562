// A task's name may have parameters in brackets behind it: "needle(keys=4, kind=words)".
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// Reading asks for one key after the other, so that the keys that a task takes are known once it
// has asked for all of them. A value that is not allowed leaves the default; Finish() tells the
// first thing that was wrong.
class TaskParameters {
 public:
  // kInvalidArgument when the text is not of the form name or name(key=value, ...).
  static StatusOr<TaskParameters> Parse(std::string_view text);

  // Without white space, as it was asked for.
  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }

  int Integer(std::string_view key, int default_value, int min, int max);
  double Number(std::string_view key, double default_value, double min, double max);
  // The index of one of the names.
  int Choice(std::string_view key, int default_value, std::span<const std::string_view> names);
  // For what only several keys together can get wrong.
  void Refuse(std::string_view why);

  // The keys asked for so far with what they take: "keys=1..100, kind=numbers|words".
  const std::string& signature() const { return signature_; }
  Status Finish() const;

 private:
  // The value given for a key, null without one.
  const std::string* Take(std::string_view key, const std::string& takes);
  void RefuseValue(std::string_view key, std::string_view value, std::string_view takes);

  std::string text_, name_, signature_, wrong_;
  std::map<std::string, std::string, std::less<>> given_;
  std::map<std::string, std::string, std::less<>> asked_;
};

}  // namespace kvlathe
