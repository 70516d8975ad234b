#include <sluice/core/text/print.h>

#include <sluice/core/node.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/number/number.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>

namespace sluice {

namespace {

std::string header(const Tensor& x) {
  if (!x.defined()) return "Tensor(undefined)";
  std::string s = str("Tensor", x.shape(), " ", x.dtype(), " ", x.device());
  if (x.requires_grad()) {
    const Node& node = *x.impl().history;
    s += node.is_leaf() ? std::string(" requires_grad") : str(" grad_fn=", node.name());
  }
  return s;
}

/// The number format of one tensor, chosen from the values that are shown.
struct FloatFormat {
  bool scientific = false;
  int decimals = 1;

  FloatFormat(const std::vector<double>& values, int precision) {
    double smallest = std::numeric_limits<double>::infinity(), largest = 0;
    for (double v : values) {
      if (!std::isfinite(v) || v == 0) continue;
      smallest = std::min(smallest, std::abs(v));
      largest = std::max(largest, std::abs(v));
    }
    // Fixed point would lose small values or need very wide columns for large ones.
    scientific = largest > 0 && (largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e5);
    decimals = scientific ? precision : std::min(precision, 1);
    if (scientific) return;
    for (double v : values) {  // as many decimals as the longest value needs
      if (!std::isfinite(v)) continue;
      std::string s = detail::format("%.*f", precision, v);
      if (std::size_t point = s.find('.'); point != std::string::npos)
        decimals = std::max(decimals, static_cast<int>(s.find_last_not_of('0') - point));
    }
  }
  std::string operator()(double v) const {
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    return detail::format(scientific ? "%.*e" : "%.*f", decimals, v);
  }
};

class Printer {
 public:
  Printer(Tensor x, const PrintOptions& o) : x_(std::move(x)), options_(o), summarise_(x_.numel() > o.threshold) {
    options_.precision = std::clamp(o.precision, 0, 17);
    options_.edge_items = std::max<int64_t>(o.edge_items, 1);
  }

  std::string print() {
    dispatch_all(x_.dtype(), [&]<class T>() { collect<T>(); });
    for (const std::string& c : cells_) width_ = std::max(width_, c.size());
    std::string out;
    append_dim(0, out);
    return out;
  }

 private:
  /// Calls f(index) for the positions of a dim that are shown, and gap() where some are left out.
  template <class F, class Gap> void for_shown(int dim, F f, Gap gap) const {
    const int64_t n = x_.shape()[dim], edge = options_.edge_items;
    for (int64_t i = 0; i < n; ++i) {
      if (summarise_ && n > 2 * edge && i == edge) gap(), i = n - edge;
      f(i);
    }
  }
  template <class F> void for_each_shown(int dim, int64_t offset, F& f) const {
    if (dim == x_.rank()) return f(offset);
    for_shown(
        dim, [&](int64_t i) { for_each_shown(dim + 1, offset + i * x_.strides()[dim], f); }, [] {});
  }

  template <class T> void collect() {
    const T* p = reinterpret_cast<const T*>(x_.raw());
    if constexpr (std::is_integral_v<T>) {
      auto add = [&](int64_t at) { cells_.push_back(str(p[at])); };
      for_each_shown(0, 0, add);
    } else {
      std::vector<double> values;
      auto add = [&](int64_t at) { values.push_back(static_cast<detail::Computed<T>>(p[at])); };
      for_each_shown(0, 0, add);
      const FloatFormat format(values, options_.precision);
      for (double v : values) cells_.push_back(format(v));
    }
  }

