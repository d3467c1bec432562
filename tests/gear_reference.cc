#include "gear_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvlathe::testing {
namespace {

// Elements that are filtered, or quantised, together.
struct Cell {
  size_t head, position, channel;
};
using Cells = std::vector<Cell>;

struct Shape {
  size_t n_heads, n_positions, n_channels;

  explicit Shape(const std::vector<Matrix>& x)
      : n_heads(x.size()), n_positions(x[0].size()), n_channels(x[0][0].size()) {}
};

Cells ChannelOf(const Shape& shape, size_t head, size_t channel) {
  Cells cells;
  for (size_t t = 0; t < shape.n_positions; ++t) cells.push_back({head, t, channel});
  return cells;
}

Cells TokenOf(const Shape& shape, size_t position) {
  Cells cells;
  for (size_t h = 0; h < shape.n_heads; ++h) {
    for (size_t c = 0; c < shape.n_channels; ++c) cells.push_back({h, position, c});
  }
  return cells;
}

// Filter_s: of every channel of K, and of every token of V over all heads, floor(n s / 2) largest
// and as many smallest elements.
std::vector<Cells> FilteredTogether(const Shape& shape, bool is_key) {
  std::vector<Cells> all;
  if (!is_key) {
    for (size_t t = 0; t < shape.n_positions; ++t) all.push_back(TokenOf(shape, t));
    return all;
  }
  for (size_t h = 0; h < shape.n_heads; ++h) {
    for (size_t c = 0; c < shape.n_channels; ++c) all.push_back(ChannelOf(shape, h, c));
  }
  return all;
}

void Filter(const std::vector<Matrix>& x, const Cells& cells, double share, GearParts* parts) {
  std::vector<size_t> order(cells.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Cell &p = cells[a], &q = cells[b];
    return x[p.head][p.position][p.channel] < x[q.head][q.position][q.channel];
  });
  const auto n = static_cast<size_t>(static_cast<double>(cells.size()) * share / 2);
  for (size_t i = 0; i < n; ++i) {
    for (const size_t at : {order[i], order[order.size() - 1 - i]}) {
      parts->is_outlier[cells[at].head][cells[at].position][cells[at].channel] = true;
    }
  }
}

// The groups of the backbone.
std::vector<Cells> QuantizedTogether(const GearSettings& settings, const Shape& shape,
                                     bool is_key) {
  if (settings.backbone == GearSettings::Backbone::kKcvt) return FilteredTogether(shape, is_key);
  std::vector<Cells> groups;
  const auto add = [&](const Cells& line) {
    const auto step = static_cast<size_t>(settings.group);
    for (size_t i = 0; i < line.size(); i += step) {
      groups.emplace_back(line.begin() + i, line.begin() + std::min(line.size(), i + step));
    }
  };
  for (size_t h = 0; h < shape.n_heads; ++h) {
    for (size_t c = 0; is_key && c < shape.n_channels; ++c) add(ChannelOf(shape, h, c));
    for (size_t t = 0; !is_key && t < shape.n_positions; ++t) {
      Cells row;
      for (size_t c = 0; c < shape.n_channels; ++c) row.push_back({h, t, c});
      add(row);
    }
  }
  return groups;
}

// Quant_b of the elements of a group that are no outliers. X - S is 0 at the others, and what their
// code stands for is of no account: S takes what is missing.
void Quantize(const std::vector<Matrix>& x, const Cells& group, int bits, GearParts* parts) {
  double low = INFINITY, high = -INFINITY;
  for (const Cell& p : group) {
    if (parts->is_outlier[p.head][p.position][p.channel]) continue;
    low = std::min(low, x[p.head][p.position][p.channel]);
    high = std::max(high, x[p.head][p.position][p.channel]);
  }
  const double top = (1 << bits) - 1;
  const double scale = high > low ? (high - low) / top : 1;
  for (const Cell& p : group) {
    const double value = x[p.head][p.position][p.channel];
    double& quantized = parts->quantized[p.head][p.position][p.channel];
    if (parts->is_outlier[p.head][p.position][p.channel]) {
      quantized = 0;
      parts->sparse[p.head][p.position][p.channel] = value;
    } else {
      quantized = std::clamp(std::nearbyint((value - low) / scale), 0.0, top) * scale + low;
    }
  }
}

