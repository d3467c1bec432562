// The chat template of a model: what makes a prompt of a conversation. Templates are Jinja
// programs, and any of them is run.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "chat/jinja_program.h"
#include "chat/marked_text.h"
#include "chat/reading/answer_format.h"
#include "chat/template_traits.h"

namespace kvlathe {

// Tokens that templates know by name: {"bos_token", "<s>"}.
using NamedTokens = std::vector<std::pair<std::string, std::string>>;

struct ChatTemplateTexts {
  std::string place;  // where they stand, for messages
  std::string text;   // the default
  // Further ones by name: "tool_use" takes conversations with tools, "rag" those with documents.
  std::vector<std::pair<std::string, std::string>> named = {};
};

// What a template is asked to render, in the form of OpenAI's API.
struct ChatConversation {
  // {"role", "content"}, with content a text, a list of parts {"type": "text", "text"} or null;
  // "tool_calls" with arguments as JSON text, "tool_call_id", "name" and "reasoning_content" as
  // there.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools = nullptr;      // {"type": "function", "function": {...}}
  nlohmann::ordered_json documents = nullptr;  // for templates that know them
  nlohmann::ordered_json arguments = nullptr;  // further variables (chat_template_kwargs)
  bool opens_answer = true;                    // add_generation_prompt
  bool continues_last_message = false;  // the assistant's last message goes on; opens no answer
};

// Any number of threads may use one.
class ChatTemplate {
 public:
  // Runs probes to find what the template takes and how it writes calls and thoughts.
  // kInvalidArgument and kResourceExhausted: a template cannot be read.
  static StatusOr<ChatTemplate> Make(const ChatTemplateTexts& texts, NamedTokens tokens);

  // kInvalidArgument: there is no message, a call's arguments are no JSON object, the last message
  // is to be continued and is not the assistant's, or the template refuses; then with its words.
  // kUnimplemented: there are tools, and the template prints none. kResourceExhausted: the template
  // takes more than one may.
  StatusOr<MarkedText> Render(const ChatConversation& conversation,
                              const RenderOptions& options = {}) const;

  // The template as it stands in the model.
  const std::string& source() const { return variants_.front().program.source(); }
  const TemplateTraits& traits(bool has_tools) const { return VariantFor(has_tools, false).traits; }
  const AnswerFormat& answer_format(bool has_tools) const {
    return VariantFor(has_tools, false).format;
  }
  // Whether the prompt begins with the token of that name, so that none has to be added.
  bool prints_bos() const { return prints_bos_; }
  // What a reader of the log should know: sentences without an end.
  std::vector<std::string> Notes() const;

 private:
  struct Variant {
    std::string name;
    JinjaProgram program;
    TemplateTraits traits;
    AnswerFormat format;
  };

  const Variant& VariantFor(bool has_tools, bool has_documents) const;
  nlohmann::ordered_json Trusted(const ChatConversation& conversation) const;

  std::vector<Variant> variants_;  // the default first
  NamedTokens tokens_;
  bool prints_bos_ = false;
};

}  // namespace kvlathe
