#include "analysis/bases/lathe_maps.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/bases/optimal_pair.h"
#include "analysis/statistics/joint_rows.h"
#include "analysis/statistics/statistics_metadata.h"
#include "base/check.h"
#include "io/safetensors/safetensors.h"
#include "io/safetensors/safetensors_checksum.h"
#include "tensor/decompositions.h"

namespace kvlathe {
namespace {

constexpr FileFormat kMapsFormat = {"kvlathe-maps", "1", "lathe's maps"};
constexpr const char* kKeysKey = "keys";

// The groups of KV heads whose rows stand side by side.
struct Groups {
  explicit Groups(const StatisticsShape& shape)
      : heads(JointHeads(shape)),
        width(heads * shape.head_dim),
        of_layer(shape.n_kv_heads / heads),
        n(int64_t{shape.n_layers} * of_layer) {}

  JointChannels Channels(int64_t group) const {
    return {static_cast<int>(group / of_layer), static_cast<int>(group % of_layer) * width, width};
  }
  int64_t square() const { return int64_t{width} * width; }

  int heads;
  int width;
  int64_t of_layer;
  int64_t n;
};

// The arrays of one kind of rows as they lie in the file, group after group.
struct KindArrays {
  explicit KindArrays(const Groups& groups)
      : maps(groups.n * groups.square()),
        mean(groups.n * groups.width),
        rows(groups.n * groups.width),
        fisher(groups.n * groups.width) {}

  std::vector<F16> maps;      // [n_layers, n_groups, width, width]: E, with columns of at most 1
  std::vector<float> mean;    // [n_layers, n_groups, width]
  std::vector<float> rows;    // likewise: s over the square of what a column was divided by
  std::vector<float> fisher;  // s times that square
};

// [dim, dim] row-major: sum over i of weights[i] m_i m_i^T, with m_i the columns of `map`.
std::vector<double> SumOfSquares(const std::vector<double>& map, std::span<const float> weights,
                                 int dim) {
  std::vector<double> scaled(map.size()), sum(map.size());
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) scaled[i * dim + j] = map[i * dim + j] * double{weights[j]};
  }
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j <= i; ++j) {
      double product = 0;
      for (int c = 0; c < dim; ++c) product += scaled[i * dim + c] * map[j * dim + c];
      sum[i * dim + j] = sum[j * dim + i] = product;
    }
  }
  return sum;
}

std::vector<double> TransposedMap(const std::vector<double>& map, int dim) {
  std::vector<double> transposed(map.size());
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) transposed[j * dim + i] = map[i * dim + j];
  }
  return transposed;
}

KindArrays ArraysOf(const JointMoments& moments, const StatisticsShape& shape) {
  const Groups groups(shape);
  KindArrays arrays(groups);
  const int dim = groups.width;
  for (int64_t g = 0; g < groups.n; ++g) {
    const JointChannels channels = groups.Channels(g);
    const std::span<const float> mean = MeanOf(moments.weighed_mean, shape, channels);
    const std::vector<double> rows = RowsAbout(mean, moments, shape, channels).Priced();
    const OptimalPair pair = DecomposePair(SquareOf(moments.fisher, shape, channels), rows, dim);
    std::ranges::copy(mean, arrays.mean.begin() + g * dim);
    for (int column = 0; column < dim; ++column) {
      double largest = 0;
      for (int i = 0; i < dim; ++i) {
        largest = std::max(largest, std::abs(pair.right[i * dim + column]));
      }
      for (int i = 0; i < dim; ++i) {
        arrays.maps[g * groups.square() + i * dim + column] =
            ToF16(static_cast<float>(pair.right[i * dim + column] / largest));
      }
      const double s = pair.singular_values[column];
      arrays.rows[g * dim + column] = static_cast<float>(s / (largest * largest));
      arrays.fisher[g * dim + column] = static_cast<float>(s * largest * largest);
    }
  }
  return arrays;
}

void AppendTensors(const std::string& name, const StatisticsShape& shape, const KindArrays& arrays,
                   std::vector<TensorToWrite>* tensors) {
  const Groups groups(shape);
  const std::vector<int64_t> of_channels = {shape.n_layers, groups.of_layer, groups.width};
  std::vector<int64_t> of_maps = of_channels;
  of_maps.push_back(groups.width);
  // Those of 4 bytes stand first.
  const std::pair<const char*, const std::vector<float>*> vectors[] = {
      {".mean", &arrays.mean}, {".rows", &arrays.rows}, {".fisher", &arrays.fisher}};
  for (const auto& [suffix, values] : vectors) {
    tensors->insert(tensors->begin(), {name + suffix, DType::kF32, of_channels, values->data()});
  }
  tensors->push_back({name + ".maps", DType::kF16, of_maps, arrays.maps.data()});
}

// One reading of a file; what is read goes into statistics.
class MapsReader {
 public:
  MapsReader(const SafetensorsReader& file, const StatisticsShape& shape)
      : file_(file), shape_(shape), groups_(shape) {}

  Status ReadVector(const std::string& name, const std::vector<int64_t>& extents,
                    std::vector<float>* values) const {
    KVL_ASSIGN_OR_RETURN(const TensorView* tensor, file_.Get(name, extents));
    values->resize(tensor->n_elements());
    ConvertToFloat(tensor->dtype, tensor->data, tensor->n_elements(), values->data());
    if (std::ranges::all_of(*values, [](float x) { return std::isfinite(x); })) return OkStatus();
    return NotFinite(name);
  }

