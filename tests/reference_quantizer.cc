#include "reference_quantizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "references/reference_trellis.h"

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

// One group that shares a scale; exact cells keep what their codes lose, as Bf16.
void QuantizeGroup(const std::vector<Cell>& cells, const std::vector<bool>& exact, int bits) {
  double min = INFINITY, max = -INFINITY;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (exact[i]) continue;
    min = std::min(min, *cells[i]);
    max = std::max(max, *cells[i]);
  }
  const int top = (1 << bits) - 1;
  const double scale = max > min ? AsF16((max - min) / top) : 1;
  const double low = max >= min ? AsF16(min) : 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    const double code = std::clamp(std::nearbyint((*cells[i] - low) / scale), 0.0, double(top));
    const double value = low + code * scale;
    *cells[i] = exact[i] ? value + AsBf16(*cells[i] - value) : value;
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

// llama.cpp's blocks of 32: 8 bits around 0, or 4 bits whose code 0 is the element farthest out.
void QuantizeByGgml(int bits, const std::vector<Cell>& row) {
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    const size_t end = std::min(begin + 32, row.size());
    double farthest = 0;
    for (size_t i = begin; i < end; ++i) {
      if (std::abs(*row[i]) > std::abs(farthest)) farthest = *row[i];
    }
    const double d = AsF16(bits == 8 ? std::abs(farthest) / 127 : farthest / -8);
    for (size_t i = begin; i < end && d != 0; ++i) {
      const double code = bits == 8 ? std::nearbyint(*row[i] / d)
                                    : std::clamp(std::floor(*row[i] / d + 8.5), 0.0, 15.0) - 8;
      *row[i] = code * d;
    }
  }
}

// Codes of a table under a power of two per group: that of the largest element less that of the
// largest number; the nearest number, and of two equally near ones that of the even code.
void QuantizeByTable(const std::vector<double>& table, int group, const std::vector<Cell>& row) {
  const auto exponent = [](double x) { return std::floor(std::log2(x)); };
  double largest_number = 0;
  for (const double number : table) largest_number = std::max(largest_number, std::abs(number));
  for (size_t begin = 0; begin < row.size(); begin += group) {
    const size_t end = std::min(begin + group, row.size());
    double largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(*row[i]));
    if (largest == 0) continue;
    const double scale = std::exp2(exponent(largest) - exponent(largest_number));
    for (size_t i = begin; i < end; ++i) {
      size_t best = 0;
      const auto distance = [&](size_t code) { return std::abs(*row[i] / scale - table[code]); };
      for (size_t code = 1; code < table.size(); ++code) {
        const bool wins_tie = distance(code) == distance(best) && code % 2 == 0 && best % 2 == 1;
        if (distance(code) < distance(best) || wins_tie) best = code;
      }
      *row[i] = table[best] * scale;
    }
  }
}

// Clamps a row to the magnitude at place floor(share n) of its n magnitudes in ascending order.
void ClipRow(double share, const std::vector<Cell>& row) {
  std::vector<double> magnitudes;
  for (const Cell cell : row) magnitudes.push_back(std::abs(*cell));
  std::sort(magnitudes.begin(), magnitudes.end());
  const auto place = static_cast<size_t>(share * static_cast<double>(row.size()));
  const double most = magnitudes[std::min(place, row.size() - 1)];
  for (const Cell cell : row) *cell = std::clamp(*cell, -most, most);
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
    if (q.name == "q8_0" || q.name == "q4_0") {
      QuantizeByGgml(q.bits, Row(keys, t));
      continue;
    }
    if (q.name == "table") {
      QuantizeByTable(q.table, q.group, Row(keys, t));
      continue;
    }
    if (q.name == "sphere") {
      const std::vector<double> whole = keys[t];
      const bool has_signs = q.sphere.keys_have_signs;
      CodeBySphere(q.sphere.keys, q.sphere.corrects_norms && !has_signs, &keys[t]);
      if (has_signs) AddSignsOfResidual(whole, &keys[t]);
      continue;
    }
    std::vector<bool> exact_row;
    for (size_t r = 0; r < rank; ++r) exact_row.push_back(exact[r][t - run.begin]);
    ClipRow(q.key_clip, Row(keys, t));
    QuantizeLine(Row(keys, t), exact_row, q.group, q.bits);
  }
}

