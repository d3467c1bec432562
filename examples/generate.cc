// Generates text with a compressed cache: generate MODEL CACHE PROMPT
//   generate models/lathe-nano 'lathe(ratio=4)' 'It was a dark'
#include <kvlathe/text_model.h>

#include <iostream>

namespace rt = kvlathe::runtime;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: generate MODEL CACHE PROMPT\n";
    return 2;
  }
  const std::string cache = argv[2];
  rt::ModelSettings settings;
  settings.caches = {cache};
  settings.on_message = [](const rt::Message& message) { std::cerr << message.text << '\n'; };
  const auto fail = [](const absl::Status& status) {
    std::cerr << status.message() << '\n';
    return 1;
  };
  const auto model = rt::TextModel::Open(argv[1], settings);
  if (!model.ok()) return fail(model.status());
  const auto generator = (*model)->MakeGenerator({cache});
  if (!generator.ok()) return fail(generator.status());
  rt::TextRequest request;
  request.prompt = argv[3];
  request.max_tokens = 32;
  const auto result = (*generator)->Generate(request, [](const std::string& piece) {
    std::cout << piece << std::flush;
    return true;
  });
  if (!result.ok()) return fail(result.status());
  std::cerr << "\nthe cache took " << 100 * result->kv_fraction << "% of 16 bits\n";
  return 0;
}
