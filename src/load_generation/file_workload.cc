#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "load_generation/workload.h"

namespace kvlathe {
namespace {

constexpr int kMostTokens = 1 << 24;  // of an answer: more is a mistake

class FileWorkload : public Workload {
 public:
  explicit FileWorkload(std::vector<LoadRequest> requests) : requests_(std::move(requests)) {}
  LoadRequest RequestAt(int64_t index) const override {
    return requests_[static_cast<size_t>(index) % requests_.size()];
  }

 private:
  std::vector<LoadRequest> requests_;
};

struct FileRules {
  int output_len;
  double bytes_per_token;

  int TokensOf(size_t n_bytes) const {
    return std::max(1,
                    static_cast<int>(std::lround(static_cast<double>(n_bytes) / bytes_per_token)));
  }
};

Status SetPrompt(const nlohmann::json& prompt, const FileRules& rules, LoadRequest* request) {
  const char* const kWhat = "\"prompt\" must be a text or a list of token ids, not empty";
  if (prompt.is_string()) {
    request->prompt = prompt.get<std::string>();
    request->n_input = rules.TokensOf(request->prompt.size());
    return request->prompt.empty() ? Error(StatusCode::kInvalidArgument, "{}", kWhat) : OkStatus();
  }
  if (!prompt.is_array() || prompt.empty()) return Error(StatusCode::kInvalidArgument, "{}", kWhat);
  for (const nlohmann::json& id : prompt) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return Error(StatusCode::kInvalidArgument, "{}", kWhat);
    }
    request->prompt_ids.push_back(id.get<int32_t>());
  }
  request->n_input = static_cast<int>(request->prompt_ids.size());
  return OkStatus();
}

StatusOr<LoadRequest> RequestOfRecord(const nlohmann::json& record, const FileRules& rules) {
  if (!record.is_object() || !record.contains("prompt")) {
    return Error(StatusCode::kInvalidArgument, "not an object with a \"prompt\"");
  }
  LoadRequest request;
  KVL_RETURN_IF_ERROR(SetPrompt(record["prompt"], rules, &request));
  request.n_output = rules.output_len;
  for (const char* key : {"output_len", "output_tokens"}) {
    if (!record.contains(key)) continue;
    const nlohmann::json& length = record[key];
    if (!length.is_number_unsigned() || length.get<uint64_t>() < 1 ||
        length.get<uint64_t>() > kMostTokens) {
      return Error(StatusCode::kInvalidArgument, "\"{}\" must be a number of tokens from 1 to {}",
                   key, kMostTokens);
    }
    request.n_output = length.get<int>();
  }
  if (request.n_output < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "no \"output_len\"; give one for all with --output-len");
  }
  return request;
}

// The first two messages of a conversation; none where it has fewer or they are not texts.
std::optional<LoadRequest> RequestOfConversation(const nlohmann::json& item,
                                                 const FileRules& rules) {
  if (!item.is_object() || !item.contains("conversations")) return std::nullopt;
  const nlohmann::json& turns = item["conversations"];
  if (!turns.is_array() || turns.size() < 2) return std::nullopt;
  std::string texts[2];
  for (size_t i = 0; i < 2; ++i) {
    if (!turns[i].is_object() || !turns[i].contains("value") || !turns[i]["value"].is_string()) {
      return std::nullopt;
    }
    texts[i] = turns[i]["value"].get<std::string>();
    if (texts[i].empty()) return std::nullopt;
  }
  LoadRequest request;
  request.n_input = rules.TokensOf(texts[0].size());
  request.n_output = rules.output_len > 0 ? rules.output_len : rules.TokensOf(texts[1].size());
  request.prompt = std::move(texts[0]);
  return request;
}

StatusOr<std::vector<LoadRequest>> ReadConversations(std::string_view text, std::string_view place,
                                                     const FileRules& rules) {
  const nlohmann::json items = nlohmann::json::parse(text, nullptr, false);
  if (items.is_discarded()) {
    return Error(StatusCode::kInvalidArgument, "{}: neither JSON Lines nor a JSON list", place);
  }
  std::vector<LoadRequest> requests;
  for (const nlohmann::json& item : items) {
    if (auto request = RequestOfConversation(item, rules)) requests.push_back(*std::move(request));
  }
  return requests;
}

StatusOr<std::vector<LoadRequest>> ReadLines(std::string_view text, std::string_view place,
                                             const FileRules& rules) {
  std::vector<LoadRequest> requests;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_discarded()) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: not JSON", place, number);
    }
    auto request = RequestOfRecord(record, rules);
    if (!request.ok()) {
      return Error(StatusCode::kInvalidArgument, "{}:{}: {}", place, number,
                   MessageOf(request.status()));
    }
    requests.push_back(*std::move(request));
  }
  return requests;
}

}  // namespace

StatusOr<std::unique_ptr<Workload>> MakeFileWorkload(std::string_view text, std::string_view place,
                                                     int output_len, double bytes_per_token) {
  const FileRules rules{output_len, bytes_per_token};
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_list = first != std::string_view::npos && text[first] == '[';
  KVL_ASSIGN_OR_RETURN(
      std::vector<LoadRequest> requests,
      is_list ? ReadConversations(text, place, rules) : ReadLines(text, place, rules));
  if (requests.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}: no requests in it", place);
  }
  return std::make_unique<FileWorkload>(std::move(requests));
}

}  // namespace kvlathe