double Deviation(const std::vector<double>& x) {
  const double n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0;
  for (const double v : x) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / (n - 1));
}

// Lines of cells of one length, divided by the exponentials of two lists: of lines and of places.
double DividedCell(const std::vector<std::vector<Cell>>& lines, size_t i, size_t j,
                   const std::vector<double>& of_lines, const std::vector<double>& of_places) {
  return *lines[i][j] / std::exp(of_lines[i]) / std::exp(of_places[j]);
}

// The deviations of lines or of places, divided as above.
std::vector<double> DividedDeviations(const std::vector<std::vector<Cell>>& lines, bool of_places,
                                      const std::vector<double>& log_lines,
                                      const std::vector<double>& log_places) {
  std::vector<double> deviations;
  const size_t n = of_places ? log_places.size() : log_lines.size();
  const size_t n_across = of_places ? log_lines.size() : log_places.size();
  for (size_t a = 0; a < n; ++a) {
    std::vector<double> x;
    for (size_t b = 0; b < n_across; ++b) {
      x.push_back(DividedCell(lines, of_places ? b : a, of_places ? a : b, log_lines, log_places));
    }
    deviations.push_back(Deviation(x));
  }
  return deviations;
}

// KVarN's tile: places and lines are divided in turn until their deviations are alike, and then
// every line gets even steps. Lines are channels of K or tokens of V.
void QuantizeBalanced(const std::vector<std::vector<Cell>>& lines, int bits) {
  std::vector<double> log_lines(lines.size()), log_places(lines[0].size());
  std::vector<double> best = log_places;
  const auto deviations = [&](bool of_places) {
    return DividedDeviations(lines, of_places, log_lines, log_places);
  };
  const auto imbalance = [&] {
    double sum = 0;
    for (const bool of_places : {true, false}) {
      const std::vector<double> all = deviations(of_places);
      sum += *std::max_element(all.begin(), all.end()) /
             std::max(*std::min_element(all.begin(), all.end()), 1e-8);
    }
    return sum;
  };
  const auto divide = [](const std::vector<double>& by, std::vector<double>* logs) {
    for (size_t i = 0; i < by.size(); ++i) {
      (*logs)[i] += std::log(std::clamp(by[i], 1e-3, 1e3));
      (*logs)[i] = std::clamp((*logs)[i], -0.3, 10.0);
    }
  };
  double least = imbalance();
  for (int round = 0; round < 16; ++round) {
    divide(deviations(true), &log_places);
    divide(deviations(false), &log_lines);
    const double now = imbalance();
    if (now <= least) least = now, best = log_places;
  }
  for (double& x : best) x = AsF16(std::exp(x));
  for (const std::vector<Cell>& line : lines) {
    for (size_t j = 0; j < line.size(); ++j) *line[j] /= best[j];
    QuantizeGroup(line, std::vector<bool>(line.size(), false), bits);
    for (size_t j = 0; j < line.size(); ++j) *line[j] *= best[j];
  }
}

// Both sides of a head, tile by tile.
void SealBalanced(const ReferenceQuantizer& q, const RunOfRows& run, Matrix& keys, Matrix& values) {
  for (size_t begin = run.begin; begin < run.end; begin += q.group) {
    const size_t end = std::min(run.end, begin + q.group);
    std::vector<std::vector<Cell>> channels(keys[begin].size()), tokens;
    for (size_t t = begin; t < end; ++t) {
      for (size_t r = 0; r < channels.size(); ++r) channels[r].push_back(&keys[t][r]);
      tokens.push_back(Row(values, t));
    }
    QuantizeBalanced(channels, q.bits);
    QuantizeBalanced(tokens, q.bits_of_v);
  }
}

