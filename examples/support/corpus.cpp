#include "corpus.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace sluice::examples {
namespace {

constexpr std::size_t kBaselineBytes = 40'000;

}  // namespace

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
