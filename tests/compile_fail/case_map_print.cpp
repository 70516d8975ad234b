// A formula prints nothing: it computes many numbers at once.
// message: prints none
#include <iostream>

namespace map_print {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        std::cout << v;
        return v;
      },
      x);
}
#else
Tensor f(const Tensor& x) {
  std::cout << x;
  return x;
}
#endif
}  // namespace map_print
