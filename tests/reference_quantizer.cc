#include "reference_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace kvlathe::testing {
namespace {

// Rounds to `mantissa` bits behind the leading one; below 2^min_exponent steps stay equal.
double RoundTo(double x, int mantissa, int min_exponent) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double step = std::ldexp(1.0, exponent - mantissa);
  return std::nearbyint(x / step) * step;
}
double AsF16(double x) { return std::clamp(RoundTo(x, 10, -14), -65504.0, 65504.0); }
double AsBf16(double x) { return RoundTo(x, 7, -126); }

using Cell = double*;

// One group that shares a scale; exact cells stay as they are.
void QuantizeGroup(const std::vector<Cell>& cells, const std::vector<bool>& exact, int bits) {
  double min = INFINITY, max = -INFINITY;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (exact[i]) continue;
    min = std::min(min, *cells[i]);
    max = std::max(max, *cells[i]);
  }
  const int top = (1 << bits) - 1;
  const double scale = max > min ? AsF16((max - min) / top) : 1;
  const double low = AsF16(min);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (exact[i]) {
      *cells[i] = AsBf16(*cells[i]);
      continue;
    }
    const double code = std::clamp(std::nearbyint((*cells[i] - low) / scale), 0.0, double(top));
    *cells[i] = low + code * scale;
  }
}

void QuantizeSymmetric(const std::vector<Cell>& cells) {
  double most = 0;
  for (const Cell cell : cells) most = std::max(most, std::abs(*cell));
  const double scale = most > 0 ? AsF16(most / 127) : 1;
  for (const Cell cell : cells) {
    *cell = std::clamp(std::nearbyint(*cell / scale), -127.0, 127.0) * scale;
  }
}

// The largest and smallest floor(n share / 2) cells of a line.
std::vector<bool> Outliers(const std::vector<Cell>& line, double share) {
  const int n_each = static_cast<int>(static_cast<double>(line.size()) * share / 2);
  std::vector<bool> exact(line.size(), false);
  for (const bool largest : {true, false}) {
    for (int taken = 0; taken < n_each; ++taken) {
      int best = -1;
      for (size_t i = 0; i < line.size(); ++i) {
        if (exact[i]) continue;
        const bool better = best < 0 || (largest ? *line[i] > *line[best] : *line[i] < *line[best]);
        if (better) best = static_cast<int>(i);
      }
      exact[best] = true;
    }
  }
  return exact;
}

// Quantises a line in groups of n cells; 0: all.
void QuantizeLine(const std::vector<Cell>& line, const std::vector<bool>& exact, int n, int bits) {
  const size_t step = n == 0 ? line.size() : static_cast<size_t>(n);
  for (size_t begin = 0; begin < line.size(); begin += step) {
    const size_t end = std::min(line.size(), begin + step);
    QuantizeGroup({line.begin() + begin, line.begin() + end},
                  {exact.begin() + begin, exact.begin() + end}, bits);
  }
}

struct RunOfRows {
  size_t begin, end;  // positions
};

std::vector<Cell> Row(Matrix& rows, size_t position) {
  std::vector<Cell> cells;
  for (double& x : rows[position]) cells.push_back(&x);
  return cells;
}

void SealKeys(const ReferenceQuantizer& q, const RunOfRows& run, Matrix& keys) {
  const size_t rank = keys[run.begin].size();
  std::vector<std::vector<bool>> exact;  // [channel][position in the run]
  std::vector<std::vector<Cell>> columns(rank);
  for (size_t r = 0; r < rank; ++r) {
    for (size_t t = run.begin; t < run.end; ++t) columns[r].push_back(&keys[t][r]);
    exact.push_back(Outliers(columns[r], q.sparse_share));
  }
  if (q.name == "kivi" || q.name == "kcvt") {
    for (size_t r = 0; r < rank; ++r) {
      QuantizeLine(columns[r], exact[r], q.name == "kivi" ? q.group : 0, q.bits);
    }
    return;
  }
  for (size_t t = run.begin; t < run.end; ++t) {
    if (q.name == "int8") {
      QuantizeSymmetric(Row(keys, t));
      continue;
    }
    std::vector<bool> exact_row;
    for (size_t r = 0; r < rank; ++r) exact_row.push_back(exact[r][t - run.begin]);
    QuantizeLine(Row(keys, t), exact_row, q.group, q.bits);
  }
}

void SealValues(const ReferenceQuantizer& q, size_t position, std::vector<Matrix>& values) {
  std::vector<Cell> all;
  for (Matrix& head : values) {
    for (const Cell cell : Row(head, position)) all.push_back(cell);
  }
  const std::vector<bool> exact = Outliers(all, q.sparse_share);
  if (q.name == "kcvt") return QuantizeLine(all, exact, 0, q.bits);
  size_t begin = 0;
  for (Matrix& head : values) {
    const std::vector<Cell> row = Row(head, position);
    const std::vector<bool> exact_row(exact.begin() + begin, exact.begin() + begin + row.size());
    begin += row.size();
    if (q.name == "int8") {
      QuantizeSymmetric(row);
    } else {
      QuantizeLine(row, exact_row, q.group, q.bits);
    }
  }
}

// The entries that are sealed together when there are n of them, if a run ends there.
std::pair<int, int> RunEndingWith(const ReferenceQuantizer& q, int n) {
  const int n_prompt = std::max(0, q.n_prompt - q.n_sink);
  const int prompt_end = n_prompt / 64 * 64;  // full blocks
  if (n < n_prompt) {
    if (q.run > 0 && n % q.run == 0 && n > 0) return {n - q.run, n};
  } else if (n == n_prompt) {
    const int before = q.run == 0 ? 0 : n_prompt / q.run * q.run;
    if (before == n && q.run > 0 && n > 0) return {n - q.run, n};
    return {before, prompt_end};
  } else if ((n - prompt_end) % q.buffer == 0) {
    return {n - q.buffer, n};
  }
  return {0, 0};
}

}  // namespace

void SealLiterally(const ReferenceQuantizer& q, ReferenceRows* rows) {
  const int n = static_cast<int>(rows->keys[0].size()) - q.n_sink;
  const auto [begin, end] = RunEndingWith(q, n);
  if (begin >= end) return;
  const RunOfRows run{static_cast<size_t>(begin + q.n_sink), static_cast<size_t>(end + q.n_sink)};
  for (Matrix& keys : rows->keys) SealKeys(q, run, keys);
  for (size_t t = run.begin; t < run.end; ++t) SealValues(q, t, rows->values);
}

}  // namespace kvlathe::testing
