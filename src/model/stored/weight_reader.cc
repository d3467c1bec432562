#include "model/stored/weight_reader.h"

#include <algorithm>
#include <atomic>

#include "model/stored/block_types.h"

namespace kvlathe {
namespace {

// Looks at these elements, on the workers of `pool` where there is one: they bring in a mapped
// file's pages.
bool AreFinite(const StoredTensor& tensor, Range elements, ThreadPool* pool) {
  constexpr int64_t kStep = int64_t{1} << 16;  // elements: whole blocks of every type
  const int64_t n = elements.end - elements.begin;
  std::atomic<bool> is_finite = true;
  const auto check = [&](Range share) {
    if (!tensor.IsFinite(elements.begin + share.begin, share.end - share.begin)) is_finite = false;
  };
  if (pool == nullptr) {
    check({0, n});
  } else {
    pool->Run([&](int worker_id) { check(ShareOf(n, kStep, worker_id, pool->n_workers())); });
  }
  return is_finite;
}

Status NotFinite(const std::string& name) {
  return Error(
      StatusCode::kDataLoss,
      "tensor '{}' holds values that are not finite (NaN or infinity); download the model again",
      name);
}

// Of what a projection wants: whole rows are looked at even where only some of their columns are
// wanted, since they share pages and blocks.
bool IsWantedFinite(const StoredTensor& tensor, const Projection& p, ThreadPool* pool) {
  if (p.is_transposed) return AreFinite(tensor, {0, tensor.n_elements()}, pool);
  Range rows = {p.n_stored, 0};
  for (const Projection::Run& run : p.runs) {
    if (run.n == 0) continue;
    rows.begin = std::min(rows.begin, run.begin);
    rows.end = std::max(rows.end, run.begin + run.n);
  }
  const bool are_scattered = std::ssize(p.runs) > 1 && 2 * p.n_out() < rows.end - rows.begin;
  if (!are_scattered) {
    return rows.begin >= rows.end ||
           AreFinite(tensor, {rows.begin * p.n_in, rows.end * p.n_in}, pool);
  }
  return std::ranges::all_of(p.runs, [&](const Projection::Run& run) {
    return AreFinite(tensor, {run.begin * p.n_in, (run.begin + run.n) * p.n_in}, pool);
  });
}

// Calls fn(stored_begin, n, offset) for the stored pieces of rows [rows.begin, rows.end), offset
// counting from rows.begin.
template <typename F>
void ForPieces(const Projection& projection, Range rows, const F& fn) {
  int64_t first = 0;  // of the run, among the projection's rows
  for (const Projection::Run& run : projection.runs) {
    const int64_t begin = std::max(rows.begin, first);
    const int64_t end = std::min(rows.end, first + run.n);
    if (begin < end) fn(run.begin + begin - first, end - begin, begin - rows.begin);
    first += run.n;
  }
}

}  // namespace

StatusOr<StoredTensor> WeightReader::Checked(const std::string& name,
                                             const std::vector<int64_t>& shape) {
  KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, source_->Get(name, shape));
  if (!AreFinite(tensor, {0, tensor.n_elements()}, nullptr)) return NotFinite(name);
  return tensor;
}

StatusOr<StoredTensor> WeightReader::Open(const Projection& p, ThreadPool* pool) {
  const std::string name = p.matrix_name();
  std::vector<int64_t> shape = p.is_transposed ? std::vector<int64_t>{p.n_in, p.n_stored}
                                               : std::vector<int64_t>{p.n_stored, p.n_in};
  StoredTensor tensor;
  if (p.n_stacked > 0) {
    shape.insert(shape.begin(), p.n_stacked);
    KVL_ASSIGN_OR_RETURN(tensor, source_->GetPart(name, shape, p.stacked_idx));
  } else {
    KVL_ASSIGN_OR_RETURN(tensor, source_->Get(name, shape));
  }
  if (!IsWantedFinite(tensor, p, pool)) return NotFinite(name);
  return tensor;
}

StatusOr<std::vector<float>> WeightReader::Numbers(const std::string& name,
                                                   const std::vector<int64_t>& shape) {
  KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, Checked(name, shape));
  std::vector<float> values(tensor.n_elements());
  tensor.Read(0, std::ssize(values), values.data());
  source_->Done(tensor);
  return values;
}

StatusOr<std::vector<float>> WeightReader::VectorOrRow(const std::string& name, int64_t n) {
  StatusOr<std::vector<float>> vector = Numbers(name, {n});
  if (vector.ok()) return vector;
  StatusOr<std::vector<float>> row = Numbers(name, {1, n});
  return row.ok() ? std::move(row) : std::move(vector);
}

StatusOr<std::vector<float>> WeightReader::Vector(const std::vector<VectorPart>& parts) {
  std::vector<float> wanted;
  for (const VectorPart& part : parts) {
    std::vector<float> all(part.n_stored);
    std::vector<int64_t> shape = {part.n_stored};
    if (part.n_rows > 0) shape = {part.n_rows, part.n_stored / part.n_rows};
    KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, Checked(part.name, shape));
    tensor.Read(0, part.n_stored, all.data());
    source_->Done(tensor);
    for (const Projection::Run& run : part.runs) {
      wanted.insert(wanted.end(), all.begin() + run.begin, all.begin() + run.begin + run.n);
    }
  }
  return wanted;
}

