#include "corpus.h"

#include <sluice/core/error.h>
#include <sluice/layers/data/text.h>

#include <algorithm>

namespace sluice::examples {

std::string learning_text(const std::string& path) {
  if (!path.empty()) return read_text(path);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the sluice opens at dawn, the sluice closes at dusk. ";
  return text;
}

Split split_text(std::string_view text, std::size_t window) {
  const std::size_t valid = text.size() / 10, train = text.size() - valid;
  window = std::max<std::size_t>(window, 1);
  if (valid < window)  // train is at least as long as valid, so this covers both
    fail<ValueError>("split_text: the text is too short — got ", text.size(), " bytes, need at least ", 10 * window,
                     " (validation is the last 10 %, and one example spans ", window, " bytes)");
  return {text.substr(0, train), text.substr(train)};
}

std::string_view baseline_part(std::string_view valid, std::size_t window) {
  constexpr std::size_t usual = 40'000;
  return valid.substr(0, std::max(usual, window));
}

}  // namespace sluice::examples
