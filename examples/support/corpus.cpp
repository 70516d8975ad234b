#include "corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace sluice::examples {
namespace {

constexpr std::size_t kBaselineBytes = 40'000;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("read_text: cannot use '" + path + "' — " + why);
}

}  // namespace

std::string read_text(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(path, "no such file");
  if (error) fail(path, error.message());
  // A folder opens without an error and a device such as /dev/zero never ends, so ask first.
  if (!fs::is_regular_file(status) && !fs::is_fifo(status)) fail(path, "not a regular file");

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) fail(path, std::strerror(errno));
  std::string text;
  if (fs::is_regular_file(status)) {  // a pipe has no size to reserve
    const std::uintmax_t size = fs::file_size(path, error);
    if (!error) text.reserve(size);
  }
  char block[1 << 16];
  while (const std::size_t got = std::fread(block, 1, sizeof block, file.get())) {
    text.append(block, got);
  }
  if (std::ferror(file.get())) fail(path, std::strerror(errno));

  if (text.empty()) fail(path, "the file is empty");
  // Compressed bytes look like noise: a model would train for minutes and learn nothing.
  if (text.starts_with("\x1f\x8b")) fail(path, "it is gzip-compressed; unpack it with gzip -dc first");
  return text;
}

Split split_text(std::string_view text, std::size_t window) {
  const std::size_t valid = text.size() / 10;
  const std::size_t train = text.size() - valid;
  window = std::max<std::size_t>(window, 1);
  if (valid < window) {  // train is at least as long as valid, so this covers both
    throw std::runtime_error("split_text: the text is too short — got " +
                             std::to_string(text.size()) + " bytes, need at least " +
                             std::to_string(10 * window) + " (validation is the last 10 %, and one " +
                             "example spans " + std::to_string(window) + " bytes)");
  }
  return {text.substr(0, train), text.substr(train)};
}

std::string_view baseline_part(std::string_view valid) { return valid.substr(0, kBaselineBytes); }

}  // namespace sluice::examples
