// How fast a decoding step reads its cache on a GPU: attention over random blocks of several
// formats beside a copy in the same memory. Prints JSON. It needs nothing but the driver, so a
// machine without packages can run it (scripts/first_contact.sh); on the emulated device its
// numbers mean nothing, and it shows that it runs.
//
//   cuda_bench [--entries 8192,32768] [--heads 256] [--rows 8] [--repeats 20] [--copy-mib 1024]
//
// A KV head has 128 channels a side and `rows` query rows, of one token. All heads together are
// what a layer of a batch reads at once: so many that the largest cache of codes is far larger than
// the GPU's L2 cache. Bytes count once: blocks and records, not queries and outputs.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "cuda/kernels/attend/decode.h"
#include "cuda/testing/device_array.h"
#include "format/packed_layout.h"
#include "machine/attention/plan.h"
#include "machine/object_id.h"

namespace kvlathe::cuda {
namespace {

constexpr int kChannels = 128;

Status StatusOf(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  return Error(StatusCode::kUnavailable, "{}: {}", what, cudaGetErrorString(error));
}

struct Options {
  std::vector<int> entries = {8192, 32768};
  int heads = 256;
  int rows = 8;
  int repeats = 20;
  int copy_mib = 1024;
};

// Numbers above zero; false where there are others.
bool ParseNumbers(std::string_view text, std::vector<int>* numbers) {
  numbers->clear();
  while (!text.empty()) {
    const std::string item(text.substr(0, text.find(',')));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    int x = 0, n_read = 0;
    if (std::sscanf(item.c_str(), "%d%n", &x, &n_read) != 1 || x <= 0 ||
        n_read != static_cast<int>(item.size())) {
      return false;
    }
    numbers->push_back(x);
  }
  return !numbers->empty();
}

StatusOr<Options> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    std::vector<int> numbers;
    if (i + 1 == argc || !ParseNumbers(argv[i + 1], &numbers)) {
      return Error(StatusCode::kInvalidArgument, "{}: needs numbers above 0", name);
    }
    if (name == "--entries") {
      options.entries = numbers;
    } else if (name == "--heads") {
      options.heads = numbers[0];
    } else if (name == "--rows") {
      options.rows = std::min(numbers[0], kMostDecodeRows);
    } else if (name == "--repeats") {
      options.repeats = numbers[0];
    } else if (name == "--copy-mib") {
      options.copy_mib = numbers[0];
    } else {
      return Error(StatusCode::kInvalidArgument,
                   "{}: there are --entries, --heads, --rows, --repeats and --copy-mib", name);
    }
  }
  return options;
}

struct Format {
  std::string name;
  AttendLayout layout;
  int64_t block_bytes = 0;
  int64_t code_bytes = 0;  // of a block; scales follow
  int64_t record_bytes = 0;
};

Format UniformFormat(std::string name, int bits, ScaleSharing keys, int n_blocks) {
  const PackedFormat packed = {
      .codec = UniformCodec{.k = {.bits = bits, .sharing = keys},
                            .v = {.bits = bits, .sharing = ScaleSharing::kToken}}};
  const PackedShape shape =
      MakePackedShape(packed, {.rank_k = kChannels, .rank_v = kChannels}, {},
                      {.n_kv_heads = 1, .layer_rank_v = kChannels, .n_blocks = n_blocks});
  return {.name = std::move(name),
          .layout = LayoutOfRun(shape).value(),
          .block_bytes = PackedBlockBytes(shape),
          .code_bytes = KeyCodeBytes(shape) + ValueCodeBytes(shape),
          .record_bytes = RunRecordBytes(shape)};
}

// As lathe seals at ratio 8: two bits a channel on average, of 4 to none.
Format SplitFormat(int n_blocks) {
  BitSplit split;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    if (kSplitBits[i] == 4) split.channels[i] = 16;
    if (kSplitBits[i] == 3) split.channels[i] = 32;
    if (kSplitBits[i] == 2) split.channels[i] = 32;
    if (kSplitBits[i] == 1) split.channels[i] = 32;
  }
  const PackedFormat packed = {.codec = SplitBitsCodec{.unit = StoredUnit::kToken}};
  const HeadBits bits = {.middle = {.k = split, .v = split}};
  const PackedShape shape =
      MakePackedShape(packed, {.rank_k = kChannels, .rank_v = kChannels}, bits,
                      {.n_kv_heads = 1, .layer_rank_v = kChannels, .n_blocks = n_blocks});
  return {.name = "lathe split, 2 bits",
          .layout = LayoutOfRun(shape).value(),
          .block_bytes = PackedBlockBytes(shape),
          .code_bytes = KeyCodeBytes(shape) + ValueCodeBytes(shape),
          .record_bytes = RunRecordBytes(shape)};
}