// The values of a position over all heads.
std::vector<Cell> TokenOf(std::vector<Matrix>& values, size_t position) {
  std::vector<Cell> all;
  for (Matrix& head : values) {
    for (const Cell cell : Row(head, position)) all.push_back(cell);
  }
  return all;
}

void SealValues(const ReferenceQuantizer& q, size_t position, std::vector<Matrix>& values) {
  const std::vector<Cell> all = TokenOf(values, position);
  const std::vector<bool> exact = Outliers(all, q.sparse_share);
  if (q.name == "kcvt") return QuantizeLine(all, exact, 0, q.bits);
  size_t begin = 0;
  for (Matrix& head : values) {
    const std::vector<Cell> row = Row(head, position);
    const std::vector<bool> exact_row(exact.begin() + begin, exact.begin() + begin + row.size());
    begin += row.size();
    if (q.name == "int8") {
      QuantizeSymmetric(row);
    } else if (q.name == "q8_0" || q.name == "q4_0") {
      QuantizeByGgml(q.bits, row);
    } else if (q.name == "table") {
      QuantizeByTable(q.table, q.group, row);
    } else if (q.name == "sphere") {
      CodeBySphere(q.sphere.values, q.sphere.corrects_norms, &head[position]);
    } else {
      ClipRow(q.value_clip, row);
      QuantizeLine(row, exact_row, q.group, q.bits);
    }
  }
}

double Nearest(const ReferenceCodebooks& books, double quotient) {
  size_t best = 0;
  for (size_t i = 1; i < books.nearest.size(); ++i) {
    if (std::abs(quotient - books.nearest[i]) < std::abs(quotient - books.nearest[best])) best = i;
  }
  return books.decoded[best];
}

// Keys of a head by the ranges of the layer's codebooks; those farthest out stay.
void EncodeKeys(const ReferenceQuantizer& q, int layer_idx, size_t head, const RunOfRows& run,
                Matrix& keys) {
  const ReferenceCodebooks& books = q.codebooks[layer_idx];
  const size_t rank = keys[run.begin].size();
  std::vector<std::pair<double, Cell>> farthest;
  const auto quotient = [&](size_t r, double x) {
    return (x - books.offsets[head][r]) / books.ranges[head][r];
  };
  for (size_t t = run.begin; t < run.end; ++t) {
    if (q.keys_before_rope) {
      keys[t] = RotateRowBack(q.rope, q.rotary_dim, keys[t], static_cast<int>(t));
    }
    for (size_t r = 0; r < rank; ++r) {
      farthest.emplace_back(std::abs(quotient(r, keys[t][r])), &keys[t][r]);
    }
  }
  std::sort(farthest.rbegin(), farthest.rend());
  farthest.resize(static_cast<size_t>(static_cast<double>(farthest.size()) * q.sparse_share));
  for (size_t t = run.begin; t < run.end; ++t) {
    for (size_t r = 0; r < rank; ++r) {
      double& x = keys[t][r];
      const bool stays =
          std::any_of(farthest.begin(), farthest.end(), [&](auto& f) { return f.second == &x; });
      const double value =
          Nearest(books, quotient(r, x)) * books.ranges[head][r] + books.offsets[head][r];
      x = stays ? value + AsBf16(x - value) : value;
    }
    if (q.keys_before_rope) {
      keys[t] = RotateRow(q.rope, q.rotary_dim, keys[t], static_cast<int>(t));
    }
  }
}

// The codes that lathe documents for rows of unit deviation, the positive half by bits, and for
// those that are divided by a scale of their token.
const std::vector<double> kUnits[] = {
    {},
    {0.765625},
    {0.45703125, 1.625},
    {0.2578125, 0.8125, 1.5078125, 2.671875},
    {0.138671875, 0.421875, 0.72265625, 1.0625, 1.453125, 1.9609375, 2.6875, 4.03125},
    {0.072265625, 0.216796875, 0.365234375, 0.515625, 0.671875, 0.83984375, 1.015625, 1.2109375,
     1.421875, 1.6640625, 1.9453125, 2.28125, 2.703125, 3.28125, 4.15625, 5.84375}};
