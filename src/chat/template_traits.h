// What a chat template can take, found by rendering small conversations.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "chat/jinja_program.h"

namespace kvlathe {

struct TemplateTraits {
  bool takes_system = true;  // otherwise a system message stands in front of the first user message
  bool takes_text = true;    // a content as text; otherwise it is given as parts
  bool takes_parts = false;  // a content as parts; otherwise their texts are joined
  bool takes_tools = false;  // definitions of tools are printed
  bool takes_calls = false;  // calls in messages are printed
  // How a call must be given for that.
  bool arguments_are_objects = true;  // otherwise JSON text
  enum class NoContent { kNull, kEmpty, kAbsent };
  NoContent no_content = NoContent::kNull;  // of a message that has calls alone
  // The template prints a call's id and not its name, so that ids are made of names.
  bool ids_hold_names = false;
  // The field of a message that is printed as its thoughts; empty: none is.
  std::string thoughts_field;
};

// Renders probes with a program and its tokens.
class TemplateProber {
 public:
  TemplateProber(const JinjaProgram* program, nlohmann::ordered_json tokens)
      : program_(*program), tokens_(std::move(tokens)) {}

  struct Probe {
    nlohmann::ordered_json messages;
    nlohmann::ordered_json tools = nullptr;
    nlohmann::ordered_json arguments = nullptr;
    bool opens_answer = false;
  };
  // Nothing: the template refuses or fails.
  std::optional<std::string> Render(const Probe& probe) const;
  const std::string& source() const { return program_.source(); }

 private:
  const JinjaProgram& program_;
  nlohmann::ordered_json tokens_;
};

TemplateTraits FindTraits(const TemplateProber& prober);

// What the probes of tools and calls are made of.
inline constexpr const char* kProbeQuestionText = "kvl-question";
inline constexpr const char* kProbeCallId = "kvlcall01";

// A content and a user's message as the traits ask for.
nlohmann::ordered_json ProbeContent(const TemplateTraits& traits, const char* text);
nlohmann::ordered_json ProbeQuestion(const TemplateTraits& traits);
// A tool of two parameters, `city` and `days`.
nlohmann::ordered_json ProbeTool(const std::string& name);
// A message of the assistant with calls of `names`, given as the traits ask for.
struct ProbeCall {
  std::string name;
  nlohmann::ordered_json arguments;
  std::string id;
};
nlohmann::ordered_json ProbeAnswer(const TemplateTraits& traits,
                                   const std::vector<ProbeCall>& calls);

}  // namespace kvlathe
