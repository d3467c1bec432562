// Runs a fuzz target over the files of its corpus and over every beginning of each: the form that
// fuzz targets take in a normal build, so that they stay compilable and the corpus stays clean.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes);

int main(int argc, char** argv) {
  int n_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& file : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(file.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
      if (!stream) {
        std::fprintf(stderr, "%s: cannot read\n", file.path().c_str());
        return 1;
      }
      for (size_t n_bytes = 0; n_bytes <= bytes.size(); ++n_bytes) {
        // A copy of just these bytes lets AddressSanitizer see a read past them.
        const std::vector<uint8_t> input(bytes.begin(), bytes.begin() + n_bytes);
        LLVMFuzzerTestOneInput(input.data(), n_bytes);
      }
      ++n_files;
    }
  }
  std::printf("%d corpus files\n", n_files);
  return n_files > 0 ? 0 : 1;
}
