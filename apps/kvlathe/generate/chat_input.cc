#include "kvlathe/generate/chat_input.h"

#include <editline/readline.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <utility>

namespace kvlathe {
namespace {

// libedit decodes what is typed by the locale. Messages are UTF-8 whatever the locale says, and
// without one (as in many containers) every letter beyond ASCII would be shown as numbers.
void ChooseUtf8Input() {
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::optional<std::string> EditLine(const char* prompt) {
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt), &std::free);
  if (line == nullptr) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return line.get();
}

}  // namespace

StatusOr<ChatInput> ParseChatInput(std::string_view text) {
  using Kind = ChatInput::Kind;
  if (text.starts_with("//")) return ChatInput{Kind::kMessage, std::string(text.substr(1))};
  if (!text.starts_with('/')) return ChatInput{Kind::kMessage, std::string(text)};
  text = text.substr(0, text.find_last_not_of(" \t") + 1);
  const std::string_view name = text.substr(0, text.find_first_of(" \t\n"));
  std::string_view argument = text.substr(name.size());
  argument.remove_prefix(std::min(argument.find_first_not_of(" \t"), argument.size()));
  if (name == "/rate") return ChatInput{Kind::kRate, std::string(argument)};
  for (const auto& [known, kind] :
       {std::pair("/help", Kind::kHelp), std::pair("/clear", Kind::kClear),
        std::pair("/exit", Kind::kExit)}) {
    if (name != known) continue;
    if (argument.empty()) return ChatInput{kind, ""};
    return Error(StatusCode::kInvalidArgument,
                 "{} takes nothing behind it; /help lists the commands", name);
  }
  return Error(StatusCode::kInvalidArgument,
               "{}: there is no such command; /help lists them, and // in place of / begins a "
               "message with it",
               name);
}

std::string ChatHelp() {
  return "/help    this list\n"
         "/clear   forget the conversation; the system message stays\n"
         "/rate P  remove the share P of K and V from now on, with resident=full in --kv\n"
         "/exit    end\n"
         "//...    a message that begins with /\n"
         "\\        at the end of a line: the message goes on in the next line\n"
         "Ctrl-C   stop an answer; between answers: end\n"
         "Ctrl-D   on an empty line: end\n";
}

bool TakeContinuation(std::string* line) {
  if (!line->ends_with('\\')) return false;
  line->pop_back();
  return true;
}

ChatReader::ChatReader() : is_terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (is_terminal_) ChooseUtf8Input();
}

std::optional<std::string> ChatReader::Read() {
  if (is_terminal_) return ReadEdited();
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

std::optional<std::string> ChatReader::ReadEdited() {
  std::optional<std::string> line = EditLine("> ");
  if (!line) return std::nullopt;
  std::string message;
  while (TakeContinuation(&*line)) {
    message += *line + "\n";
    line = EditLine("... ");
    if (!line) return std::nullopt;
  }
  return message + *line;
}

}  // namespace kvlathe
