#include "io/model_place.h"

#include <algorithm>
#include <string_view>

#include "io/files.h"

namespace kvlathe {
namespace {

bool IsDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Takes "-00001-of-00003" off the end, if that is what stands there.
void DropPartNumber(std::string* stem) {
  constexpr std::string_view kShape = "-00001-of-00003";
  if (stem->size() <= kShape.size()) return;
  const std::string_view end = std::string_view(*stem).substr(stem->size() - kShape.size());
  if (end[0] == '-' && IsDigits(end.substr(1, 5)) && end.substr(6, 4) == "-of-" &&
      IsDigits(end.substr(10))) {
    stem->resize(stem->size() - kShape.size());
  }
}

}  // namespace

std::string BesideModel(const std::string& model, const std::string& name) {
  constexpr std::string_view kSuffix = ".gguf";
  if (DirectoryExists(model) || !model.ends_with(kSuffix)) return model + "/" + name;
  std::string stem = model.substr(0, model.size() - kSuffix.size());
  DropPartNumber(&stem);
  return stem + "." + name;
}

}  // namespace kvlathe
