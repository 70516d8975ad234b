#include <sluice/layers/data/text.h>

#include <sluice/core/error.h>
#include <sluice/layers/data/gzip.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

namespace sluice {

std::string read_text(const std::string& path) {
  std::string text = read_unpacked(path, "read_text");
  if (text.empty()) fail<IOError>("read_text: '", path, "' is empty");
  return text;
}

Tensor byte_tokens(std::string_view text) {
  Tensor tokens = empty({static_cast<int64_t>(text.size())}, {i32}, "byte_tokens");
  int32_t* to = tokens.mutable_data<int32_t>();
  for (const char byte : text) *to++ = static_cast<unsigned char>(byte);
  return tokens;
}

TextWindows::TextWindows(const Tensor& tokens, int64_t length, int64_t stride)
    : length_(length), stride_(stride > 0 ? stride : length) {
  if (tokens.dtype() != i32 && tokens.dtype() != i64)
    fail<DTypeError>("text_windows: tokens must be i32 or i64 — got ", tokens.dtype());
  if (tokens.rank() != 1) fail("text_windows: tokens must have rank 1 — got ", tokens);
  if (length < 1 || stride < 0)
    fail<ValueError>("text_windows: need length >= 1 and stride >= 0 — got ", length, " and ", stride);
  if (tokens.numel() <= length)
    fail("text_windows: a window of ", length, " needs ", str(length), " + 1 tokens — got ", tokens.numel());
  tokens_ = contiguous(detail::on_cpu("text_windows", tokens));
}

TextBatch TextWindows::operator()(const Tensor& rows) const {
  if (rows.rank() != 1 || rows.dtype() != i64)
    fail("text_windows: rows must be i64 of rank 1 — got ", rows.dtype(), " ", rows);
  const Tensor index = contiguous(detail::on_cpu("text_windows", rows));
  Tensor both = empty({rows.numel(), length_ + 1}, tokens_.options(), "text_windows");
  kernel::index_select("text_windows", unfold(tokens_, 0, length_ + 1, stride_), 0, index, both);
  both = to(both, i64);
  return {contiguous(narrow(both, 1, 0, length_)), contiguous(narrow(both, 1, 1, length_))};
}

}  // namespace sluice