std::vector<Format> Formats(int n_blocks) {
  const BlockShape rows = {.rank_k = kChannels, .rank_v = kChannels};
  std::vector<Format> formats = {{.name = "rows, 16 bits",
                                  .layout = PlainLayout(rows),
                                  .block_bytes = BlockBytes(rows),
                                  .code_bytes = 0}};
  for (const int bits : {8, 4, 2}) {
    formats.push_back(
        UniformFormat(fmt::format("uniform, {} bits", bits), bits, ScaleSharing::kToken, n_blocks));
  }
  formats.push_back(UniformFormat("keys by channel, 4 bits", 4, ScaleSharing::kChannel, n_blocks));
  formats.push_back(SplitFormat(n_blocks));
  return formats;
}

// A block of random codes, with scales that are numbers; rows of Bf16 about 0.
std::vector<std::byte> RandomBlock(const Format& format, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> block(RoundUp(format.block_bytes, kDeviceAlignment));
  if (format.code_bytes == 0) {
    for (size_t i = 0; i + 1 < block.size(); i += 2) {
      const Bf16 x = ToBf16(static_cast<float>(random.Normal()));
      std::memcpy(block.data() + i, &x, sizeof(x));
    }
    return block;
  }
  for (size_t i = 0; i < block.size(); ++i) {
    const bool is_code = static_cast<int64_t>(i) < format.code_bytes;
    block[i] = is_code ? static_cast<std::byte>(random.Next()) : std::byte{0x20};
  }
  return block;
}

class Bench {
 public:
  static StatusOr<Bench> Create(const Options& options) {
    Bench bench(options);
    KVL_RETURN_IF_ERROR(
        StatusOf(cudaGetDeviceProperties(&bench.properties_, 0), "asking for the device"));
    KVL_RETURN_IF_ERROR(
        StatusOf(cudaStreamCreateWithFlags(&bench.stream_, cudaStreamNonBlocking), "a stream"));
    for (cudaEvent_t* const event : {&bench.begin_, &bench.end_}) {
      KVL_RETURN_IF_ERROR(StatusOf(cudaEventCreateWithFlags(event, 0), "an event"));
    }
    return bench;
  }

  // Of one run of `work`, in seconds.
  template <typename Work>
  StatusOr<double> SecondsOf(const Work& work) {
    work();
    cudaEventRecord(begin_, stream_);
    for (int i = 0; i < options_.repeats; ++i) work();
    cudaEventRecord(end_, stream_);
    KVL_RETURN_IF_ERROR(StatusOf(cudaStreamSynchronize(stream_), "work on the GPU"));
    KVL_RETURN_IF_ERROR(StatusOf(cudaGetLastError(), "a kernel"));
    float milliseconds = 0;
    KVL_RETURN_IF_ERROR(StatusOf(cudaEventElapsedTime(&milliseconds, begin_, end_), "the time"));
    return std::max(1e-9, milliseconds * 1e-3 / options_.repeats);
  }

  // Bytes read and written a second by a copy from device memory to device memory.
  StatusOr<double> CopyBandwidth() {
    const int64_t n_bytes = int64_t{options_.copy_mib} << 20;
    const DeviceArray<std::byte> from(n_bytes), to(n_bytes);
    KVL_ASSIGN_OR_RETURN(const double seconds, SecondsOf([&] {
                           cudaMemcpyAsync(to.data(), from.data(), n_bytes,
                                           cudaMemcpyDeviceToDevice, stream_);
                         }));
    return 2 * static_cast<double>(n_bytes) / seconds;
  }

  struct Result {
    double seconds = 0;
    int64_t n_bytes = 0;
    int n_items = 0, n_warps = 0;
  };
  StatusOr<Result> Decode(const Format& format, int n_blocks);

  const cudaDeviceProp& properties() const { return properties_; }

 private:
  explicit Bench(const Options& options) : options_(options) {}

