#include "support/array.h"

#include <algorithm>

namespace sluice::testing {

Dims broadcast_shape(const Arrays& xs) {
  Dims out;
  for (const Array& x : xs) {
    if (x.shape.size() > out.size()) out.insert(out.begin(), x.shape.size() - out.size(), 1);
    for (std::size_t d = 0; d < x.shape.size(); ++d) {
      int64_t& o = out[out.size() - x.shape.size() + d];
      if (o == 1) o = x.shape[d];
    }
  }
  return out;
}

Reference elementwise(std::function<double(const std::vector<double>&)> f) {
  return [f](const Arrays& xs) {
    Array y(broadcast_shape(xs));
    std::vector<double> values(xs.size());
    each_index(y.shape, [&](const Dims& i) {
      for (std::size_t k = 0; k < xs.size(); ++k) values[k] = xs[k].stretched(i);
      y(i) = f(values);
    });
    return y;
  };
}
Reference elementwise1(double (*f)(double)) {
  return elementwise([f](const std::vector<double>& v) { return f(v[0]); });
}
Reference elementwise2(double (*f)(double, double)) {
  return elementwise([f](const std::vector<double>& v) { return f(v[0], v[1]); });
}
Reference elementwise3(double (*f)(double, double, double)) {
  return elementwise([f](const std::vector<double>& v) { return f(v[0], v[1], v[2]); });
}

Reference reduced(Dims dims, bool keep, std::function<double(const std::vector<double>&)> f) {
  return [=](const Arrays& xs) {
    const Array& x = xs[0];
    std::vector<bool> goes(x.shape.size(), dims.empty());
    for (int64_t d : dims) goes[static_cast<std::size_t>(d < 0 ? d + x.rank() : d)] = true;
    Dims outer, inner, shape;
    for (std::size_t d = 0; d < goes.size(); ++d) {
      outer.push_back(goes[d] ? 1 : x.shape[d]);
      inner.push_back(goes[d] ? x.shape[d] : 1);
      if (keep || !goes[d]) shape.push_back(outer.back());
    }
    Array y(shape);
    std::size_t k = 0;
    std::vector<double> values;
    Dims at;
    each_index(outer, [&](const Dims& o) {
      values.clear();
      each_index(inner, [&](const Dims& i) {
        at = o;
        for (std::size_t d = 0; d < at.size(); ++d) at[d] += i[d];
        values.push_back(x(at));
      });
      y.v[k++] = f(values);
    });
    return y;
  };
}

Reference picked(Dims shape, std::function<Dims(const Dims&)> from) {
  return [=](const Arrays& xs) {
    Array y(shape);
    each_index(shape, [&](const Dims& i) { y(i) = xs[0](from(i)); });
    return y;
  };
}

Reference along(int64_t dim, std::function<std::vector<double>(const std::vector<double>&)> f) {
  return [=](const Arrays& xs) {
    const Array& x = xs[0];
    const std::size_t d = static_cast<std::size_t>(dim < 0 ? dim + x.rank() : dim);
    Dims rest = x.shape, shape = x.shape;
    const int64_t n = x.shape[d];
    rest[d] = 1;
    shape[d] = static_cast<int64_t>(f(std::vector<double>(static_cast<std::size_t>(n), 1)).size());
    Array y(shape);
    each_index(rest, [&](const Dims& i) {
      std::vector<double> row;
      Dims at = i;
      for (at[d] = 0; at[d] < n; ++at[d]) row.push_back(x(at));
      row = f(row);
      for (at[d] = 0; at[d] < shape[d]; ++at[d]) y(at) = row[static_cast<std::size_t>(at[d])];
    });
    return y;
  };
}

}  // namespace sluice::testing
