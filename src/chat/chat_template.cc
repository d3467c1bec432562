#include "chat/chat_template.h"

#include <algorithm>
#include <optional>

#include "chat/answer_discovery.h"
#include "chat/conversation_form.h"
#include "chat/reading/text_compare.h"
#include "tokenizer/files/model_settings.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

Json TokensJson(const NamedTokens& tokens) {
  Json json = Json::object();
  for (const auto& [name, text] : tokens) json[name] = text;
  return json;
}

bool HasItems(const Json& json) { return json.is_array() && !json.empty(); }

// Ends the text behind the last message's own, so that the answer goes on there.
Status CutBehind(const std::string& content, MarkedText* marked) {
  const std::string_view kept = TrimBlanks(content);
  const size_t pos = kept.empty() ? std::string::npos : marked->text.rfind(kept);
  if (pos == std::string::npos) {
    return Error(
        StatusCode::kInvalidArgument,
        "continue_final_message: the template does not print the last message as it is, so "
        "that it cannot go on");
  }
  // The blanks behind it stay as far as the template keeps them.
  const std::string_view wanted = std::string_view(content).substr(content.find(kept));
  const size_t n = CommonPrefix(std::string_view(marked->text).substr(pos), wanted);
  marked->text.erase(pos + n);
  while (!marked->inputs.empty() && marked->inputs.back().begin >= marked->text.size()) {
    marked->inputs.pop_back();
  }
  if (!marked->inputs.empty()) {
    marked->inputs.back().end = std::min(marked->inputs.back().end, marked->text.size());
  }
  return OkStatus();
}

}  // namespace

StatusOr<ChatTemplate> ChatTemplate::Make(const ChatTemplateTexts& texts, NamedTokens tokens) {
  ChatTemplate made;
  made.tokens_ = std::move(tokens);
  std::vector<std::pair<std::string, std::string>> all = {{"default", texts.text}};
  for (const auto& named : texts.named) {
    if (named.first == "tool_use" || named.first == "rag") all.push_back(named);
  }
  for (const auto& [name, text] : all) {
    StatusOr<JinjaProgram> program = JinjaProgram::Parse(text);
    if (!program.ok()) return InFile(texts.place, program.status());
    Variant variant = {.name = name, .program = *std::move(program), .traits = {}, .format = {}};
    const TemplateProber prober(&variant.program, TokensJson(made.tokens_));
    variant.traits = FindTraits(prober);
    variant.format = FindAnswerFormat(prober, variant.traits);
    if (name == "default") {
      const auto text_of_probe =
          prober.Render({.messages = Json::array({ProbeQuestion(variant.traits)})});
      for (const auto& [token_name, token] : made.tokens_) {
        if (token_name != "bos_token" || token.empty()) continue;
        made.prints_bos_ = text_of_probe && text_of_probe->starts_with(token);
      }
    }
    made.variants_.push_back(std::move(variant));
  }
  return made;
}

const ChatTemplate::Variant& ChatTemplate::VariantFor(bool has_tools, bool has_documents) const {
  const std::string_view name = has_tools ? "tool_use" : has_documents ? "rag" : "default";
  const auto found = std::ranges::find(variants_, name, &Variant::name);
  return found == variants_.end() ? variants_.front() : *found;
}

StatusOr<MarkedText> ChatTemplate::Render(const ChatConversation& conversation,
                                          const RenderOptions& options) const {
  if (!HasItems(conversation.messages)) {
    return Error(StatusCode::kInvalidArgument, "a conversation needs a message");
  }
  const bool has_tools = HasItems(conversation.tools);
  const Variant& variant = VariantFor(has_tools, HasItems(conversation.documents));
  if (has_tools && !variant.traits.takes_tools) {
    return Error(
        StatusCode::kUnimplemented,
        "tools: this model's chat template prints none; leave them out, or describe them in "
        "the text of a message");
  }
  Json globals = conversation.arguments.is_object() ? conversation.arguments : Json::object();
  KVL_ASSIGN_OR_RETURN(globals["messages"], MessagesFor(variant.traits, conversation.messages));
  globals["tools"] = has_tools ? conversation.tools : Json(nullptr);
  globals["documents"] = HasItems(conversation.documents) ? conversation.documents : Json(nullptr);
  Json trusted = TokensJson(tokens_);
  const bool goes_on = conversation.continues_last_message;
  trusted["add_generation_prompt"] = conversation.opens_answer && !goes_on;
  if (!goes_on) return variant.program.Render(globals, trusted, options);
  const Json& last = conversation.messages.back();
  if (last.value("role", "") != "assistant") {
    return Error(StatusCode::kInvalidArgument,
                 "continue_final_message: the last message is not one of the assistant");
  }
  KVL_ASSIGN_OR_RETURN(MarkedText marked, variant.program.Render(globals, trusted, options));
  KVL_RETURN_IF_ERROR(CutBehind(JoinedText(last.value("content", Json())), &marked));
  return marked;
}

std::vector<std::string> ChatTemplate::Notes() const {
  std::vector<std::string> notes;
  const Variant& plain = VariantFor(false, false);
  const Variant& with_tools = VariantFor(true, false);
  if (!plain.traits.takes_system) {
    notes.push_back(
        "the chat template has no place for a system message, which goes in front of the first "
        "message of the user");
  }
  if (with_tools.traits.takes_tools && !with_tools.format.calls) {
    notes.push_back(fmt::format("the chat template prints tools, but {}: calls stay text",
                                with_tools.format.why_no_calls));
  }
  return notes;
}

}  // namespace kvlathe
