#include <sluice/core/text/file_dtype.h>

#include <algorithm>
#include <vector>

namespace sluice::detail {

Tensor read_numbers(const FileDType& type, const Shape& shape, const std::function<void(void*, std::size_t)>& read) {
  Tensor x = empty(shape, {.dtype = type.dtype});
  const auto bytes = static_cast<std::size_t>(x.numel() * type.bytes);
  if (!type.widen) {
    read(x.raw(), bytes);
  } else {
    std::vector<std::byte> numbers(bytes);
    read(numbers.data(), bytes);
    type.widen(numbers.data(), x.numel(), x.raw());
  }
  return x;
}

std::string wrong_number(const FileDType& type, const Tensor& x) {
  if (type.name == "U64") {
    const int64_t *const begin = x.data<int64_t>(), *const end = begin + x.numel();
    const int64_t* const bad = std::find_if(begin, end, [](int64_t v) { return v < 0; });
    if (bad != end) return str("is U64, but its value ", bad - begin, " is beyond i64");
  }
  if (type.dtype == boolean) {
    const std::byte *const begin = x.raw(), *const end = begin + x.numel();
    const std::byte* const bad = std::find_if(begin, end, [](std::byte b) { return b > std::byte{1}; });
    if (bad != end) return str("is BOOL, but its byte ", bad - begin, " is neither 0 nor 1");
  }
  return {};
}

}  // namespace sluice::detail
