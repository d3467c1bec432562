// Renders templates for a test that compares with Python: each line of standard input is
//   {"template": PATH, "globals": {...}, "tokens": {...}, "now": SECONDS}
// and each line of output {"text": ...} or {"error": ...}.
#include <iostream>
#include <map>
#include <string>

#include "chat/jinja_program.h"
#include "io/files.h"

int main() {
  using namespace kvlathe;
  using Json = nlohmann::ordered_json;
  std::map<std::string, StatusOr<JinjaProgram>> programs;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    const std::string path = request["template"];
    if (!programs.contains(path)) {
      const auto text = ReadTextFile(path, 1 << 20);
      programs.emplace(path, text.ok() ? JinjaProgram::Parse(*text) : text.status());
    }
    const StatusOr<JinjaProgram>& program = programs.at(path);
    RenderOptions options;
    options.now = request["now"].get<int64_t>();
    const StatusOr<MarkedText> rendered =
        program.ok() ? program->Render(request["globals"], request["tokens"], options)
                     : StatusOr<MarkedText>(program.status());
    const Json answer = rendered.ok() ? Json{{"text", rendered->text}}
                                      : Json{{"error", MessageOf(rendered.status())}};
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  return 0;
}
