#include "tokenizer/chat/tool_chat.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "tokenizer/chat/python_json.h"
#include "tokenizer/chat/tool_definition.h"

namespace kvlathe {
namespace {

bool UsesTools(const ChatConversation& conversation) {
  return !conversation.tools.empty() ||
         std::ranges::any_of(conversation.messages, [](const ChatMessage& message) {
           return message.role == "tool" || !message.tool_calls.empty();
         });
}

std::string In(const ToolFormat::Around& around, std::string_view text) {
  return fmt::format("{}{}{}", around.prefix, text, around.suffix);
}

// One conversation with tools. The words of messages stay those of RenderChat: what tools add is
// written into contents, and the turns around them are the format's.
class ToolConversation {
 public:
  ToolConversation(const ChatFormat& format, const ChatConversation& conversation)
      : format_(format), tools_(*format.tools), conversation_(conversation) {}

  StatusOr<std::string> Render() {
    KVL_RETURN_IF_ERROR(Check());
    FindLastQuestion();
    text_ = format_.start;
    AppendSystem();
    for (size_t i = n_system(); i < messages().size(); ++i) {
      const ChatMessage& message = messages()[i];
      if (message.role == "tool") {
        AppendAnswer(i);
      } else if (message.role == "assistant") {
        KVL_RETURN_IF_ERROR(AppendAssistant(i));
      } else {
        AppendUser(i);
      }
    }
    text_ += format_.answer_prefix;
    if (!conversation_.may_think) text_ += format_.no_thoughts;
    return std::move(text_);
  }

 private:
  std::span<const ChatMessage> messages() const { return conversation_.messages; }
  bool has_tools() const { return !conversation_.tools.empty(); }
  size_t n_system() const { return messages().front().role == "system" ? 1 : 0; }

  Status Check() const;
  void FindLastQuestion();
  void AppendSystem();
  void AppendUser(size_t i);
  Status AppendAssistant(size_t i);
  void AppendAnswer(size_t i);
  StatusOr<std::string> Calls(size_t i) const;
  std::string AssistantContent(size_t i) const;
  std::string SystemContent() const;

  const ChatFormat& format_;
  const ToolFormat& tools_;
  const ChatConversation& conversation_;
  size_t last_question_ = 0;
  std::string text_;
};

Status ToolConversation::Check() const {
  if (messages().empty() ||
      (messages().back().role != "user" && messages().back().role != "tool")) {
    return Error(StatusCode::kInvalidArgument,
                 "the last message must be one of the user or of a tool");
  }
  if (tools_.needs_tools && !has_tools()) {
    return Error(StatusCode::kInvalidArgument,
                 "messages have tool calls or answers of tools, which this model's chat template "
                 "writes only where tools are given; give the request its tools");
  }
  for (size_t i = 0; i < messages().size(); ++i) {
    const std::string& role = messages()[i].role;
    if (role == "system" && i > 0) {
      return Error(StatusCode::kInvalidArgument,
                   "message {} is a system message; only the first can be one", i + 1);
    }
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return Error(StatusCode::kInvalidArgument,
                   "message {} has the role '{}'; there are system, user, assistant and tool",
                   i + 1, role);
    }
    if (role == "tool" && i == n_system()) {
      return Error(StatusCode::kInvalidArgument,
                   "message {} answers a tool call, but no message of the assistant is before it",
                   i + 1);
    }
  }
  for (size_t i = n_system() + 1; format_.alternates && i < messages().size(); ++i) {
    const bool follows_assistant = messages()[i - 1].role == "assistant";
    const bool is_answer_behind_answer =
        messages()[i].role == "tool" && messages()[i - 1].role == "tool";
    if (follows_assistant == (messages()[i].role != "assistant") || is_answer_behind_answer)
      continue;
    return Error(StatusCode::kInvalidArgument,
                 "message {}: this model's chat template wants user (or tools) and assistant to "
                 "alternate, beginning with the user",
                 i + 1);
  }
  if (tools_.place == ToolFormat::Place::kFirstUser && has_tools() &&
      messages()[n_system()].role != "user") {
    return Error(StatusCode::kInvalidArgument,
                 "this model's chat template puts tools into the first message of the user, which "
                 "must stand in front of those of assistant and tools");
  }
  return OkStatus();
}

// The last message of the user that is not an answer of a tool in the user's place: thoughts are
// kept behind it only.
void ToolConversation::FindLastQuestion() {
  last_question_ = messages().size() - 1;
  for (size_t i = messages().size(); i-- > 0;) {
    const ChatMessage& message = messages()[i];
    const bool is_answer = message.content.starts_with("<tool_response>") &&
                           message.content.ends_with("</tool_response>");
    if (message.role != "user" || is_answer) continue;
    last_question_ = i;
    return;
  }
}

std::string ToolConversation::SystemContent() const {
  if (n_system() == 0) return format_.always_has_system ? format_.default_system : std::string();
  const std::string& content = messages().front().content;
  return format_.system_filter == ChatFormat::Filter::kNone ? content
                                                            : std::string(StripLikePython(content));
}

void ToolConversation::AppendSystem() {
  const bool has_system = n_system() > 0 || format_.always_has_system;
  ChatFormat::Turn turn = format_.system;
  if (has_tools() && tools_.place == ToolFormat::Place::kOwnSystem) {
    text_ += turn.prefix + ToolList(tools_, conversation_.tools) + turn.suffix;
  }
  if (format_.system_place != ChatFormat::System::kOwnTurn) return;
  std::string content = SystemContent();
  const bool lists_tools = has_tools() && tools_.place == ToolFormat::Place::kSystem;
  if (lists_tools) {
    if (has_system) content += tools_.after_system;
    content += ToolList(tools_, conversation_.tools);
  }
  if (!has_system && !lists_tools) return;
  if (has_tools() && !tools_.environment.empty()) {
    // Behind the header of the turn, in front of what else always stands in it.
    const size_t header = turn.prefix.find("\n\n");
    turn.prefix.insert(header == std::string::npos ? 0 : header + 2, tools_.environment);
  }
  text_ += turn.prefix + content + turn.suffix;
}

void ToolConversation::AppendUser(size_t i) {
  const std::string& words = messages()[i].content;
  std::string content = format_.user_filter == ChatFormat::Filter::kNone
                            ? words
                            : std::string(StripLikePython(words));
  if (i == n_system()) {
    if (has_tools() && tools_.place == ToolFormat::Place::kFirstUser) {
      content = ToolList(tools_, conversation_.tools) + content;
    }
    if (n_system() > 0 && format_.system_place == ChatFormat::System::kFirstUser) {
      content = format_.system.prefix + SystemContent() + format_.system.suffix + content;
    }
  }
  text_ += format_.user.prefix + content + format_.user.suffix;
}

std::string ToolConversation::AssistantContent(size_t i) const {
  const std::string& content = messages()[i].content;
  if (format_.assistant_filter != ChatFormat::Filter::kNone) {
    return std::string(StripLikePython(content));
  }
  return std::string(format_.thinks ? WithoutThoughts(content) : content);
}

StatusOr<std::string> ToolConversation::Calls(size_t i) const {
  const std::vector<ChatToolCall>& calls = messages()[i].tool_calls;
  if (tools_.has_one_call && calls.size() > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "message {} has {} tool calls; this model's chat template takes one at a time",
                 i + 1, calls.size());
  }
  std::vector<std::string> texts;
  for (const ChatToolCall& call : calls) {
    const std::string what =
        fmt::format("message {}: the arguments of the call of {}", i + 1, call.name);
    KVL_ASSIGN_OR_RETURN(const auto arguments,
                         ParseShallowJson(call.arguments.empty() ? "{}" : call.arguments, what));
    if (!arguments.is_object()) {
      return Error(StatusCode::kInvalidArgument, "{} are no JSON object", what);
    }
    texts.push_back(In(tools_.call, call.name + tools_.call_middle + PythonJson(arguments)));
  }
  return absl::StrJoin(texts, "\n");
}