  Options options_;
  cudaDeviceProp properties_ = {};
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Blocks of all heads one behind the other, each a copy of one of 64.
void FillBlocks(const Format& format, int64_t n_blocks, cudaStream_t stream, std::byte* to) {
  const int64_t stride = RoundUp(format.block_bytes, kDeviceAlignment);
  std::vector<std::byte> some;
  for (int i = 0; i < std::min<int64_t>(64, n_blocks); ++i) {
    const std::vector<std::byte> block = RandomBlock(format, i + 1);
    some.insert(some.end(), block.begin(), block.end());
  }
  cudaMemcpyAsync(to, some.data(), some.size(), cudaMemcpyHostToDevice, stream);
  for (int64_t done = std::ssize(some), all = n_blocks * stride; done < all;) {
    const int64_t n = std::min(done, all - done);
    cudaMemcpyAsync(to + done, to, n, cudaMemcpyDeviceToDevice, stream);
    done += n;
  }
  cudaStreamSynchronize(stream);
}

StatusOr<Bench::Result> Bench::Decode(const Format& format, int n_blocks) {
  const int n_heads = options_.heads, rows = options_.rows;
  const int64_t stride = RoundUp(format.block_bytes, kDeviceAlignment);
  const int64_t cache_bytes = int64_t{n_heads} * n_blocks * stride;
  size_t n_free = 0, n_total = 0;
  KVL_RETURN_IF_ERROR(StatusOf(cudaMemGetInfo(&n_free, &n_total), "asking for memory"));
  if (cache_bytes + (int64_t{64} << 20) > static_cast<int64_t>(n_free)) {
    return Error(StatusCode::kResourceExhausted, "{} of cache do not fit; use fewer --heads",
                 FormatBytes(cache_bytes));
  }
  const DeviceArray<std::byte> cache(cache_bytes);
  FillBlocks(format, int64_t{n_heads} * n_blocks, stream_, cache.data());
  const int64_t record_bytes = std::max<int64_t>(1, format.record_bytes);
  const DeviceArray<std::byte> records(
      std::vector<std::byte>(n_heads * record_bytes, std::byte{0x20}));

  // A head is cut into so many parts that all multiprocessors have several items.
  const int n_parts =
      std::clamp(4 * properties_.multiProcessorCount / n_heads, 1, std::max(1, n_blocks / 16));
  const int step = (n_blocks + n_parts - 1) / n_parts;
  const int64_t out_bytes = int64_t{rows} * kChannels * sizeof(float);
  const DeviceArray<std::byte> out(n_heads * out_bytes);
  Random random(7);
  std::vector<Bf16> queries(int64_t{n_heads} * rows * kChannels);
  for (Bf16& x : queries) x = ToBf16(static_cast<float>(random.Normal()));
  const DeviceArray<Bf16> q(queries);
  std::vector<uint32_t> places(int64_t{n_heads} * n_blocks);
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = static_cast<uint32_t>(i * stride / kDeviceAlignment);
  }
  const DeviceArray<uint32_t> device_places(places);
  std::vector<DecodeRun> runs;
  for (int head = 0; head < n_heads; ++head) {
    runs.push_back(
        {.n_blocks = n_blocks,
         .record = format.record_bytes > 0 ? records.data() + head * record_bytes : nullptr});
  }
  const DeviceArray<DecodeRun> device_runs(runs);
  std::vector<DecodeJob> jobs;
  std::vector<DecodeItem> items;
  std::vector<DecodeSplit> splits;
  int64_t n_floats = 0;
  for (int head = 0; head < n_heads; ++head) {
    jobs.push_back({.base = cache.data(),
                    .q = reinterpret_cast<const std::byte*>(q.data() + head * rows * kChannels),
                    .q_stride = kChannels,
                    .first_place = head * n_blocks,
                    .first_run = head,
                    .out = out.data() + head * out_bytes,
                    .out_stride = rows * kChannels,
                    .out_head_stride = kChannels,
                    .rank_k = kChannels,
                    .rank_v = kChannels,
                    .width = kChannels,
                    .head_dim = kChannels,
                    .gqa_group = rows,
                    .first_visible = n_blocks * kBlockSize});
    const int64_t first = n_floats;
    for (int part = 0; part < n_parts; ++part) {
      items.push_back({.job_idx = head,
                       .n_rows = rows,
                       .entry_begin = std::min(n_blocks, part * step) * kBlockSize,
                       .entry_end = std::min(n_blocks, (part + 1) * step) * kBlockSize});
      if (n_parts == 1) continue;
      items.back().partial_offset = n_floats;
      n_floats += PartialFloats(rows, kChannels);
    }
    if (n_parts > 1) {
      splits.push_back(
          {.job_idx = head, .n_rows = rows, .n_parts = n_parts, .partial_offset = first});
    }
  }
  const DeviceArray<DecodeJob> device_jobs(jobs);
  const DeviceArray<DecodeItem> device_items(items);
  if (splits.empty()) splits.resize(1);
  const DeviceArray<DecodeSplit> device_splits(splits);
  const DeviceArray<AttendLayout> layouts(std::vector<AttendLayout>{format.layout});
  const DeviceArray<AttendTables> tables(std::vector<AttendTables>{MakeAttendTables()});
  const DeviceArray<float> partials(std::max<int64_t>(1, n_floats));
  DecodeParams params = {.places = device_places.data(),
                         .runs = device_runs.data(),
                         .jobs = device_jobs.data(),
                         .items = device_items.data(),
                         .n_items = static_cast<int32_t>(items.size()),
                         .layouts = layouts.data(),
                         .tables = tables.data(),
                         .splits = device_splits.data(),
                         .n_splits = n_parts > 1 ? n_heads : 0,
                         .partials = partials.data(),
                         .sm_scale = 0.088f,
                         .max_rows = rows <= 8 ? 8 : 16,
                         .max_rank_k = kChannels,
                         .max_rank_v = kChannels};
  params.n_warps =
      WarpsThatFit(params, static_cast<int64_t>(properties_.sharedMemPerBlockOptin) / 2);
  KVL_ASSIGN_OR_RETURN(const double seconds, SecondsOf([&] { AttendDecode(stream_, params); }));
  return Result{.seconds = seconds,
                .n_bytes = n_heads * (n_blocks * format.block_bytes + format.record_bytes),
                .n_items = params.n_items,
                .n_warps = params.n_warps};
}

