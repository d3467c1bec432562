#include "references/golden_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/safetensors/safetensors.h"

namespace kvlathe::testing {

std::vector<GoldenModel> GoldenModels() {
  const std::string golden = KVLATHE_SOURCE_DIR "/tests/golden/";
  std::vector<GoldenModel> models;
  std::error_code missing;  // fails as a suite without tests
  for (const auto& file : std::filesystem::directory_iterator(golden + "cases", missing)) {
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream fields(line);
      std::string name, bound;
      fields >> name >> bound;
      if (bound != "-") models.push_back({name, golden + name});
    }
  }
  std::ranges::sort(models, {}, &GoldenModel::name);
  return models;
}

std::vector<GoldenText> ReadGoldenTexts(const GoldenModel& model) {
  auto reader = SafetensorsReader::OpenFile(model.directory + "/golden_logits.safetensors");
  if (!reader.ok()) {
    ADD_FAILURE() << reader.status();
    return {};
  }
  const std::vector<int> ids = nlohmann::json::parse(reader->metadata().at("golden")).at("ids");
  std::vector<GoldenText> texts;
  for (const auto& [length, view] : reader->tensors()) {
    GoldenText& text = texts.emplace_back();
    text.ids.assign(ids.begin(), ids.begin() + std::stoi(length));
    const auto* row = reinterpret_cast<const float*>(view.data);
    for (int64_t t = 0; t < view.shape.at(0); ++t, row += view.shape.at(1)) {
      text.logits.emplace_back(row, row + view.shape.at(1));
    }
  }
  return texts;
}

}  // namespace kvlathe::testing