const std::vector<double> kTokenUnits[] = {
    {},
    {0.78515625},
    {0.455078125, 1.546875},
    {0.25, 0.77734375, 1.3984375, 2.3125},
    {0.134765625, 0.40625, 0.6875, 0.9921875, 1.3359375, 1.734375, 2.265625, 3.09375},
    {0.072265625, 0.21875, 0.365234375, 0.51171875, 0.6640625, 0.81640625, 0.98046875, 1.1484375,
     1.328125, 1.5234375, 1.7421875, 1.984375, 2.28125, 2.640625, 3.125, 3.9375}};

double NearestUnit(const std::vector<double>* positive, int bits, double x) {
  if (bits == 8) return std::clamp(std::nearbyint(x * 16), -128.0, 127.0) / 16;
  double nearest = INFINITY;
  for (const double c : positive[bits]) {
    for (const double signed_c : {c, -c}) {
      if (std::abs(x - signed_c) < std::abs(x - nearest)) nearest = signed_c;
    }
  }
  return nearest;
}

double ScaleOfByte(int byte) { return std::ldexp(1 + byte % 16 / 16.0, byte / 16 - 11); }

// The scale that a byte stands for nearest to a deviation.
int NearestScale(double deviation) {
  int nearest = 0;
  for (int byte = 1; byte < 256; ++byte) {
    const double distance = std::abs(ScaleOfByte(byte) - deviation);
    if (distance < std::abs(ScaleOfByte(nearest) - deviation)) nearest = byte;
  }
  return nearest;
}

// The scale under which codes of a row, each for itself, lose least of those within 8 steps of the
// root of the mean square, where a channel's error counts by what codes of as many bits lose of a
// unit deviation.
double BestScale(const std::vector<int>& bits, const std::vector<double>& row) {
  double square = 0, least = INFINITY, best = 1;
  for (size_t r = 0; r < bits.size(); ++r) {
    square += row[r] * row[r] / static_cast<double>(bits.size());
  }
  const int middle = NearestScale(std::sqrt(square));
  for (int byte = std::max(0, middle - 8); byte <= std::min(255, middle + 8); ++byte) {
    const double scale = ScaleOfByte(byte);
    double loss = 0;
    for (size_t r = 0; r < bits.size(); ++r) {
      const double value = scale * NearestUnit(kTokenUnits, bits[r], row[r] / scale);
      loss += std::pow(row[r] - value, 2) / UnitLoss(bits[r], true);
    }
    if (loss < least) least = loss, best = scale;
  }
  return best;
}

// 64 rows from `begin` on, of K or of V.
void EncodeTokenUnits(const std::vector<int>& bits, bool is_key, size_t begin, Matrix& rows) {
  std::vector<double> scales;
  for (size_t t = begin; t < begin + 64; ++t) {
    std::fill(rows[t].begin() + static_cast<int64_t>(bits.size()), rows[t].end(), 0);  // lost
    scales.push_back(BestScale(bits, rows[t]));
  }
  const int n = static_cast<int>(bits.size());
  for (int first = 0, end = 0; first < n; first = end) {
    while (end < n && bits[end] == bits[first]) ++end;
    if (HasPaths(bits[first])) {
      EncodePaths({is_key, bits[first], first, end - first}, begin, scales, &rows);
      continue;
    }
    for (size_t t = begin; t < begin + 64; ++t) {
      for (int r = first; r < end; ++r) {
        const double scale = scales[t - begin];
        const double sought = NearestUnit(kTokenUnits, bits[r], rows[t][r] / scale);
        rows[t][r] = scale * ReadInPlaceOf(bits[r], sought, true);
      }
    }
  }
}