StatusOr<std::string> Run(const Options& options) {
  KVL_ASSIGN_OR_RETURN(Bench bench, Bench::Create(options));
  KVL_ASSIGN_OR_RETURN(const double copied, bench.CopyBandwidth());
  std::string json = fmt::format(
      "{{\"device\": \"{}\", \"heads\": {}, \"rows\": {}, \"channels\": {}, "
      "\"copy_gb_per_s\": {:.1f}, \"decode\": [",
      bench.properties().name, options.heads, options.rows, kChannels, copied * 1e-9);
  std::string separator = "\n  ";
  for (const int n_entries : options.entries) {
    const int n_blocks = std::max(1, n_entries / kBlockSize);
    double of_rows = 0;
    for (const Format& format : Formats(n_blocks)) {
      KVL_ASSIGN_OR_RETURN(const Bench::Result result, bench.Decode(format, n_blocks));
      if (of_rows == 0) of_rows = result.seconds;
      const double bandwidth = static_cast<double>(result.n_bytes) / result.seconds;
      json += fmt::format(
          "{}{{\"entries\": {}, \"format\": \"{}\", \"microseconds\": {:.2f}, \"bytes\": {}, "
          "\"gb_per_s\": {:.1f}, \"of_copy\": {:.3f}, \"times_as_fast_as_rows\": {:.2f}, "
          "\"items\": {}, \"warps\": {}}}",
          std::exchange(separator, ",\n  "), n_blocks * kBlockSize, format.name,
          result.seconds * 1e6, result.n_bytes, bandwidth * 1e-9, bandwidth / copied,
          of_rows / result.seconds, result.n_items, result.n_warps);
    }
  }
  return json + "\n]}\n";
}

}  // namespace
}  // namespace kvlathe::cuda

int main(int argc, char** argv) {
  const auto options = kvlathe::cuda::ParseOptions(argc, argv);
  kvlathe::StatusOr<std::string> json =
      options.ok() ? kvlathe::cuda::Run(*options) : options.status();
  if (!json.ok()) {
    std::fprintf(stderr, "cuda_bench: %s\n", std::string(json.status().message()).c_str());
    return options.ok() ? 1 : 2;
  }
  std::fputs(json->c_str(), stdout);
  return 0;
}