StatusOr<float> WeightReader::Number(const std::string& name) {
  StatusOr<StoredTensor> scalar = source_->Get(name, {});
  if (!scalar.ok()) {
    KVL_ASSIGN_OR_RETURN(const std::vector<float> values, Vector(name, 1));
    return values.front();
  }
  if (!AreFinite(*scalar, {0, 1}, nullptr)) return NotFinite(name);
  float value = 0;
  scalar->Read(0, 1, &value);
  source_->Done(*scalar);
  return value;
}

StatusOr<std::vector<float>> WeightReader::Bias(const Projection& projection) {
  const bool is_stacked = projection.n_stacked > 0;
  const int64_t n = projection.n_stored;
  KVL_ASSIGN_OR_RETURN(
      const std::vector<float> stored,
      Numbers(projection.bias_name(), is_stacked ? std::vector<int64_t>{projection.n_stacked, n}
                                                 : std::vector<int64_t>{n}));
  const auto first = stored.begin() + (is_stacked ? projection.stacked_idx * n : 0);
  std::vector<float> bias;
  for (const Projection::Run& run : projection.runs) {
    bias.insert(bias.end(), first + run.begin, first + run.begin + run.n);
  }
  return bias;
}

namespace {

// Rows of a transposed matrix that stand in many runs close together, such as every second one: of
// each input all of the span is read at once. Whether they do.
bool CopySpannedRows(const StoredTensor& tensor, const Projection& p, Range rows, float* out) {
  struct Piece {
    int64_t stored, n, offset;
  };
  std::vector<Piece> pieces;
  int64_t begin = p.n_stored, end = 0;
  ForPieces(p, rows, [&](int64_t stored, int64_t n, int64_t offset) {
    pieces.push_back({stored, n, offset});
    begin = std::min(begin, stored);
    end = std::max(end, stored + n);
  });
  if (std::ssize(pieces) < 4 || end - begin > 4 * (rows.end - rows.begin)) return false;
  const int64_t n_columns = p.n_columns();
  std::vector<float> line(end - begin);
  for (int64_t i = 0; i < n_columns; ++i) {
    tensor.Read((p.first_in() + i) * p.n_stored + begin, end - begin, line.data());
    for (const Piece& piece : pieces) {
      for (int64_t r = 0; r < piece.n; ++r) {
        out[(piece.offset + r) * n_columns + i] = line[piece.stored - begin + r];
      }
    }
  }
  return true;
}

}  // namespace

void WeightReader::CopyRows(const StoredTensor& tensor, const Projection& p, Range rows,
                            float* out) {
  const int64_t n_columns = p.n_columns(), first_in = p.first_in();
  if (p.is_transposed && CopySpannedRows(tensor, p, rows, out)) return;
  ForPieces(p, rows, [&](int64_t stored, int64_t n, int64_t offset) {
    float* to = out + offset * n_columns;
    if (p.is_transposed) {
      std::vector<float> line(n);  // one input of n outputs
      for (int64_t i = 0; i < n_columns; ++i) {
        tensor.Read((first_in + i) * p.n_stored + stored, n, line.data());
        for (int64_t r = 0; r < n; ++r) to[r * n_columns + i] = line[r];
      }
    } else if (n_columns == p.n_in) {
      tensor.Read(stored * p.n_in, n * p.n_in, to);
    } else if (!tensor.blocks.has_value()) {
      for (int64_t r = 0; r < n; ++r) {
        tensor.Read((stored + r) * p.n_in + first_in, n_columns, to + r * n_columns);
      }
    } else {  // whole blocks are read
      std::vector<float> row(p.n_in);
      for (int64_t r = 0; r < n; ++r) {
        tensor.Read((stored + r) * p.n_in, p.n_in, row.data());
        std::copy_n(row.begin() + first_in, n_columns, to + r * n_columns);
      }
    }
  });
}

StatusOr<std::vector<float>> WeightReader::Matrix(const Projection& projection) {
  KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, Open(projection));
  std::vector<float> values(projection.n_out() * projection.n_columns());
  CopyRows(tensor, projection, {0, projection.n_out()}, values.data());
  source_->Done(tensor);
  return values;
}

