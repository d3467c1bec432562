#include "runtime/shared_texts.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "io/files.h"
#include "io/model_place.h"

namespace kvlathe {
namespace {

// The file that this code was linked into: the program, or a shared library. Empty if the loader
// does not say.
std::filesystem::path OwnFile() {
  Dl_info info;
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&OwnFile), &info) == 0) return {};
  std::filesystem::path path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path;
}

// Where texts may lie, nearest first.
std::vector<std::string> SharedPlaces() {
  std::vector<std::string> places;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = program.parent_path();
    places.push_back(folder / "share/kvlathe");
    places.push_back(folder.parent_path() / "share/kvlathe");
  }
  // A library lies in lib/ of a prefix, or in a folder of lib/; in a wheel all is in one folder.
  const std::filesystem::path library_folder = OwnFile().parent_path();
  for (const auto& prefix :
       {library_folder, library_folder.parent_path(), library_folder.parent_path().parent_path()}) {
    if (!prefix.empty()) places.push_back(prefix / "share/kvlathe");
  }
  places.push_back(KVLATHE_SHARE_DIR);
  return places;
}

}  // namespace

namespace {

// Empty where it is in none of the places.
std::string FindShared(const std::string& name) {
  for (const std::string& place : SharedPlaces()) {
    std::string shared = place + "/" + name;
    if (FileExists(shared)) return shared;
  }
  return {};
}

}  // namespace

std::string MapsOfModel(const std::string& model_hash, KeyRows keys) {
  return FindShared("maps/" + model_hash + "-" + NameOf(keys) + ".safetensors");
}

StatusOr<std::string> SharedText(const std::string& name) {
  if (std::string shared = FindShared(name); !shared.empty()) return shared;
  return Error(StatusCode::kNotFound,
               "{}: the text of kvlathe is not installed; give a text with --text FILE", name);
}

StatusOr<std::string> TextOfModel(const std::string& model, const std::string& name) {
  const std::string own = BesideModel(model, name);
  if (FileExists(own)) return own;
  auto shared = SharedText(name);
  if (shared.ok()) return shared;
  return Error(StatusCode::kNotFound,
               "{}: the model has no such text, and the one of kvlathe is not installed; give a "
               "text with --text FILE",
               own);
}

}  // namespace kvlathe