void EncodeUnits(const std::vector<int>& bits, bool is_key, bool has_token_scales,
                 const RunOfRows& run, Matrix& rows) {
  for (size_t t = run.begin; t < run.end; ++t) {
    // What is 0 in steps of 1/16 is as near to either sign.
    const double sign = (t - run.begin) % 2 == 0 ? 1e-9 : -1e-9;
    for (double& x : rows[t]) x = x == 0 ? sign : x;
    for (size_t r = 0; r < rows[t].size() && !has_token_scales; ++r) {
      const bool is_lost = r >= bits.size();
      if (is_lost) {
        rows[t][r] = 0;
      } else {
        rows[t][r] = ReadInPlaceOf(bits[r], NearestUnit(kUnits, bits[r], rows[t][r]), false);
      }
    }
  }
  for (size_t t = run.begin; t < run.end && has_token_scales; t += 64) {
    EncodeTokenUnits(bits, is_key, t, rows);
  }
}

// K and V of a head of [n_layers * n_kv_heads].
void EncodeHeadUnits(const ReferenceQuantizer& q, size_t head_idx, const RunOfRows& run,
                     Matrix& keys, Matrix& values) {
  EncodeUnits(q.key_bits[head_idx], /*is_key=*/true, q.has_token_scales, run, keys);
  EncodeUnits(q.value_bits[head_idx], /*is_key=*/false, q.has_token_scales, run, values);
}

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

// A token of values over all heads; what lies at or beyond its quantiles stays.
void EncodeValues(const ReferenceQuantizer& q, int layer_idx, const std::vector<Cell>& token) {
  std::vector<double> values;
  for (const Cell cell : token) values.push_back(*cell);
  const bool has_exact = q.sparse_share > 0;
  const double low_end = Quantile(values, q.sparse_share / 2);
  const double high_end = Quantile(values, 1 - q.sparse_share / 2);
  double min = INFINITY, max = -INFINITY;
  for (const double x : values) {
    if (has_exact && (x <= low_end || x >= high_end)) continue;
    min = std::min(min, x);
    max = std::max(max, x);
  }
  const double range = AsF16((max - min) / 2), offset = AsF16((max + min) / 2);
  for (const Cell cell : token) {
    const bool stays = has_exact && (*cell <= low_end || *cell >= high_end);
    const double value = Nearest(q.codebooks[layer_idx], (*cell - offset) / range) * range + offset;
    *cell = stays ? value + AsBf16(*cell - value) : value;
  }
}

// The entries that are sealed together when there are n of them besides the newest, if a run ends
// there.
std::pair<int, int> RunEndingWith(const ReferenceQuantizer& q, int n) {
  const int n_prompt = std::max(0, q.n_prompt - q.n_sink - q.newest);
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

// Rows of a head in classes: the quarter of the blocks of the run with the most votes, the quarter
// with the least and what is between them, each sealed as if it were all, in the order of rows.
void SealByClass(const ReferenceQuantizer& q, size_t head, const std::vector<double>& votes,
                 const RunOfRows& run, Matrix* keys, Matrix* values) {
  std::vector<size_t> by_votes(run.end - run.begin);
  std::iota(by_votes.begin(), by_votes.end(), run.begin);
  std::sort(by_votes.begin(), by_votes.end(),
            [&](size_t a, size_t b) { return votes[a] != votes[b] ? votes[a] > votes[b] : a > b; });
  const size_t n_blocks = by_votes.size() / 64, quarter = 64 * ((n_blocks + 2) / 4);
  const size_t ends[] = {0, quarter, by_votes.size() - quarter, by_votes.size()};
  for (int c = 0; c < 3; ++c) {
    std::vector<size_t> places(by_votes.begin() + ends[c], by_votes.begin() + ends[c + 1]);
    std::sort(places.begin(), places.end());
    Matrix k, v;
    for (const size_t t : places) k.push_back((*keys)[t]), v.push_back((*values)[t]);
    const RunOfRows all{0, places.size()};
    const ReferenceQuantizer::Class* outer = c == 1 ? nullptr : &q.outer_classes[c / 2];
    ReferenceQuantizer of_class = q;
    if (outer != nullptr)
      of_class.key_bits = outer->key_bits, of_class.value_bits = outer->value_bits;
    EncodeHeadUnits(of_class, head, all, k, v);
    for (size_t i = 0; i < places.size(); ++i) {
      (*keys)[places[i]] = k[i], (*values)[places[i]] = v[i];
    }
  }
}

}  // namespace

