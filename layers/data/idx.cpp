#include <sluice/layers/data/idx.h>

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>
#include <sluice/layers/data/gzip.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <bit>

namespace sluice {

namespace {

/// Number i of the data. IDX is big-endian.
template <class T> T number_at(const char* data, int64_t i) {
  char bytes[sizeof(T)];
  for (std::size_t k = 0; k < sizeof(T); ++k)
    bytes[k] = data[i * static_cast<int64_t>(sizeof(T)) + static_cast<int64_t>(sizeof(T) - 1 - k)];
  return std::bit_cast<T>(bytes);
}

/// The numbers of type From as a tensor of type To, which represents each number exactly.
template <class From, class To> Tensor numbers(const char* data, const Shape& shape, DType) {
  Tensor x = empty(shape, {.dtype = dtype_of<To>()}, "read_idx");
  To* to = x.mutable_data<To>();
  for (int64_t i = 0, n = x.numel(); i < n; ++i) to[i] = static_cast<To>(number_at<From>(data, i));
  return x;
}
/// Integers, as f32 if they are wanted as f32 and are exact there.
template <class From> Tensor integers(const char* data, const Shape& shape, DType wanted) {
  return wanted == f32 && sizeof(From) < 4 ? numbers<From, float>(data, shape, wanted)
                                           : numbers<From, int64_t>(data, shape, wanted);
}

/// What a file's third byte says of its numbers.
struct Kind {
  unsigned code;
  uint64_t width;                                                      // bytes of a number
  Tensor (*read)(const char* data, const Shape& shape, DType wanted);  // the numbers, exactly
};
constexpr Kind kKinds[] = {{0x08, 1, integers<uint8_t>},     {0x09, 1, integers<int8_t>},
                           {0x0b, 2, integers<int16_t>},     {0x0c, 4, integers<int32_t>},
                           {0x0d, 4, numbers<float, float>}, {0x0e, 8, numbers<double, double>}};

}  // namespace

Tensor read_idx(const std::string& path, DType dtype) {
  if (dtype == boolean) fail<DTypeError>("read_idx: asked for bool; need a type of numbers");
  std::string bytes = read_file(path, "read_idx");
  const bool packed = is_gzip(bytes);
  const auto bad = [&](const auto&... what) { fail<IOError>("read_idx: '", path, "': ", what...); };

  const std::string head = packed ? gunzip(bytes, path, 4 + 4 * kMaxRank) : bytes.substr(0, 4 + 4 * kMaxRank);
  const auto byte = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(head[i]); };
  if (head.size() < 4) bad("the file ends within its first 4 bytes");
  const unsigned rank = byte(3);
  const Kind* const kind = std::ranges::find(kKinds, byte(2), &Kind::code);
  if (byte(0) != 0 || byte(1) != 0 || kind == std::end(kKinds))
    bad("bytes 0 to 2 are ", byte(0), " ", byte(1), " ", byte(2), "; an IDX file has 0 0 and one of 8 9 11 12 13 14");
  if (rank > kMaxRank) bad("byte 3 says ", rank, " dims; at most ", kMaxRank, " are possible here");
  const std::size_t begin = 4 + std::size_t{4} * rank;
  if (head.size() < begin) bad("the file ends within the sizes of its ", rank, " dims, at byte ", head.size());
  if (!is_float(dtype) && kind->code >= 0x0d)
    fail<DTypeError>("read_idx: '", path, "' holds ", kind->width == 4 ? "f32" : "f64", ", asked for ", dtype);

  Shape shape;
  uint64_t need = kind->width;
  bool overflow = false, none = false;
  for (std::size_t d = 0; d < rank; ++d) {
    const uint64_t size = byte(4 + 4 * d) << 24 | byte(5 + 4 * d) << 16 | byte(6 + 4 * d) << 8 | byte(7 + 4 * d);
    shape.push_back(static_cast<int64_t>(size));
    none |= size == 0;
    overflow |= __builtin_mul_overflow(need, std::max<uint64_t>(size, 1), &need);
  }
  // Deflate packs at most 1032 bytes into one byte.
  const uint64_t most = packed ? 1032 * uint64_t{bytes.size()} : bytes.size();
  if (overflow || (!none && need > most))
    bad("shape ", shape, " needs more bytes than the file of ", bytes.size(), " can hold");
  if (need / kind->width > uint64_t{1} << 56) bad("shape ", shape, " has too many elements, empty dims counted as 1");
  if (none) need = 0;
  if (packed) bytes = gunzip(bytes, path, begin + need + 1);
  if (bytes.size() != begin + need)
    bad("shape ", shape, " needs ", need, " bytes of data from byte ", begin, " on; there are ",
        bytes.size() > begin + need && packed ? "more" : str(bytes.size() - begin));
  const Tensor exact = kind->read(bytes.data() + begin, shape, dtype), x = to(exact, dtype);
  if (is_float(exact.dtype()) && exact.dtype() != dtype && x.numel() > 0) {
    const Tensor lost = reshape(to(logical_and(isfinite(exact), logical_not(isfinite(x))), i32), {x.numel()});
    const auto at = argmax(lost, 0).item<int64_t>();
    if (lost[at].item() != 0)
      bad("number ", at, " is ", reshape(exact, {x.numel()})[at].item(), ", beyond ", dtype, "; ask for ",
          exact.dtype());
  }
  return x;
}

}  // namespace sluice
