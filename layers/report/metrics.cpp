#include <sluice/layers/report/metrics.h>

#include <algorithm>
#include <cmath>
#include <limits>

extern "C" void dgesvd_(const char* jobu, const char* jobvt, const int* m, const int* n, double* a, const int* lda,
                        double* s, double* u, const int* ldu, double* vt, const int* ldvt, double* work,
                        const int* lwork, int* info);

namespace sluice {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void check_map(const char* op, const Tensor& map) {
  if (map.rank() < 2) fail(op, ": got map=", map, "; need [..., m, n]");
}

}  // namespace

double first_token_share(const Tensor& map, bool include_row_0) {
  check_map("first_token_share", map);
  const int64_t m = map.dim(-2), n = map.dim(-1);
  const int64_t first = include_row_0 || m < n ? 0 : 1;
  if (n == 0 || m <= first || map.numel() == 0)
    fail("first_token_share: map=", map, " has no rows", first ? " but row 0" : "");
  const std::vector<double> p = map.to_vector<double>();
  double total = 0;
  for (std::size_t row = 0; row * static_cast<std::size_t>(n) < p.size(); ++row)
    if (static_cast<int64_t>(row) % m >= first) total += p[row * static_cast<std::size_t>(n)];
  return total / static_cast<double>(map.numel() / (m * n) * (m - first));
}

double first_token_share(const std::vector<Tensor>& maps, bool include_row_0) {
  if (maps.empty()) fail<ValueError>("first_token_share: needs the map of at least one layer");
  double total = 0;
  for (const Tensor& map : maps) total += first_token_share(map, include_row_0);
  return total / static_cast<double>(maps.size());
}

double max_activation(const std::vector<Tensor>& hidden) {
  if (hidden.empty()) fail<ValueError>("max_activation: needs the hidden state of at least one layer");
  double total = 0;
  for (const Tensor& h : hidden) {
    double largest = 0;
    for (double v : h.to_vector<double>())
      if (std::isnan(v) || std::abs(v) > largest) largest = std::abs(v);  // a NaN stays: no value compares greater
    total += largest;
  }
  return total / static_cast<double>(hidden.size());
}

GateStatistics gate_statistics(const std::vector<Tensor>& scores) {
  GateStatistics g;
  g.min = std::numeric_limits<double>::infinity(), g.max = -g.min;
  for (const Tensor& layer : scores)
    for (double s : layer.to_vector<double>()) {
      ++g.count;
      g.mean += s;
      if (std::isnan(s) || s < g.min) g.min = s;  // a NaN stays, as in max_activation()
      if (std::isnan(s) || s > g.max) g.max = s;
      const double size = std::abs(s);
      g.below_half += size < 0.5, g.below_1e2 += size < 1e-2, g.below_1e3 += size < 1e-3;
    }
  if (g.count == 0) g.min = g.max = kNaN;
  const auto n = static_cast<double>(g.count);  // 0/0 is NaN
  g.mean /= n, g.below_half /= n, g.below_1e2 /= n, g.below_1e3 /= n;
  return g;
}

double attention_entropy(const Tensor& map) {
  check_map("attention_entropy", map);
  const auto n = static_cast<std::size_t>(map.dim(-1));
  const std::vector<double> p = map.to_vector<double>();
  double total = 0;
  int64_t rows = 0;
  for (std::size_t at = 0; n > 0 && at < p.size(); at += n) {
    double entropy = 0;
    bool sees = false;
    for (std::size_t j = at; j < at + n; ++j) {
      if (p[j] == 0) continue;  // p ln p tends to 0
      entropy -= p[j] * std::log(p[j]);
      sees = true;
    }
    if (sees) total += entropy, ++rows;
  }
  return rows ? total / static_cast<double>(rows) : kNaN;
}

std::vector<double> singular_values(const Tensor& matrix) {
  if (matrix.rank() != 2) fail("singular_values: got ", matrix, "; need a matrix [m, n]");
  std::vector<double> a = matrix.to_vector<double>();  // row-major: LAPACK reads the transpose, with the same values
  for (double v : a)
    if (!std::isfinite(v)) fail<ValueError>("singular_values: matrix=", matrix, " holds NaN or infinity");
  const int rows = static_cast<int>(matrix.dim(1)), cols = static_cast<int>(matrix.dim(0));
  std::vector<double> s(static_cast<std::size_t>(std::min(rows, cols)));
  if (s.empty()) return s;
  const int one = 1;
  int size = -1, info = 0;
  double wanted = 0;
  dgesvd_("N", "N", &rows, &cols, a.data(), &rows, s.data(), nullptr, &one, nullptr, &one, &wanted, &size, &info);
  size = static_cast<int>(wanted);
  std::vector<double> work(static_cast<std::size_t>(size));
  dgesvd_("N", "N", &rows, &cols, a.data(), &rows, s.data(), nullptr, &one, nullptr, &one, work.data(), &size, &info);
  if (info != 0) fail<ValueError>("singular_values: no convergence for matrix=", matrix, " (info ", info, ")");
  return s;
}

double effective_rank(const Tensor& matrix) {
  const std::vector<double> s = singular_values(matrix);
  if (s.empty() || s[0] == 0) return 0;
  double total = 0, entropy = 0;  // of shares of s[0]: the sum of the values may overflow
  for (double v : s) total += v / s[0];
  for (double v : s)
    if (const double share = v / s[0] / total; share > 0) entropy -= share * std::log(share);
  return std::exp(entropy);
}

int64_t matrix_rank(const Tensor& matrix, double tolerance) {
  if (std::isnan(tolerance)) fail<ValueError>("matrix_rank: needs a tolerance that is a number — got nan");
  const std::vector<double> s = singular_values(matrix);
  if (s.empty()) return 0;
  const double epsilon = matrix.dtype() == f64 ? std::numeric_limits<double>::epsilon()
                                               : static_cast<double>(std::numeric_limits<float>::epsilon());
  if (tolerance < 0) tolerance = epsilon * static_cast<double>(std::max(matrix.dim(0), matrix.dim(1)));
  return std::count_if(s.begin(), s.end(), [&](double v) { return v > tolerance * s[0]; });
}

}  // namespace sluice
