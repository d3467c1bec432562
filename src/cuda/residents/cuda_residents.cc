#include "cuda/residents/cuda_residents.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cpu/kernels/linear/blocks/block_layout.h"
#include "cpu/kernels/linear/blocks/block_values.h"

namespace kvlathe {
namespace {

constexpr int64_t kRowAlignment = 16;
// Rows go between the host and the GPU in pieces of about so many bytes.
constexpr int64_t kPieceBytes = int64_t{16} << 20;
// Groups of rows that the formats of the CPU read at once.
constexpr int64_t kRowGroup = 64;

// Bytes of n_in numbers of a type, without what lies behind them.
int64_t NumberBytes(WeightType type, int64_t n_in) {
  if (type == WeightType::kF32) return 4 * n_in;
  if (type == WeightType::kBf16) return 2 * n_in;
  return n_in / LayoutOfBlocks(type).block * StoredBlockBytes(type);
}

DType NumbersOf(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBf16; }

// n numbers of `from` as `to` has them.
void Convert(DType from, const std::byte* numbers, int64_t n, DType to, std::byte* out) {
  if (from == to) {
    std::memcpy(out, numbers, n * SizeOf(from));
  } else if (to == DType::kF32) {
    ConvertToFloat(from, numbers, n, reinterpret_cast<float*>(out));
  } else if (from == DType::kF32) {
    ConvertFromFloat(to, reinterpret_cast<const float*>(numbers), n, out);
  } else {
    std::vector<float> floats(n);
    ConvertToFloat(from, numbers, n, floats.data());
    ConvertFromFloat(to, floats.data(), n, out);
  }
}

int64_t RowsOfPiece(int64_t row_bytes) {
  return std::max(kRowGroup, kPieceBytes / row_bytes / kRowGroup * kRowGroup);
}

}  // namespace

CudaResidents::~CudaResidents() {
  for (const auto& [number, placed] : weights_) memory_.Free(placed.region);
  for (const auto& [number, placed] : maps_) {
    if (placed.region != 0) memory_.Free(placed.region);
  }
  for (const auto& [number, placed] : codebooks_) {
    if (placed.region != 0) memory_.Free(placed.region);
  }
}

bool CudaResidents::Multiplies(WeightType weights, DType rows) const {
  if (HasBlocks(weights)) return host_.Multiplies(weights, rows);
  return rows == NumbersOf(weights);
}

StatusOr<WeightId> CudaResidents::AddWeight(int64_t n_out, int64_t n_in, WeightType type) {
  const int64_t row_bytes = RoundUp(NumberBytes(type, n_in), kRowAlignment);
  const uint32_t region = memory_.Allocate(n_out * row_bytes);
  if (region == 0) {
    return Error(StatusCode::kResourceExhausted,
                 "no memory on the GPU for a weight matrix ({}; {} are free); give it more, or "
                 "take a smaller model",
                 FormatBytes(n_out * row_bytes), FormatBytes(memory_.n_free_bytes()));
  }
  const StatusOr<WeightId> id = host_.AddWeight(n_out, n_in, type);
  if (!id.ok()) {
    memory_.Free(region);
    return id.status();
  }
  const ObjectPlace place = {{.region = region}};
  memory_.Fill(place, std::byte{0}, n_out * row_bytes);
  weights_[id->number] = {{type, n_out, n_in, memory_.At(place), row_bytes}, region};
  return *id;
}

CudaResidents::Placed& CudaResidents::Of(const WeightId& weight) {
  const auto found = weights_.find(weight.number);
  KVL_CHECK(found != weights_.end());
  return found->second;
}

const CudaMatrix* CudaResidents::At(const WeightId& weight) const {
  if (weight.is_null()) return nullptr;
  const auto found = weights_.find(weight.number);
  KVL_CHECK(found != weights_.end());
  return &found->second.matrix;
}

void CudaResidents::Write(Placed* placed, int64_t first_out, int64_t n_rows,
                          std::span<const std::byte> rows) {
  KVL_CHECK_EQ(std::ssize(rows), n_rows * placed->matrix.row_bytes);
  const std::lock_guard lock(mutex_);
  memory_.Upload({{.region = placed->region}, first_out * placed->matrix.row_bytes}, rows);
  placed->is_on_host = false;
}

void CudaResidents::WriteRows(const WeightId& weight, int64_t first_out, int64_t n_rows,
                              DType dtype, const void* rows, int64_t row_stride) {
  Placed& placed = Of(weight);
  const CudaMatrix& matrix = placed.matrix;
  KVL_CHECK(!HasBlocks(matrix.type));
  const int64_t step = RowsOfPiece(matrix.row_bytes);
  for (int64_t row = 0; row < n_rows; row += step) {
    const int64_t n = std::min(step, n_rows - row);
    std::vector<std::byte> piece(n * matrix.row_bytes);
    for (int64_t r = 0; r < n; ++r) {
      const auto* const from =
          static_cast<const std::byte*>(rows) + (row + r) * row_stride * SizeOf(dtype);
      Convert(dtype, from, matrix.n_in, NumbersOf(matrix.type),
              piece.data() + r * matrix.row_bytes);
    }
    Write(&placed, first_out + row, n, piece);
  }
}

void CudaResidents::WriteBlocks(const WeightId& weight, int64_t first_out, int64_t n_rows,
                                const std::byte* blocks, int64_t row_bytes) {
  Placed& placed = Of(weight);
  const CudaMatrix& matrix = placed.matrix;
  const int64_t n_bytes = NumberBytes(matrix.type, matrix.n_in);
  const int64_t step = RowsOfPiece(matrix.row_bytes);
  for (int64_t row = 0; row < n_rows; row += step) {
    const int64_t n = std::min(step, n_rows - row);
    std::vector<std::byte> piece(n * matrix.row_bytes);
    for (int64_t r = 0; r < n; ++r) {
      std::memcpy(piece.data() + r * matrix.row_bytes, blocks + (row + r) * row_bytes, n_bytes);
    }
    Write(&placed, first_out + row, n, piece);
  }
}

std::vector<std::byte> CudaResidents::Read(const Placed& placed, int64_t first_out,
                                           int64_t n_rows) const {
  std::vector<std::byte> rows(n_rows * placed.matrix.row_bytes);
  const std::lock_guard lock(mutex_);
  memory_.Download({{.region = placed.region}, first_out * placed.matrix.row_bytes}, rows);
  return rows;
}

void CudaResidents::ReadRows(const WeightId& weight, int64_t first_out, int64_t n_rows,
                             float* rows) {
  const Placed& placed = Of(weight);
  const CudaMatrix& matrix = placed.matrix;
  const std::vector<std::byte> stored = Read(placed, first_out, n_rows);
  if (HasBlocks(matrix.type)) {
    StatusOr<PackedMatrix> packed = PackedMatrix::Create(n_rows, matrix.n_in, matrix.type);
    KVL_CHECK(packed.ok());
    packed->PackBlocks({0, n_rows, stored.data(), matrix.row_bytes});
    packed->UnpackRows(0, n_rows, rows);
    return;
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    Convert(NumbersOf(matrix.type), stored.data() + r * matrix.row_bytes, matrix.n_in, DType::kF32,
            reinterpret_cast<std::byte*>(rows + r * matrix.n_in));
  }
}

int64_t CudaResidents::BytesOf(const WeightId& weight) const {
  const CudaMatrix* const matrix = At(weight);
  return matrix->n_out * matrix->row_bytes;
}

void CudaResidents::Remove(const WeightId& weight) {
  memory_.Free(Of(weight).region);
  weights_.erase(weight.number);
  host_.Remove(weight);
}

StatusOr<TableId> CudaResidents::AddTable(HostTable table) {
  return host_.AddTable(std::move(table));
}
void CudaResidents::Remove(const TableId& table) { host_.Remove(table); }

LatentMapId CudaResidents::AddLatentMap(LatentMap map) {
  const LatentMapView view = map.view();
  const DType row_type = map.row_type();
  const int64_t column_bytes = int64_t{view.rank} * view.head_dim * SizeOf(row_type);
  const int64_t offset_bytes = int64_t{view.head_dim} * 4;
  // Columns are whole lines of 64 bytes: ranks and dimensions are multiples of 16.
  const uint32_t region = memory_.Allocate(column_bytes + offset_bytes);
  const ObjectPlace columns = {{.region = region}};
  if (region != 0) {
    const auto bytes = [](const void* from, int64_t n) {
      return std::span(static_cast<const std::byte*>(from), static_cast<size_t>(n));
    };
    memory_.Upload(columns, bytes(view.columns, column_bytes));
    memory_.Upload(columns + column_bytes, bytes(view.offset, offset_bytes));
  }
  const CudaLatentMap placed = {.rank = view.rank,
                                .head_dim = view.head_dim,
                                .key_dim = view.key_dim,
                                .row_type = row_type,
                                .columns = memory_.At(columns),
                                .offset = memory_.As<const float>(columns + column_bytes)};
  const LatentMapId id = host_.AddLatentMap(std::move(map));
  maps_[id.number] = {placed, region};
  return id;
}

void CudaResidents::Remove(const LatentMapId& map) {
  const auto found = maps_.find(map.number);
  KVL_CHECK(found != maps_.end());
  if (found->second.region != 0) memory_.Free(found->second.region);
  maps_.erase(found);
  host_.Remove(map);
}

const CudaLatentMap* CudaResidents::At(const LatentMapId& map) const {
  if (map.is_null()) return nullptr;
  const auto found = maps_.find(map.number);
  KVL_CHECK(found != maps_.end());
  return found->second.region == 0 ? nullptr : &found->second.map;
}

CodebooksId CudaResidents::AddCodebooks(LayerCodebooks codebooks) {
  CudaCodebooks placed = {.k = codebooks.k, .v = codebooks.v};
  // Behind the two books come the scales of one head after the other.
  const Codebook books[2] = {codebooks.k, codebooks.v};
  const int64_t books_bytes = RoundUp(int64_t{sizeof books}, kRowAlignment);
  int64_t n_floats = 0;
  for (const std::vector<float>& scales : codebooks.key_scales) n_floats += std::ssize(scales);
  const uint32_t region = memory_.Allocate(books_bytes + 4 * n_floats);
  if (region != 0) {
    const ObjectPlace first = {{.region = region}};
    memory_.Upload(first, std::as_bytes(std::span(books)));
    placed.books = memory_.As<const Codebook>(first);
    ObjectPlace next = first + books_bytes;
    for (const std::vector<float>& scales : codebooks.key_scales) {
      memory_.Upload(next, std::as_bytes(std::span(scales)));
      placed.key_scales.push_back(memory_.As<const float>(next));
      next = next + 4 * std::ssize(scales);
    }
  }
  const CodebooksId id = host_.AddCodebooks(std::move(codebooks));
  codebooks_[id.number] = {std::move(placed), region};
  return id;
}

void CudaResidents::Remove(const CodebooksId& codebooks) {
  const auto found = codebooks_.find(codebooks.number);
  KVL_CHECK(found != codebooks_.end());
  if (found->second.region != 0) memory_.Free(found->second.region);
  codebooks_.erase(found);
  host_.Remove(codebooks);
}

const CudaCodebooks* CudaResidents::At(const CodebooksId& codebooks) const {
  if (codebooks.is_null()) return nullptr;
  const auto found = codebooks_.find(codebooks.number);
  KVL_CHECK(found != codebooks_.end());
  return found->second.region == 0 ? nullptr : &found->second.books;
}

void CudaResidents::HoldOnHost(const WeightId& weight) {
  if (weight.is_null()) return;
  Placed& placed = Of(weight);
  if (placed.is_on_host) return;
  const CudaMatrix& matrix = placed.matrix;
  const int64_t step = RowsOfPiece(matrix.row_bytes);
  for (int64_t row = 0; row < matrix.n_out; row += step) {
    const int64_t n = std::min(step, matrix.n_out - row);
    const std::vector<std::byte> rows = Read(placed, row, n);
    if (HasBlocks(matrix.type)) {
      host_.WriteBlocks(weight, row, n, rows.data(), matrix.row_bytes);
    } else {
      const DType dtype = NumbersOf(matrix.type);
      host_.WriteRows(weight, row, n, dtype, rows.data(), matrix.row_bytes / SizeOf(dtype));
    }
  }
  placed.is_on_host = true;
  if (matrix.n_out * matrix.row_bytes > kMostHeldBytes) released_later_.push_back(weight);
}

void CudaResidents::ReleaseHost() {
  for (const WeightId& weight : std::exchange(released_later_, {})) {
    host_.Clear(weight);
    Of(weight).is_on_host = false;
  }
}

}  // namespace kvlathe
