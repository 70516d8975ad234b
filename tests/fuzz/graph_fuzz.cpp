// Graphs of rows of the op table: what one row gives feeds others, squeezed into the range that they take, several
// times and in any memory layout. Values are compared with each row's reference, gradients of both orders with
// differences.
#include "fuzz/kinds.h"
#include "support/isa_scope.h"
#include "support/op_cases.h"

#include <sluice/autograd/function.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice::testing {

namespace {

/// Where an input of a row comes from: a leaf, or an earlier result.
struct Source {
  bool leaf;
  std::size_t index;  // among the leaves or the results
  Dims shape = {};
  double lo = 0, hi = 0, shift = 0;
  int64_t skip = 0;
  bool reversed = false;
};
struct Step {
  const OpCase* row;
  std::vector<Source> inputs;
};
struct Graph {
  std::vector<Step> steps;
  In leaves;
  std::vector<bool> used = {};  // by result: whether a row reads it
};

/// So many of x's elements, if need be several times, between lo and hi; zeros come to lie anywhere.
Tensor fitted(const Tensor& x, const Source& s) {
  const int64_t need = count(s.shape), have = x.numel();
  Tensor flat = reshape(x, {1, have});
  if (have < need) flat = expand(flat, {(need - 1) / have + 1, have});
  flat = reshape(flat, {-1});
  flat = narrow(flat, 0, s.skip % (flat.numel() - need + 1), need);
  flat = s.lo + (s.hi - s.lo) * sigmoid(flat + s.shift);
  if (!s.reversed) return reshape(flat, shape_of(s.shape));
  Shape dims;
  for (int64_t d = std::ssize(s.shape); d-- > 0;) dims.push_back(d);
  return permute(reshape(flat, shape_of({s.shape.rbegin(), s.shape.rend()})), dims);
}

/// What each row gives, from first to last; `look` sees the inputs of each, and its outputs.
std::vector<Tensor> results(const Graph& g, const In& leaves,
                            const std::function<void(const Step&, const In&, const Outputs&)>& look = {}) {
  std::vector<Tensor> all;
  for (const Step& step : g.steps) {
    In in;
    for (const Source& s : step.inputs) in.push_back(s.leaf ? leaves[s.index] : fitted(all[s.index], s));
    const Outputs out = step.row->call(in);
    if (look) look(step, in, out);
    for (const Tensor& y : out)
      if (is_float(y.dtype())) all.push_back(y);
  }
  return all;
}
/// Those that no row reads, and the last.
std::vector<Tensor> roots(const Graph& g, const In& leaves) {
  std::vector<Tensor> all = results(g, leaves), out;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!g.used[i] || i + 1 == all.size()) out.push_back(all[i]);
  return out;
}

const std::vector<const OpCase*>& smooth_rows() {
  static const std::vector<const OpCase*> rows = [] {
    std::vector<const OpCase*> v;
    for (const OpCase& row : all_cases())
      if (!row.flat) v.push_back(&row);
    return v;
  }();
  return rows;
}

Graph drawn_graph(Draw& draw, Report& report, std::string& text) {
  Graph g;
  std::vector<int64_t> sizes;  // of the results
  const auto& rows = smooth_rows();
  for (int64_t n = 2 + draw.below(6); n > 0; --n) {
    const OpCase& row = *rows[static_cast<std::size_t>(draw.below(std::ssize(rows)))];
    const auto shapes = shapes_of(row);
    const Arrays values = input_values(row, shapes[static_cast<std::size_t>(draw.below(std::ssize(shapes)))],
                                       static_cast<uint64_t>(draw.below(1 << 30)));
    int64_t elements = 0;
    for (const Array& a : values) elements += count(a.shape);
    if (elements > 80) continue;
    const In drawn = input_tensors(row, values, f64, true);
    Step step{&row, {}};
    text += str(text.empty() ? "" : "; ", sizes.size(), ": ", row.name());
    for (std::size_t k = 0; k < drawn.size(); ++k) {
      const Input& in = row.inputs[k];
      const auto from = sizes.empty() ? 0 : static_cast<std::size_t>(draw.below(std::ssize(sizes)));
      const bool fits =
          in.kind == Input::uniform && !in.constant && !sizes.empty() && sizes[from] > 0 && drawn[k].numel() > 0;
      if (!fits || draw.chance(0.3)) {
        step.inputs.push_back({true, g.leaves.size()});
        g.leaves.push_back(drawn[k]);
      } else {
        step.inputs.push_back(
            {false, from, values[k].shape, in.lo, in.hi, draw.real(-1, 1), draw.below(100), draw.chance(0.3)});
        g.used[from] = true;
        text += str(" <- ", from);
      }
    }
    report.at(text);
    NoGrad guard;
    g.steps.push_back(step);
    sizes.clear();
    for (const Tensor& y : results(g, g.leaves)) sizes.push_back(y.numel());
    g.used.resize(sizes.size());
  }
  return g;
}

