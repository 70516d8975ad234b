// c[out] = Σ_{labels not in out} Π_i x_i[labels of i]
//
// A pair (a, b) is one matmul. Its labels fall into four groups:
//   batch: in both, still needed      k: in both, summed      n: in a only      m: in b only
//   a → [batch…, N, K]   b → [batch…, K, M]   c = a·b → [batch…, n…, m…]
// Labels that neither the result nor another operand needs are summed out beforehand. Only ops are used, and
// they have gradients of any order.
#include <sluice/ops/matmul/einsum.h>

#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/gemm/operand.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace sluice {

namespace {

/// Labels are letters; dim p of the ellipsis, counted from the right, has the label char(1 + p).
using Labels = std::string;

struct Term {
  Tensor x;
  Labels labels;  // one per dim
};

bool has(const Labels& s, char c) { return s.find(c) != s.npos; }
bool is_ellipsis(char c) { return c <= kMaxRank; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }  // in every locale

class Equation {
 public:
  Equation(std::string_view equation, const std::vector<Tensor>& xs) : text_(equation), xs_(xs) {
    std::string s;
    for (char c : equation)
      if (!std::isspace(static_cast<unsigned char>(c))) s += c;
    const std::size_t arrow = s.find("->");
    const std::string left = s.substr(0, arrow);
    std::vector<std::string> specs{""};
    for (char c : left) c == ',' ? specs.emplace_back() : specs.back() += c;
    if (specs.size() != xs.size()) wrong("the equation has ", specs.size(), " operands");
    size_.fill(-1);
    for (std::size_t i = 0; i < xs.size(); ++i) terms_.push_back(read_operand(i, specs[i]));
    for (Term& t : terms_) tidy(t);
    if (arrow == s.npos) imply_output(left);
    else read_output(s.substr(arrow + 2), left);
    // What takes more than one op that rounds is computed in f32.
    const bool pair = xs.size() == 2;
    if (xs.size() > 2 || (pair && (has_own_label(terms_[0], terms_[1]) || has_own_label(terms_[1], terms_[0]))))
      for (Term& t : terms_) t.x = detail::widened(t.x);
  }

  Tensor run() const {
    Term acc = sum_out(terms_[0], needed_after(0));
    for (std::size_t i = 1; i < terms_.size(); ++i)
      acc = contract(acc, sum_out(terms_[i], acc.labels + needed_after(i)), needed_after(i));
    const Tensor y = to(ordered(acc, output_), xs_[0].dtype());
    return y.ref() == xs_[0].ref() ? clone(y) : y;  // a result is a tensor of its own
  }

 private:
  template <class... Args> [[noreturn]] void wrong(const Args&... what) const {
    fail("einsum: ", what..., " in \"", text_, "\" — got ", xs_.size(), xs_.size() == 1 ? " operand " : " operands ",
         detail::joined(xs_));
  }

  /// The labels of one side; the ellipsis becomes `dims` labels.
  Labels read_labels(const std::string& spec, int dims) const {
    Labels labels;
    for (std::size_t i = 0; i < spec.size(); ++i) {
      if (is_letter(spec[i])) {
        labels += spec[i];
      } else if (spec.compare(i, 3, "...") == 0 && spec.find("...", i + 1) == spec.npos) {
        for (int p = dims - 1; p >= 0; --p) labels += static_cast<char>(1 + p);
        i += 2;
      } else {
        wrong("unexpected '", spec[i], "'");
      }
    }
    return labels;
  }

  Term read_operand(std::size_t i, const std::string& spec) {
    const Tensor& x = xs_[i];
    const bool ellipsis = spec.find("...") != spec.npos;
    const int named = static_cast<int>(spec.size()) - (ellipsis ? 3 : 0), extra = x.rank() - named;
    const Labels labels = read_labels(spec, ellipsis ? std::max(0, extra) : 0);
    if (ellipsis ? extra < 0 : extra != 0) wrong("operand ", i, " is written \"", spec, "\" and has rank ", x.rank());
    if (ellipsis) ellipsis_dims_ = std::max(ellipsis_dims_, extra);
    detail::check_floats("einsum", {{"the first", xs_[0]}, {"another", x}});
    for (int d = 0; d < x.rank(); ++d) {
      const char c = labels[static_cast<std::size_t>(d)];
      int64_t& size = size_[static_cast<std::size_t>(c)];
      const int64_t n = x.shape()[d];
      if (size < 0 || (is_ellipsis(c) && size == 1)) size = n;
      else if (n != size && !(is_ellipsis(c) && n == 1)) {
        if (is_ellipsis(c)) wrong("the dims of '...' do not broadcast: sizes ", size, " and ", n);
        wrong("'", c, "' has sizes ", size, " and ", n);
      }
    }
    return {x, labels};
  }

  /// Takes diagonals of repeated labels. Drops ellipsis dims of size 1 that would be stretched: absent is equivalent.
  void tidy(Term& t) const {
    for (std::size_t j = 1; j < t.labels.size(); ++j) {
      const std::size_t i = t.labels.find(t.labels[j]);
      if (i == j) continue;
      t.x = diagonal(t.x, static_cast<int64_t>(i), static_cast<int64_t>(j));
      t.labels += t.labels[j];
      t.labels.erase(j, 1), t.labels.erase(i, 1);
      j = 0;
    }
    for (std::size_t d = t.labels.size(); d-- > 0;) {
      const char c = t.labels[d];
      if (!is_ellipsis(c) || size_[static_cast<std::size_t>(c)] == t.x.dim(static_cast<int64_t>(d))) continue;
      t.x = squeeze(t.x, static_cast<int64_t>(d));
      t.labels.erase(d, 1);
    }
  }

