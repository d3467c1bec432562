// A server that was asked to logs the tokens of its answers, a line of JSON each; an audit reads
// them out of its log.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "evaluation/audit/answer_replay.h"

namespace kvlathe {

struct LoggedAnswer {
  std::string id;          // Request::answer_id
  std::string model_hash;  // Workspace::model_hash
  std::string kv;          // the level, as --kv named it
  std::optional<double> rate;
  GivenAnswer answer;
};

// The "event" of its line.
inline constexpr std::string_view kAnswerEvent = "answer";

// {"id", "model_hash", "kv", "rate", "read", "cache_prompt", "max_tokens", "tokens"}
nlohmann::ordered_json ToJson(const LoggedAnswer& logged);
// kDataLoss where a field is missing or of another type.
StatusOr<LoggedAnswer> ParseLoggedAnswer(const nlohmann::json& line);

// Reads the answers of a log one after the other. Lines that are no JSON objects, as notes on
// standard error are, and other events are passed over.
class AnswerLogReader {
 public:
  // kNotFound where the file cannot be read.
  static StatusOr<AnswerLogReader> Open(const std::string& path);

  // None behind the last. kDataLoss, with the line, where one that begins as JSON is no whole JSON,
  // or where an answer lacks something.
  StatusOr<std::optional<LoggedAnswer>> Next();
  int64_t line_number() const { return n_lines_; }  // of the answer that came last, from 1 on

 private:
  AnswerLogReader(std::string path, std::ifstream file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  std::ifstream file_;
  int64_t n_lines_ = 0;
};

}  // namespace kvlathe