double dot(const std::vector<Tensor>& ys, const std::vector<Tensor>& cs) {
  double total = 0;
  std::size_t k = 0;
  for (const Tensor& y : ys)
    if (is_float(y.dtype())) total += sum(y.detach() * cs[k++]).item();
  return total;
}

/// The slope of ⟨f(xs), cs⟩ along a random direction of each leaf, by the library's gradient `gs` and by differences;
/// what is wrong. Leaves at which f has a kink are left out.
std::string check_slopes(const TensorFn& f, const In& xs, const std::vector<Tensor>& cs, const std::vector<Tensor>& gs,
                         Rand& rand, Report& report) {
  const double at = dot(f(xs), cs);
  std::size_t k = 0;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    if (!xs[i].requires_grad()) continue;
    const Tensor& g = gs[k++];
    const Tensor direction = random_tensor(xs[i].shape(), f64, rand);
    auto moved = [&](double by) {
      In there = xs;
      there[i] = (xs[i].detach() + direction * by).requires_grad_();
      return dot(f(there), cs);
    };
    const double h = 4e-4, up = moved(h), down = moved(-h), up2 = moved(2 * h), down2 = moved(-2 * h);
    const double numeric = (8 * (up - down) - (up2 - down2)) / (12 * h), along = sum(g.detach() * direction).item();
    const double coarse = (8 * (up2 - down2) - (moved(4 * h) - moved(-4 * h))) / (24 * h);
    const double size = sum(abs(g.detach() * direction)).item() + std::abs(numeric);
    // Where f is smooth, its bend over twice the distance is twice as large.
    const double bend = (up - 2 * at + down) / h, bend2 = (up2 - 2 * at + down2) / (2 * h),
                 noise = 1e-10 * (1 + std::abs(at));
    if (!(std::abs(bend2 - 2 * bend) <= 1e-6 * size + noise)) {
      ++report.counts["kinks"];
      continue;
    }
    const double allowed = 1e-5 * size + 10 * noise;
    if (!(std::abs(numeric - coarse) <= allowed)) {  // rounding: the slope of a sigmoid next to 1 has few digits
      ++report.counts["rough"];
      continue;
    }
    ++report.counts["slopes"];
    if (!(std::abs(along - numeric) <= allowed))
      return str("along leaf ", static_cast<int64_t>(i), " ", along, ", by differences ", numeric);
  }
  return "";
}

}  // namespace

void draw_graph(Draw& draw, Report& report) {
  const IsaScope scope(isas()[static_cast<std::size_t>(draw.below(static_cast<int64_t>(isas().size())))]);
  std::string text = str(isa_name(isa()), ": ");
  const Graph g = drawn_graph(draw, report, text);
  if (g.steps.empty()) return;
  ++report.counts["graphs"];
  report.counts["rows"] += std::ssize(g.steps);
  auto wrong = [&](const std::string& what) { report.wrong(draw, text + ": " + what); };
  results(g, g.leaves, [&](const Step& step, const In& in, const Outputs& out) {
    Arrays values;
    for (const Tensor& x : in) {
      values.emplace_back(Dims(x.shape().begin(), x.shape().end()));
      values.back().v = x.to_vector<double>();
    }
    const Expected want = step.row->reference(values);
    const auto allowed = allowed_errors(*step.row, values, want, 1e-12);
    for (std::size_t o = 0; o < want.size(); ++o)
      if (const Closeness c = all_close(out[o].to_vector<double>(), want[o].v, allowed[o]); !c)
        wrong(str(step.row->name(), ", output ", static_cast<int64_t>(o), ": ", c.text));
  });
  Rand rand(static_cast<uint64_t>(draw.below(1 << 30)));
  for (const Tensor& y : results(g, g.leaves))  // a mean over nothing
    if (!all(isfinite(y)).item()) return;
  const TensorFn f = [&](const In& xs) { return roots(g, xs); };
  const std::vector<Tensor> cs = random_cotangents(f(g.leaves), rand);
  const TensorFn fused = [&](const In& xs) { return library_gradient(f, xs, cs); };
  const TensorFn composed = [&](const In& xs) { return library_gradient(f, xs, cs, true); };
  const std::vector<Tensor> first = fused(g.leaves), recorded = composed(g.leaves);
  for (std::size_t i = 0; i < first.size(); ++i)
    if (const Closeness c = all_close(recorded[i], first[i], 1e-10, std::max(1.0, max_abs(first[i]))); !c)
      return wrong(str("fused and composed gradient ", static_cast<int64_t>(i), " differ: ", c.text));
  if (const std::string s = check_slopes(f, g.leaves, cs, first, rand, report); !s.empty())
    return wrong("gradient " + s);
  const std::vector<Tensor> vs = random_cotangents(first, rand);
  const std::string s = check_slopes(fused, g.leaves, vs, library_gradient(composed, g.leaves, vs), rand, report);
  if (!s.empty()) wrong("second gradient " + s);
}

}  // namespace sluice::testing
