#include "chat/jinja_program.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// Expressions are trees as deep as they have operators, and are freed by recursion.
constexpr int kMaxBlockTokens = 8192;
constexpr int kMaxJsonDepth = 128;
constexpr size_t kMaxWordBytes = 32;
constexpr std::string_view kRaised = "Jinja Exception: ";

Status TooLarge(std::string_view what) {
  return Error(StatusCode::kResourceExhausted, "the chat template {}", what);
}

// "While executing ... Error: X" on many lines becomes one line.
std::string OneLine(std::string_view message) {
  std::string line(message);
  for (const std::string_view lead : {"Error: ", "lexer: ", "parser: "}) {
    const size_t pos = line.rfind(lead);
    if (pos != std::string::npos && lead == "Error: ") line.erase(0, pos + lead.size());
  }
  std::ranges::replace(line, '\n', ' ');
  return line;
}

Status StatusOfFailure(std::string_view message) {
  const size_t raised = message.rfind(kRaised);
  if (raised != std::string_view::npos) {
    return Error(StatusCode::kInvalidArgument, "the chat template refuses: {}",
                 message.substr(raised + kRaised.size()));
  }
  return Error(StatusCode::kInvalidArgument, "the chat template fails: {}", OneLine(message));
}

// With one kind of line break: the engine takes long for many of another.
std::string WithLineFeeds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool is_return = source[i] == '\r';
    text += is_return ? '\n' : source[i];
    if (is_return && i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  return text;
}

bool IsWord(std::string_view text) {
  return text.size() <= kMaxWordBytes &&
         std::ranges::all_of(text, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

jinja::value TextValue(const std::string& text, bool is_input) {
  return jinja::mk_val<jinja::value_string>(jinja::string(text, is_input));
}

jinja::value ValueOf(const Json& json, bool is_input, int depth = 0) {
  if (depth > kMaxJsonDepth) throw jinja_budget::Spent{"depth"};
  switch (json.type()) {
    case Json::value_t::boolean:
      return jinja::mk_val<jinja::value_bool>(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return jinja::mk_val<jinja::value_int>(json.get<int64_t>());
    case Json::value_t::number_float:
      return jinja::mk_val<jinja::value_float>(json.get<double>());
    case Json::value_t::string:
      return TextValue(json.get_ref<const std::string&>(), is_input);
    case Json::value_t::array: {
      auto array = jinja::mk_val<jinja::value_array>();
      for (const Json& item : json) array->push_back(ValueOf(item, is_input, depth + 1));
      return array;
    }
    case Json::value_t::object: {
      auto object = jinja::mk_val<jinja::value_object>();
      for (const auto& [key, item] : json.items()) {
        const bool is_word = (key == "role" || key == "type") && item.is_string() &&
                             IsWord(item.get_ref<const std::string&>());
        object->insert(TextValue(key, is_input && !IsWord(key)),
                       ValueOf(item, is_input && !is_word, depth + 1));
      }
      return object;
    }
    default:
      return jinja::mk_val<jinja::value_none>();
  }
}

MarkedText TextOf(const jinja::value_string& rendered) {
  MarkedText marked;
  for (const jinja::string_part& part : rendered->val_str.parts) {
    if (part.is_input && !part.val.empty()) {
      marked.inputs.push_back({marked.text.size(), marked.text.size() + part.val.size()});
    }
    marked.text += part.val;
  }
  return marked;
}

Status CheckBlocks(const std::vector<jinja::token>& tokens) {
  int n_in_block = 0;
  for (const jinja::token& token : tokens) {
    const bool opens = token.t == jinja::token::open_statement ||
                       token.t == jinja::token::open_expression || token.t == jinja::token::text;
    n_in_block = opens ? 0 : n_in_block + 1;
    if (n_in_block > kMaxBlockTokens) return TooLarge("has a block that is too long");
  }
  return OkStatus();
}

}  // namespace

struct JinjaProgram::Parsed {
  jinja::program program;
};

StatusOr<JinjaProgram> JinjaProgram::Parse(std::string_view source) {
  JinjaProgram made;
  try {
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(WithLineFeeds(source));
    KVL_RETURN_IF_ERROR(CheckBlocks(tokens.tokens));
    made.parsed_ = std::make_shared<const Parsed>(Parsed{jinja::parse_from_tokens(tokens)});
    made.source_ = std::make_shared<const std::string>(tokens.source);
  } catch (const jinja_budget::Spent&) {
    return TooLarge("nests too deeply");
  } catch (const std::exception& error) {
    return Error(StatusCode::kInvalidArgument, "the chat template cannot be read: {}",
                 OneLine(error.what()));
  }
  return made;
}

StatusOr<MarkedText> JinjaProgram::Render(const Json& globals, const Json& trusted,
                                          const RenderOptions& options) const {
  jinja_budget::Budget budget(options.limits);
  try {
    jinja::context context(*source_);
    if (options.now) context.current_time = *options.now;
    for (const auto& [key, item] : globals.items()) context.set_val(key, ValueOf(item, true));
    for (const auto& [key, item] : trusted.items()) context.set_val(key, ValueOf(item, false));
    jinja::runtime runtime(context);
    return TextOf(jinja::runtime::gather_string_parts(runtime.execute(parsed_->program)));
  } catch (const jinja_budget::Spent& spent) {
    return TooLarge(fmt::format("takes more {} than one may", spent.what));
  } catch (const std::exception& error) {
    return StatusOfFailure(error.what());
  }
}

}  // namespace kvlathe