  void append_dim(int dim, std::string& out) {
    if (dim == x_.rank()) {
      out += cells_[next_++];
      return;
    }
    const bool row = dim == x_.rank() - 1;
    const std::size_t indent = static_cast<std::size_t>(dim) + 1;
    std::size_t column = indent;
    bool first = true;
    out += '[';
    // Before each item: between rows a line break (more of them between matrices), within a row a
    // break where the next item would cross the margin.
    auto separate = [&](std::size_t size) {
      if (!first) out += ',';
      const bool wrap = row && column + size + 2 > static_cast<std::size_t>(options_.line_width) && column > indent;
      if (!first && (!row || wrap)) {
        out.append(row ? 1 : static_cast<std::size_t>(x_.rank() - 1 - dim), '\n').append(indent, ' ');
        column = indent;
      } else if (!first) {
        out += ' ', ++column;
      }
      column += size + 1;
      first = false;
    };
    for_shown(
        dim,
        [&](int64_t) {
          separate(row ? width_ : 0);
          if (!row) return append_dim(dim + 1, out);
          const std::string& cell = cells_[next_++];
          out.append(width_ - cell.size(), ' ').append(cell);
        },
        [&] { separate(3), out += "..."; });
    out += ']';
  }

  Tensor x_;
  PrintOptions options_;
  bool summarise_;
  std::vector<std::string> cells_;  // the shown values, in row-major order
  std::size_t next_ = 0, width_ = 0;
};

/// Calls f for each value of x, as double.
template <class F> void for_each_value(const Tensor& x, F f) {
  detail::each_value(detail::StridedRange(x.layout()), x.raw(), x.dtype(), 0, x.numel(), f);
}

std::string number(double v) { return detail::format("%g", v); }

}  // namespace

std::string to_string(const Tensor& x, const PrintOptions& options) {
  std::string s = header(x);
  if (!x.defined()) return s;
  if (x.device() == meta) return s + "\n(no values on meta)";
  return s + '\n' + (x.numel() == 0 ? "[]" : Printer(detail::on_cpu("print", x), options).print());
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << str(shape); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << str(device); }

std::string describe(const Tensor& x) {
  std::string s = header(x);
  if (!x.defined()) return s;
  if (x.device() != meta) {
    const Tensor here = detail::on_cpu("describe", x);
    double lo = std::numeric_limits<double>::infinity(), hi = -lo;
    int64_t finite = 0, zeros = 0, nans = 0, infs = 0;
    for_each_value(here, [&](double v) {
      if (std::isnan(v)) ++nans;
      else if (std::isinf(v)) ++infs;
      else ++finite, zeros += v == 0, lo = std::min(lo, v), hi = std::max(hi, v);
    });
    if (finite > 0) {
      // In units of a power of two: sums of values near the largest double would overflow.
      const double most = std::max(std::abs(lo), std::abs(hi)), unit = most > 0 ? std::exp2(std::ilogb(most)) : 1;
      double sum = 0, squares = 0;
      for_each_value(here, [&](double v) { sum += std::isfinite(v) ? v / unit : 0; });
      const double mean = sum / static_cast<double>(finite);
      for_each_value(here, [&](double v) {  // around the mean: no cancellation
        if (std::isfinite(v)) squares += (v / unit - mean) * (v / unit - mean);
      });
      s += str(" min=", number(lo), " max=", number(hi), " mean=", number(mean * unit),
               " std=", number(unit * std::sqrt(squares / static_cast<double>(finite))));
    } else {
      s += " (no finite values)";
    }
    s += str(" zeros=", zeros, " nan=", nans, " inf=", infs);
  }
  s += str(" ", x.numel() * size_of(x.dtype()), " bytes ");
  return s + (x.is_contiguous() ? std::string("contiguous") : str("strides=", x.strides()));
}

std::string detail::escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string detail::aligned(const std::vector<std::vector<std::string>>& lines, std::string_view sides) {
  std::vector<std::size_t> widths(sides.size());
  for (const auto& line : lines)
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::string space(widths[c] - line[c].size(), ' ');
      out += c ? "  " : "";
      if (sides[c] == 'r') out += space + line[c];
      else out += line[c] + (c + 1 < line.size() ? space : "");
    }
    out += '\n';
  }
  return out;
}

}  // namespace sluice