  Status ReadKind(const std::string& name, JointMoments* moments) const {
    const std::vector<int64_t> extents = {shape_.n_layers, groups_.of_layer, groups_.width};
    std::vector<int64_t> of_maps = extents;
    of_maps.push_back(groups_.width);
    std::vector<float> rows, fisher, maps;
    KVL_RETURN_IF_ERROR(ReadVector(name + ".mean", extents, &moments->mean));
    KVL_RETURN_IF_ERROR(ReadVector(name + ".rows", extents, &rows));
    KVL_RETURN_IF_ERROR(ReadVector(name + ".fisher", extents, &fisher));
    KVL_RETURN_IF_ERROR(ReadVector(name + ".maps", of_maps, &maps));
    moments->weighed_mean = moments->mean;
    const int dim = groups_.width;
    for (int64_t g = 0; g < groups_.n; ++g) {
      const auto map_begin = maps.begin() + g * groups_.square();
      const std::vector<double> map(map_begin, map_begin + groups_.square());
      const auto of = [&](const std::vector<float>& all) {
        return std::span<const float>(all).subspan(g * dim, dim);
      };
      Append(SumOfSquares(map, of(fisher), dim), &moments->fisher);
      Append(SumOfSquares(TransposedMap(InvertSquare(map, dim), dim), of(rows), dim),
             &moments->weighed_covariance);
    }
    moments->covariance = moments->weighed_covariance;
    for (const std::vector<float>* squares : {&moments->fisher, &moments->covariance}) {
      const bool is_finite =
          std::ranges::all_of(*squares, [](float x) { return std::isfinite(x); });
      if (!is_finite) return NotFinite(name + ".maps");
    }
    return OkStatus();
  }

 private:
  Status NotFinite(const std::string& name) const {
    return Error(StatusCode::kDataLoss, "{}: tensor {} gives values that are not finite; {}",
                 file_.path(), name, kRecalibrate);
  }
  static void Append(const std::vector<double>& square, std::vector<float>* to) {
    for (const double x : square) to->push_back(static_cast<float>(x));
  }

  const SafetensorsReader& file_;
  const StatisticsShape& shape_;
  Groups groups_;
};

StatusOr<KeyRows> KeysOfFile(const SafetensorsReader& file) {
  const auto found = file.metadata().find(kKeysKey);
  for (const KeyRows rows : kAllKeyRows) {
    if (found != file.metadata().end() && found->second == NameOf(rows)) return rows;
  }
  return Error(StatusCode::kDataLoss,
               "{}: metadata '{}' is none of after, centred, block and before; {}", file.path(),
               kKeysKey, kRecalibrate);
}

}  // namespace

Status WriteLatheMaps(const CalibrationStatistics& statistics, KeyRows keys,
                      const std::string& path) {
  if (statistics.joint.n_tokens == 0) {
    return Error(StatusCode::kFailedPrecondition,
                 "{}: the calibration holds no gradients, by which lathe prices errors; calibrate "
                 "on a longer text",
                 path);
  }
  if (statistics.maps_of.has_value() && *statistics.maps_of != keys) {
    return Error(StatusCode::kInvalidArgument, "{}: only the maps of keys={} are known, not of {}",
                 path, NameOf(*statistics.maps_of), NameOf(keys));
  }
  const StatisticsShape& shape = statistics.shape;
  const KindArrays of_keys = ArraysOf(statistics.joint.keys(keys), shape);
  const KindArrays of_values = ArraysOf(statistics.joint.v, shape);
  std::vector<TensorToWrite> tensors = {{"turning_mean",
                                         DType::kF32,
                                         {shape.n_layers, shape.n_kv_heads, shape.head_dim},
                                         statistics.turning_mean.data()}};
  AppendTensors("keys", shape, of_keys, &tensors);
  AppendTensors("values", shape, of_values, &tensors);
  std::map<std::string, std::string> metadata = MetadataOf(statistics, kMapsFormat);
  metadata[kKeysKey] = NameOf(keys);
  metadata["n_held_back_tokens"] = "0";
  return WriteSafetensors(path, tensors, WithChecksum(tensors, std::move(metadata)));
}

StatusOr<CalibrationStatistics> ReadLatheMaps(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::OpenFile(path));
  KVL_RETURN_IF_ERROR(CheckFormat(file, kMapsFormat));
  CalibrationStatistics statistics;
  KVL_RETURN_IF_ERROR(ReadMetadata(file, &statistics));
  KVL_ASSIGN_OR_RETURN(statistics.maps_of, KeysOfFile(file));
  const StatisticsShape& shape = statistics.shape;
  const MapsReader reader(file, shape);
  KVL_RETURN_IF_ERROR(reader.ReadVector("turning_mean",
                                        {shape.n_layers, shape.n_kv_heads, shape.head_dim},
                                        &statistics.turning_mean));
  KVL_RETURN_IF_ERROR(reader.ReadKind("keys", &statistics.joint.keys(*statistics.maps_of)));
  KVL_RETURN_IF_ERROR(reader.ReadKind("values", &statistics.joint.v));
  return statistics;
}

StatusOr<CalibrationStatistics> ReadStatisticsOrMaps(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::OpenFile(path));
  return HasFormat(file, kMapsFormat) ? ReadLatheMaps(path) : ReadStatistics(path);
}

}  // namespace kvlathe
