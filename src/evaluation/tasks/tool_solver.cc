#include "evaluation/tasks/tool_solver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <vector>

namespace kvlathe {
namespace {

using ToolSchema = nlohmann::ordered_json;

// What a request of a tool looks like, with the names of what it says.
struct RequestForm {
  const char* tool;
  const char* pattern;
  std::vector<const char*> arguments;
};
const std::vector<RequestForm>& RequestForms() {
  static const std::vector<RequestForm> forms = {
      {"set_alarm",
       R"x(Set an alarm with the label "(.*)" for hour (\d+) and minute (\d+)\.)x",
       {"label", "hour", "minute"}},
      {"book_table",
       R"(Book a table for (\d+) guests on (\w+)\. The restaurant is (.*)\.)",
       {"guests", "day", "restaurant"}},
      {"send_message",
       R"x(Send a message with (\w+) priority and the text "(.*)"\. The recipient is (.*)\.)x",
       {"priority", "text", "recipient"}},
      {"convert_currency",
       R"(Convert an amount from (\w+) to (\w+)\. The amount is (.*)\.)",
       {"from_currency", "to_currency", "amount"}},
      {"get_weather",
       R"(Get the weather of the next (\d+) days in (\w+)\. The city is (.*)\.)",
       {"days", "unit", "city"}},
      {"transfer_money",
       R"(Transfer (\d+) (\w+)\. The account to send it to is (.*)\.)",
       {"amount", "currency", "account"}},
      {"order_parts",
       R"(Order (\d+) pieces with (\w+) shipping\. The article is (.*)\.)",
       {"quantity", "shipping", "article"}},
      {"open_ticket",
       R"x(Open a ticket of (\w+) priority on the topic "(.*)"\. The customer is (.*)\.)x",
       {"priority", "topic", "customer"}},
      {"play_music",
       R"(Play music in the (\w+) at volume (\d+)\. The artist is (.*)\.)",
       {"room", "volume", "artist"}},
      {"set_heating",
       R"(Heat the (\w+) to (\d+) degrees for (\d+) hours\.)",
       {"room", "degrees", "hours"}},
      {"find_trains",
       R"(Find trains from (\w+) in (\w+) class for (\d+) passengers\. The destination is (.*)\.)",
       {"origin", "class", "passengers", "destination"}},
      {"add_task",
       R"x(Add the task "(.*)" to the list "(\w+)", due on (\w+)\.)x",
       {"title", "list", "due_day"}},
      {"cancel_order",
       R"x(Cancel an order for the reason "(\w+)"\. The order is (.*)\.)x",
       {"reason", "order"}},
      {"rent_car", R"(Rent a (\w+) car in (\w+) for (\d+) days\.)", {"size", "city", "days"}},
      {"export_report",
       R"(Export the report of month (\d+) as (\w+)\. The project is (.*)\.)",
       {"month", "format", "project"}},
  };
  return forms;
}

// What the user said in the conversation of a thing that is referred to; else the text itself.
std::string ResolvedIn(const std::string& conversation, const std::string& text) {
  std::string subject = " " + text + " is ";
  subject[1] = static_cast<char>(std::toupper(static_cast<unsigned char>(subject[1])));
  const size_t at = conversation.find(subject);
  if (at == std::string::npos) return text;
  const size_t begin = at + subject.size();
  return conversation.substr(begin, conversation.find_first_of(".\n", begin) - begin);
}

// The value as JSON, or nothing where the schema does not allow it.
std::string ValueOf(const ToolSchema& schema, const std::string& text) {
  if (schema["type"] == "integer") {
    const bool is_number = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    return is_number ? text : "";
  }
  const bool is_free = !schema.contains("enum");
  const bool is_listed =
      is_free || std::ranges::find(schema["enum"], ToolSchema(text)) != schema["enum"].end();
  return is_listed ? '"' + text + '"' : "";
}

}  // namespace

std::set<std::string> SolveTools(const std::string& prompt) {
  std::map<std::string, ToolSchema> tools;
  std::string request;
  std::istringstream lines(prompt);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("{")) {
      const ToolSchema tool = ToolSchema::parse(line);
      tools[tool["name"]] = tool["parameters"];
    }
    if (line.starts_with("Request: ")) request = line.substr(9);
  }
  const std::string conversation = prompt.substr(prompt.find("This is a conversation"));
  std::set<std::string> calls;
  for (const RequestForm& form : RequestForms()) {
    std::smatch said;
    if (!tools.contains(form.tool) || !std::regex_match(request, said, std::regex(form.pattern))) {
      continue;
    }
    const ToolSchema& schema = tools[form.tool];
    if (schema["required"].size() != form.arguments.size()) continue;
    std::vector<std::string> fields;
    for (const auto& [name, type] : schema["properties"].items()) {
      const auto at = std::ranges::find(form.arguments, name);
      const bool is_required =
          std::ranges::find(schema["required"], ToolSchema(name)) != schema["required"].end();
      if ((at != form.arguments.end()) != is_required) return {};
      if (!is_required) continue;
      const std::string text = said[static_cast<size_t>(at - form.arguments.begin()) + 1];
      const std::string value = ValueOf(type, ResolvedIn(conversation, text));
      if (value.empty()) return {};
      fields.push_back(fmt::format("\"{}\": {}", name, value));
    }
    calls.insert(fmt::format(" {{\"name\": \"{}\", \"arguments\": {{{}}}}}", form.tool,
                             fmt::join(fields, ", ")));
  }
  return calls;
}

}  // namespace kvlathe