// Columns of a matrix to orthonormal ones (QR by Gram-Schmidt); columns without length become 0.
void Orthonormalize(Matrix* m) {
  const size_t n_columns = (*m)[0].size();
  for (size_t j = 0; j < n_columns; ++j) {
    for (size_t i = 0; i < j; ++i) {
      double dot = 0;
      for (const auto& row : *m) dot += row[i] * row[j];
      for (auto& row : *m) row[j] -= dot * row[i];
    }
    double square = 0;
    for (const auto& row : *m) square += row[j] * row[j];
    const double length = std::sqrt(square);
    for (auto& row : *m) row[j] = length > 1e-12 ? row[j] / length : 0;
  }
}

// m z, or m^T z.
Matrix Product(const Matrix& m, const Matrix& z, bool is_transposed) {
  const size_t n = is_transposed ? m[0].size() : m.size();
  Matrix y(n, std::vector<double>(z[0].size()));
  for (size_t t = 0; t < m.size(); ++t) {
    for (size_t c = 0; c < m[0].size(); ++c) {
      for (size_t j = 0; j < z[0].size(); ++j) {
        if (is_transposed) {
          y[c][j] += m[t][c] * z[t][j];
        } else {
          y[t][j] += m[t][c] * z[c][j];
        }
      }
    }
  }
  return y;
}

// Algorithm 2: A B^T of rank columns near r.
Matrix SolveLowRank(const Matrix& r, const GearSettings& settings, std::mt19937_64* random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Matrix b(r[0].size(), std::vector<double>(settings.rank)), a;
  for (auto& row : b) {
    for (double& x : row) x = uniform(*random);
  }
  for (int loop = 0; loop < settings.loops; ++loop) {
    const bool is_last = loop == settings.loops - 1;
    if (is_last) Orthonormalize(&b);
    a = Product(r, b, /*is_transposed=*/false);
    if (is_last) Orthonormalize(&a);
    b = Product(r, a, /*is_transposed=*/true);
  }
  Matrix low_rank(r.size(), std::vector<double>(r[0].size()));
  for (size_t t = 0; t < r.size(); ++t) {
    for (size_t c = 0; c < r[0].size(); ++c) {
      for (int j = 0; j < settings.rank; ++j) low_rank[t][c] += a[t][j] * b[c][j];
    }
  }
  return low_rank;
}

}  // namespace

GearParts CompressByGear(const GearSettings& settings, bool is_key, const std::vector<Matrix>& rows,
                         uint64_t seed) {
  const Shape shape(rows);
  const Matrix zero(shape.n_positions, std::vector<double>(shape.n_channels));
  GearParts parts = {.quantized = std::vector<Matrix>(shape.n_heads, zero),
                     .sparse = std::vector<Matrix>(shape.n_heads, zero),
                     .low_rank = std::vector<Matrix>(shape.n_heads, zero)};
  parts.is_outlier.assign(shape.n_heads,
                          std::vector(shape.n_positions, std::vector<bool>(shape.n_channels)));
  for (const Cells& cells : FilteredTogether(shape, is_key)) {
    Filter(rows, cells, settings.share, &parts);
  }
  for (const Cells& group : QuantizedTogether(settings, shape, is_key)) {
    Quantize(rows, group, settings.bits, &parts);
  }
  std::mt19937_64 random(seed);
  for (size_t h = 0; h < shape.n_heads && settings.rank > 0; ++h) {
    Matrix rest = rows[h];
    for (size_t t = 0; t < shape.n_positions; ++t) {
      for (size_t c = 0; c < shape.n_channels; ++c) {
        rest[t][c] -= parts.quantized[h][t][c] + parts.sparse[h][t][c];
      }
    }
    parts.low_rank[h] = SolveLowRank(rest, settings, &random);
  }
  return parts;
}

}  // namespace kvlathe::testing
