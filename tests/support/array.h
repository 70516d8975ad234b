// What references are written in: an array of doubles walked by plain loops over index tuples. It knows
// nothing of the library, so that a reference cannot share a mistake with the op it judges.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

namespace sluice::testing {

using Dims = std::vector<int64_t>;

inline int64_t count(const Dims& shape) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

/// Calls f(index) for every index of `shape` in row-major order.
template <class F> void each_index(const Dims& shape, F f) {
  Dims i(shape.size(), 0);
  for (int64_t n = count(shape); n > 0; --n) {
    f(std::as_const(i));
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++i[d] < shape[d]) break;
      i[d] = 0;
    }
  }
}

struct Array {
  Dims shape;
  std::vector<double> v;  // row-major

  Array() = default;
  explicit Array(Dims s, double fill = 0) : shape(std::move(s)), v(static_cast<std::size_t>(count(shape)), fill) {}

  int rank() const { return static_cast<int>(shape.size()); }
  std::size_t at(const Dims& index) const {
    int64_t k = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) k = k * shape[d] + index[d];
    return static_cast<std::size_t>(k);
  }
  double& operator()(const Dims& index) { return v[at(index)]; }
  double operator()(const Dims& index) const { return v[at(index)]; }

  /// The element that broadcasting puts at `index` of a larger shape: dims align at the right, and a
  /// size-1 dim always reads its only entry.
  double stretched(const Dims& index) const {
    const std::size_t lead = index.size() - shape.size();
    int64_t k = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) k = k * shape[d] + (shape[d] == 1 ? 0 : index[lead + d]);
    return v[static_cast<std::size_t>(k)];
  }
};

using Arrays = std::vector<Array>;

/// What a reference returns: one array per output of the op.
struct Expected : Arrays {
  Expected(Array a) : Arrays{std::move(a)} {}
  Expected(Arrays a) : Arrays(std::move(a)) {}
};
using Reference = std::function<Expected(const Arrays&)>;

/// The shape that broadcasting gives.
Dims broadcast_shape(const Arrays& xs);

// -- references of common forms -----------------------------------------------------------------------

/// y[i] = f(x0[i], x1[i], …) over the broadcast shape; f sees all operands.
Reference elementwise(std::function<double(const std::vector<double>&)> f);
Reference elementwise1(double (*f)(double));
Reference elementwise2(double (*f)(double, double));
Reference elementwise3(double (*f)(double, double, double));

/// y[rest] = f(all x along `dims`, in row-major order); empty dims mean all of them.
Reference reduced(Dims dims, bool keep, std::function<double(const std::vector<double>&)> f);

/// y[i] = x0[from(i)]: every view is one of these.
Reference picked(Dims shape, std::function<Dims(const Dims&)> from);

/// y[i] = f(row)[i] along `dim` of the first input: softmax, cumsum, sorting.
Reference along(int64_t dim, std::function<std::vector<double>(const std::vector<double>&)> f);

}  // namespace sluice::testing