void WeightReader::PackRows(const StoredTensor& tensor, const Projection& p, Range rows,
                            int64_t first_out, Weight* matrix) {
  if (!p.is_transposed && HasBlocks(matrix->type()) && tensor.blocks.has_value() &&
      WeightTypeOf(*tensor.blocks) == matrix->type()) {
    const GgmlLayout& layout = LayoutOf(*tensor.blocks);
    const int64_t row_bytes = p.n_in / layout.block_values * layout.block_bytes;
    const int64_t offset_in_row = p.first_in() / layout.block_values * layout.block_bytes;
    ForPieces(p, rows, [&](int64_t stored, int64_t n, int64_t offset) {
      matrix->WriteBlocks(first_out + rows.begin + offset, n,
                          tensor.data + stored * row_bytes + offset_in_row, row_bytes);
    });
    return;
  }
  // Rows that are stored one by one, as the kernels read them; runs of single rows are slow so.
  const bool has_whole_runs = std::ssize(p.runs) * 64 <= std::max<int64_t>(p.n_out(), 64);
  if (!p.is_transposed && !tensor.blocks.has_value() && has_whole_runs &&
      !HasBlocks(matrix->type())) {
    const int64_t element = SizeOf(tensor.dtype), row_bytes = p.n_in * element;
    ForPieces(p, rows, [&](int64_t stored, int64_t n, int64_t offset) {
      matrix->WriteRows(first_out + rows.begin + offset, n, tensor.dtype,
                        tensor.data + stored * row_bytes + p.first_in() * element, p.n_in);
    });
    return;
  }
  std::vector<float> values(64 * p.n_columns());
  for (int64_t first = rows.begin; first < rows.end; first += 64) {
    const int64_t n = std::min<int64_t>(64, rows.end - first);
    CopyRows(tensor, p, {first, first + n}, values.data());
    WriteFloats(first_out + first, n, values.data(), matrix);
  }
}

namespace {

// Whether no block lies across the first or last of the wanted inputs.
bool WantsWholeBlocks(const Projection& p, GgmlType blocks) {
  const int64_t n = LayoutOf(blocks).block_values;
  return p.first_in() % n == 0 && p.n_columns() % n == 0;
}

}  // namespace

WeightType WeightReader::TypeOf(const std::vector<Projection>& parts,
                                const NumberTypes& types) const {
  const int64_t n_columns = parts.front().n_columns();
  std::optional<WeightType> kept;
  bool is_mixed = false, has_blocks = false;
  for (const Projection& part : parts) {
    const std::optional<GgmlType> blocks = source_->BlocksOf(part.matrix_name());
    has_blocks |= blocks.has_value();
    std::optional<WeightType> of_part;
    if (blocks.has_value() && !part.is_transposed && WantsWholeBlocks(part, *blocks)) {
      of_part = WeightTypeOf(*blocks);
    }
    if (&part == parts.data()) kept = of_part;
    is_mixed |= of_part != kept;
  }
  const WeightType dense = types.dense_weights();
  if (!types.keeps_blocks || !has_blocks) return FittingType(types.weights, n_columns, dense);
  if (kept.has_value() && !is_mixed) return *kept;
  return FittingType(WeightType::kQ8_0, n_columns, dense);
}

void WeightReader::Count(const StoredTensor& tensor, const Projection& part, WeightType type) {
  if (!tensor.blocks.has_value() || WeightTypeOf(*tensor.blocks) == type) return;
  auto found = std::ranges::find_if(
      remade_, [&](const Remade& r) { return r.from == *tensor.blocks && r.to == type; });
  if (found == remade_.end()) found = remade_.insert(found, Remade{*tensor.blocks, type});
  ++found->n_matrices;
  found->stored_bytes += tensor.n_bytes;
  const int64_t n_values = part.n_out() * part.n_columns();
  if (!HasBlocks(type)) {
    found->bytes += n_values * (type == WeightType::kF32 ? 4 : 2);
    return;
  }
  const GgmlLayout& layout = LayoutOf(StoredTypeOf(type));
  found->bytes += n_values / layout.block_values * layout.block_bytes;
}

StatusOr<Weight> WeightReader::Pack(const std::vector<Projection>& parts, const NumberTypes& types,
                                    Residents* residents, ThreadPool* pool) {
  const WeightType type = TypeOf(parts, types);
  int64_t n_out = 0;
  for (const Projection& part : parts) n_out += part.n_out();
  KVL_ASSIGN_OR_RETURN(Weight matrix,
                       Weight::Create(residents, n_out, parts.front().n_columns(), type));
  int64_t first_out = 0;
  for (const Projection& part : parts) {
    KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, Open(part, pool));
    Count(tensor, part, type);
    // Workers may share no group of 64 packed rows.
    const bool is_aligned = first_out % 64 == 0;
    pool->Run([&](int worker_id) {
      const Range rows = is_aligned ? ShareOf(part.n_out(), 64, worker_id, pool->n_workers())
                                    : Range{0, worker_id == 0 ? part.n_out() : 0};
      if (rows.begin < rows.end) PackRows(tensor, part, rows, first_out, &matrix);
    });
    source_->Done(tensor);
    first_out += part.n_out();
  }
  return matrix;
}

StatusOr<StoredTensor> WeightReader::Table(const std::string& name, int64_t n_rows,
                                           int64_t n_columns, Range wanted) {
  KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, source_->Get(name, {n_rows, n_columns}));
  if (!AreFinite(tensor, {wanted.begin * n_columns, wanted.end * n_columns}, nullptr)) {
    return NotFinite(name);
  }
  if (source_->is_mapped()) source_->Done(tensor);
  return tensor;
}

}  // namespace kvlathe