// The thoughts of an answer: between the last <think> in front of the first </think> and that.
std::string_view ThoughtsOf(std::string_view content) {
  const size_t end = content.find("</think>");
  if (end == std::string_view::npos) return {};
  content = content.substr(0, end);
  content = content.substr(0, content.find_last_not_of('\n') + 1);
  constexpr std::string_view kBegin = "<think>";
  const size_t begin = content.rfind(kBegin);
  if (begin != std::string_view::npos) content.remove_prefix(begin + kBegin.size());
  content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
  return content.substr(0, content.find_last_not_of('\n') + 1);
}

Status ToolConversation::AppendAssistant(size_t i) {
  const ChatMessage& message = messages()[i];
  std::string content = AssistantContent(i);
  text_ += format_.assistant.prefix;
  if (format_.thinks && i > last_question_) {
    const std::string_view thoughts = ThoughtsOf(message.content);
    if (!thoughts.empty()) text_ += fmt::format("<think>\n{}\n</think>\n\n", thoughts);
  }
  if (message.tool_calls.empty()) {
    text_ += content + format_.assistant.suffix;
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(const std::string calls, Calls(i));
  if (tools_.drops_content_of_calls) content.clear();
  if (!content.empty()) content += "\n";
  text_ += content + calls + format_.assistant.suffix;
  return OkStatus();
}

void ToolConversation::AppendAnswer(size_t i) {
  const ChatMessage& message = messages()[i];
  const bool is_last = i + 1 == messages().size();
  const bool begins = !tools_.joins_answers || messages()[i - 1].role != "tool";
  const bool ends = !tools_.joins_answers || is_last || messages()[i + 1].role != "tool";
  std::string answer = message.content;
  if (tools_.answer_style == ToolFormat::Answer::kJsonString) answer = PythonJson(answer);
  if (tools_.answer_style == ToolFormat::Answer::kNamed) {
    nlohmann::ordered_json named;
    if (!message.tool_name.empty()) named["name"] = message.tool_name;
    named["response"] = answer;
    answer = PythonJson(named);
  }
  text_ += begins ? tools_.answers.prefix : "\n";
  text_ += In(tools_.answer, answer);
  if (!ends) return;
  if (tools_.ends_line_of_answers && !is_last) text_ += "\n";
  text_ += tools_.answers.suffix;
}

}  // namespace

StatusOr<std::string> RenderConversation(const ChatFormat& format,
                                         const ChatConversation& conversation) {
  if (!UsesTools(conversation)) {
    KVL_ASSIGN_OR_RETURN(std::string text, RenderChat(format, conversation.messages));
    if (!conversation.may_think) text += format.no_thoughts;
    return text;
  }
  if (!format.tools) {
    return Error(StatusCode::kUnimplemented,
                 "tools: the chat template of this model ({}) has none that this build renders; "
                 "those of Qwen2.5, Qwen3, Hermes, Llama 3.1 and Gemma 3 have",
                 format.family);
  }
  return ToolConversation(format, conversation).Render();
}

}  // namespace kvlathe