void ReferenceVotes::Add(const ReferenceRows& rows, int n_tokens) {
  if (n_tokens > n_prompt || n_tokens <= n_prompt - n_voting) return;
  const size_t n_heads = rows.keys.size(), group = rows.scores.size() / n_heads;
  of_rows.resize(std::max<size_t>(of_rows.size(), rows.layer_idx + 1));
  of_rows[rows.layer_idx].resize(n_heads);
  for (size_t h = 0; h < rows.scores.size(); ++h) {
    const std::vector<double>& scores = rows.scores[h];
    std::vector<double>& votes = of_rows[rows.layer_idx][h / group];
    votes.resize(scores.size());
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double s : scores) sum += std::exp(s - max);
    for (size_t t = 0; t < scores.size(); ++t) votes[t] += std::exp(scores[t] - max) / sum;
  }
}

void SealLiterally(const ReferenceQuantizer& q, int layer_idx, ReferenceRows* rows,
                   const ReferenceVotes* votes) {
  const int n = static_cast<int>(rows->keys[0].size()) - q.n_sink - q.newest;
  const auto [begin, end] = RunEndingWith(q, n);
  if (begin >= end) return;
  const int n_prompt = q.n_prompt_tokens - q.n_sink;
  if (q.whole_share >= 0 && end <= n_prompt) {
    int n_recent = 0;
    for (int t = begin; t < end; ++t) n_recent += t >= n_prompt * (1 - q.whole_share);
    if (2 * n_recent > end - begin) return;
  }
  const RunOfRows run{static_cast<size_t>(begin + q.n_sink), static_cast<size_t>(end + q.n_sink)};
  if (q.name == "kvquant") {
    for (size_t g = 0; g < rows->keys.size(); ++g) {
      EncodeKeys(q, layer_idx, g, run, rows->keys[g]);
    }
    for (size_t t = run.begin; t < run.end; ++t) {
      EncodeValues(q, layer_idx, TokenOf(rows->values, t));
    }
    return;
  }
  if (q.name == "split") {
    const size_t n_heads = rows->keys.size();
    for (size_t g = 0; g < n_heads; ++g) {
      const size_t head = layer_idx * n_heads + g;
      if (!q.outer_classes.empty() && static_cast<int>(rows->keys[0].size()) == q.n_prompt) {
        SealByClass(q, head, votes->of_rows[layer_idx][g], run, &rows->keys[g], &rows->values[g]);
        continue;
      }
      EncodeHeadUnits(q, head, run, rows->keys[g], rows->values[g]);
    }
    return;
  }
  if (q.name == "kvarn") {
    for (size_t g = 0; g < rows->keys.size(); ++g) {
      SealBalanced(q, run, rows->keys[g], rows->values[g]);
    }
    return;
  }
  for (Matrix& keys : rows->keys) SealKeys(q, run, keys);
  for (size_t t = run.begin; t < run.end; ++t) SealValues(q, t, rows->values);
}

void SealHeadLiterally(const ReferenceQuantizer& q, size_t head_idx, int begin, int end,
                       Matrix* keys, Matrix* values) {
  const RunOfRows run{static_cast<size_t>(begin + q.n_sink), static_cast<size_t>(end + q.n_sink)};
  if (q.name == "split") return EncodeHeadUnits(q, head_idx, run, *keys, *values);
  if (q.name == "kvarn") return SealBalanced(q, run, *keys, *values);
  if (run.begin < run.end) SealKeys(q, run, *keys);
  std::vector<Matrix> layer = {std::move(*values)};
  for (size_t t = run.begin; t < run.end; ++t) SealValues(q, t, layer);
  *values = std::move(layer[0]);
}

}  // namespace kvlathe::testing