  void imply_output(const std::string& left) {
    output_ = read_labels("...", ellipsis_dims_);
    for (char c = 'A'; c <= 'z'; ++c)
      if (is_letter(c) && std::count(left.begin(), left.end(), c) == 1) output_ += c;
  }
  void read_output(const std::string& right, const std::string& left) {
    if (right.find("...") == right.npos && ellipsis_dims_ > 0)
      wrong("the result lacks the '...' of the operands; write it after '->', or name the dims to sum over");
    if (right.find("...") != right.npos && left.find("...") == left.npos) wrong("'...' appears in the result only");
    output_ = read_labels(right, ellipsis_dims_);
    for (char c : output_) {
      if (!is_ellipsis(c) && !has(left, c)) wrong("'", c, "' of the result is in no operand");
      if (std::count(output_.begin(), output_.end(), c) > 1) wrong("'", c, "' appears twice in the result");
    }
  }

  /// Labels of the result and of the operands after i.
  Labels needed_after(std::size_t i) const {
    Labels s = output_;
    for (std::size_t k = i + 1; k < terms_.size(); ++k) s += terms_[k].labels;
    return s;
  }

  /// Whether a has a label that neither b nor the result needs.
  bool has_own_label(const Term& a, const Term& b) const {
    const Labels needed = b.labels + output_;
    return std::any_of(a.labels.begin(), a.labels.end(), [&](char c) { return !has(needed, c); });
  }

  static Term sum_out(const Term& t, const Labels& needed) {
    Shape dims;
    Labels left;
    for (std::size_t d = 0; d < t.labels.size(); ++d) {
      if (has(needed, t.labels[d])) left += t.labels[d];
      else dims.push_back(static_cast<int64_t>(d));
    }
    return dims.empty() ? t : Term{sum(t.x, dims), left};
  }

  static Tensor ordered(const Term& t, const Labels& order) {
    if (t.labels == order) return t.x;
    Shape dims;
    for (char c : order) dims.push_back(static_cast<int64_t>(t.labels.find(c)));
    return permute(t.x, dims);
  }

  /// t with the dims of `order`; those that it lacks have size 1.
  static Tensor stretched(const Term& t, const Labels& order) {
    Labels own;
    for (char c : order)
      if (has(t.labels, c)) own += c;
    Tensor x = ordered(t, own);
    for (std::size_t d = 0; d < order.size(); ++d)
      if (!has(own, order[d])) x = unsqueeze(x, static_cast<int64_t>(d));
    return x;
  }

  Shape sizes(const Labels& s) const {
    Shape shape;
    for (char c : s) shape.push_back(size_[static_cast<std::size_t>(c)]);
    return shape;
  }

  Term contract(Term a, Term b, const Labels& needed) const {
    a = sum_out(a, b.labels + needed);
    // The result comes out as [batch…, n…, m…]: let the operand with the last label be on the right.
    if (!output_.empty() && has(a.labels, output_.back()) && !has(b.labels, output_.back())) std::swap(a, b);
    Labels batch, n, m, k;
    for (char c : output_ + a.labels)  // batch dims in the order of the result
      if (has(a.labels, c) && has(b.labels, c) && has(needed, c) && !has(batch, c)) batch += c;
    for (char c : a.labels)
      if (!has(b.labels, c)) n += c;
    for (char c : b.labels)
      if (!has(a.labels, c)) m += c;
    for (char c : a.x.numel() >= b.x.numel() ? a.labels : b.labels)  // so that the larger one stays a view
      if (has(a.labels, c) && has(b.labels, c) && !has(batch, c)) k += c;
    Labels result = batch + n + m;
    if (result.size() > kMaxRank) wrong("an intermediate result needs more than ", kMaxRank, " dims");
    checked_numel("einsum", sizes(result));
    if (k.empty()) {  // an outer or elementwise product, whose dims may come in any order: in that of the result
      std::stable_sort(result.begin(), result.end(), [&](char c, char d) { return output_.find(c) < output_.find(d); });
      return {stretched(a, result) * stretched(b, result), result};
    }

    const Tensor left = ordered(a, batch + n + k), right = ordered(b, batch + k + m);
    Shape left_shape = sizes(batch), right_shape = left_shape;
    if (left_shape.rank() + 2 > kMaxRank) left_shape = right_shape = Shape{left_shape.numel()};
    const int64_t rows = sizes(n).numel(), summed = sizes(k).numel(), cols = sizes(m).numel();
    if (sizes(result).numel() > 0 && detail::beyond_blas(a.x.device(), rows, summed, cols))
      wrong("a product of matrices [", rows, ",", summed, "] and [", summed, ",", cols, "] exceeds 2^31");
    left_shape.push_back(rows), left_shape.push_back(summed);
    right_shape.push_back(summed), right_shape.push_back(cols);
    return {reshape(matmul(reshape(left, left_shape), reshape(right, right_shape)), sizes(result)), result};
  }

  std::string_view text_;
  const std::vector<Tensor>& xs_;
  std::vector<Term> terms_;
  Labels output_;
  int ellipsis_dims_ = 0;
  std::array<int64_t, 128> size_;
};

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands) {
  if (operands.empty()) fail("einsum: no operands for \"", equation, "\"");
  detail::check_defined("einsum", operands);
  return Equation(equation, operands).run();
}

}  // namespace sluice
