// A request that one of several tools answers, to be written as a call in JSON. A value that the
// call needs is said in a conversation long before the request where the tool has one to ask for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "evaluation/tasks/definition.h"
#include "evaluation/tasks/parameters.h"
#include "evaluation/tasks/prose.h"
#include "evaluation/tasks/tool_list.h"

namespace kvlathe {
namespace {

constexpr int kTurnSentences = 2;

struct Call {
  std::string fact;  // what the conversation says; empty where the request has every value
  std::string request;
  std::string json;
};

std::string WithValue(std::string_view fact, const std::string& value) {
  std::string text(fact);
  if (const size_t at = text.find("$v"); at != std::string::npos) text.replace(at, 2, value);
  return text;
}

// Where `refers`, an argument that can be said earlier is.
Call DrawCall(const Tool& tool, bool refers, Random& rng) {
  Call call;
  std::vector<std::string> spoken, fields;
  for (const ToolArgument& argument : tool.arguments) {
    const std::string value = argument.Draw(rng);
    const bool is_earlier = refers && !argument.fact.empty();
    if (is_earlier) call.fact = WithValue(argument.fact, value);
    spoken.push_back(is_earlier ? std::string(argument.mention) : value);
    if (argument.is_optional) continue;
    fields.push_back(argument.is_integer() ? fmt::format("\"{}\": {}", argument.name, value)
                                           : fmt::format("\"{}\": \"{}\"", argument.name, value));
  }
  for (size_t i = 0; i < tool.request.size(); ++i) {
    if (tool.request[i] != '$') {
      call.request += tool.request[i];
    } else {
      call.request += spoken[static_cast<size_t>(tool.request[++i] - '0')];
    }
  }
  call.json = fmt::format("{{\"name\": \"{}\", \"arguments\": {{{}}}}}", tool.name,
                          fmt::join(fields, ", "));
  return call;
}

// n different tools in any order.
std::vector<const Tool*> DrawTools(int n, Random& rng) {
  std::vector<const Tool*> tools;
  for (const Tool& tool : AllTools()) tools.push_back(&tool);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    std::swap(tools[i], tools[i + rng.Below(tools.size() - i)]);
  }
  tools.resize(static_cast<size_t>(n));
  return tools;
}

TaskExample GenerateCall(int n_tools, const TaskRequest& request) {
  Random rng = request.Stream(0);
  const std::vector<const Tool*> tools = DrawTools(n_tools, rng);
  const Tool& asked = *tools[rng.Below(tools.size())];
  const Call call = DrawFor(
      request.split, [&] { return DrawCall(asked, /*refers=*/true, rng); },
      [](const Call& drawn) { return drawn.json; });
  // Worked examples show the form, with the first two of the tools that are not asked for.
  std::string shots, schemas;
  int n_shots = 0;
  for (const Tool* tool : tools) {
    schemas += SchemaOf(*tool) + "\n";
    if (tool == &asked || n_shots == 2) continue;
    ++n_shots;
    const Call shot = DrawFor(
        request.split, [&] { return DrawCall(*tool, /*refers=*/false, rng); },
        [](const Call& drawn) { return drawn.json; });
    shots += fmt::format("Request: {}\nCall: {}\n\n", shot.request, shot.json);
  }
  const double depth = rng.Uniform();
  return FitLength(request, {.min = 1, .tokens = 30}, [&](int n_turns) {
    const int turn_of_fact = static_cast<int>(depth * n_turns) / 2 * 2;  // one of the user's
    Random prose = request.Stream(1);
    TaskExample example{.stop = "\n"};
    example.prompt = fmt::format(
        "There are these tools, each with a JSON schema of its arguments.\n\n{}\nA request is "
        "answered with the call of one tool as JSON, with the arguments that the request gives "
        "and no others.\n\n{}This is a conversation, and a request at its end.\n\n",
        schemas, shots);
    for (int turn = 0; turn < n_turns; ++turn) {
      std::string said;
      AppendSentences(ProseStyle::kNatural, kTurnSentences, prose, said);
      said.pop_back();  // a space
      if (turn == turn_of_fact && !call.fact.empty()) said += " " + call.fact;
      example.prompt += fmt::format("{}: {}\n", turn % 2 == 0 ? "User" : "Friend", said);
    }
    example.prompt += fmt::format("\nRequest: {}\nCall:", call.request);
    example.references = {" " + call.json};
    return example;
  });
}

}  // namespace

TaskDefinition ToolsTask(TaskParameters& parameters, std::shared_ptr<const Haystack>) {
  const int n_tools = parameters.Integer("count", 6, 4, 8);
  return {
      .name = "tools",
      .description = "call one of several tools with the arguments of a request, as JSON",
      .metric = TaskMetric::kToolCall,
      .chance = 0,
      .default_length = 2000,
      .min_length = 400 + 170 * n_tools,
      .generate = [n_tools](const TaskRequest& request) { return GenerateCall(n_tools, request); }};
}

}  // namespace kvlathe
